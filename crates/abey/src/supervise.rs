//! Watches over the program that `abey run` starts: passes signals on, waits for all of it, tells how it ended.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use abey_linux::process;
use abey_linux::spawn::CommandPlace;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpid, getsid};
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

use crate::commands::guard::Guard;

/// What a caller does when it is woken.
pub(crate) enum Watch {
    /// Look again after this long, or at the next signal.
    After(Duration),
    /// Only signals matter from now on.
    Signals,
    /// End the program: it shall not run on.
    Stop,
}

/// The signals that are passed on, and the one that says a child has ended.
const CAUGHT: [Signal; 8] = [
    Signal::SIGCHLD,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// The code of a signal that the kernel sent by itself (`SI_KERNEL` in `sigaction(2)`), as a terminal does at Ctrl-C.
const FROM_KERNEL: i32 = 0x80;

/// The signals of this process, which from now on arrive here and have no other effect.
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Takes over the signals. From here on SIGINT and SIGTERM do not end this process, so whoever calls this ends by
    /// itself.
    pub(crate) fn catch() -> io::Result<Self> {
        let set: SigSet = CAUGHT.into_iter().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for the time at most, or without an end, and gives the signals that have arrived and are to be passed on.
    fn within(&self, pause: Option<Duration>) -> Vec<Signal> {
        use std::os::fd::AsFd;
        let timeout = pause.map_or(PollTimeout::NONE, |pause| pause.try_into().unwrap_or(PollTimeout::MAX));
        let _ = poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout);
        // A session leader is told of a terminal that hangs up in place of the others, not like them.
        let leads = getsid(None) == Ok(getpid());
        let mut arrived = Vec::new();
        while let Ok(Some(info)) = self.0.read_signal() {
            // What the terminal sends (Ctrl-C), it has sent to the program as well.
            let from_terminal = info.ssi_code == FROM_KERNEL;
            let Ok(signal) = Signal::try_from(info.ssi_signo.cast_signed()) else { continue };
            let known = from_terminal && !(leads && signal == Signal::SIGHUP);
            if signal != Signal::SIGCHLD && !known {
                arrived.push(signal);
            }
        }
        arrived
    }
}

/// A running program and all that it leaves behind when it goes to the background.
pub(crate) struct Supervised {
    child: Child,
    signals: Signals,
    /// Processes of ours that are not the program's.
    others: BTreeSet<u32>,
    ended: Option<u8>,
    asked_to_stop: Option<Instant>,
    /// The last signal that was passed on and means the end.
    last_word: Option<Signal>,
    /// What the guard was told to look after.
    guarded: Vec<u32>,
}

/// How long a program that was asked to end may take before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);

impl Supervised {
    /// Starts the program. `others` are children of ours that the program does not own.
    pub(crate) fn start(
        command: &mut Command,
        signals: Signals,
        others: impl IntoIterator<Item = u32>,
    ) -> io::Result<Self> {
        // A server that goes to the background is then still a child of ours, and its settings stay until it ends.
        prctl::set_child_subreaper(true)?;
        let child = command.with_signals(&CAUGHT.into_iter().collect()).spawn()?;
        Ok(Self {
            child,
            signals,
            others: others.into_iter().collect(),
            ended: None,
            asked_to_stop: None,
            last_word: None,
            guarded: Vec::new(),
        })
    }

    /// Waits until the program and everything it left in the background has ended, and gives its exit status: its own,
    /// or 128 and the signal that ended it. `look` is called at once and then as often as it asks for.
    ///
    /// The guard is told what there is to end if this process is killed.
    pub(crate) fn wait(&mut self, guard: &mut Guard, mut look: impl FnMut(&[u32]) -> Watch) -> u8 {
        let mut pause = Some(Duration::ZERO);
        let mut in_background = false;
        loop {
            self.collect(guard);
            let left = self.members();
            if left.is_empty() {
                return self.ended.unwrap_or(0);
            }
            if self.ended.is_some() {
                self.tell(guard, &left);
            }
            if self.ended.is_some() && !in_background && self.asked_to_stop.is_none() {
                in_background = true;
                match self.last_word {
                    // The first process took the signal for itself, as a shell does, and left the others behind.
                    Some(signal) => self.pass_on(signal),
                    None => eprintln!("abey: the program went to the background; its settings stay until it ends"),
                }
            }
            if pause.is_some() {
                pause = match look(&left) {
                    Watch::After(span) => Some(span),
                    Watch::Signals => None,
                    Watch::Stop => {
                        self.stop(&left, Signal::SIGTERM);
                        None
                    }
                };
            }
            self.signals_within(pause, &left);
        }
    }

    /// Passes on what arrives within the time; without one, waits for the first signal.
    fn signals_within(&mut self, pause: Option<Duration>, members: &[u32]) {
        let pause = match self.asked_to_stop {
            Some(since) if since.elapsed() > PATIENCE => {
                self.stop(members, Signal::SIGKILL);
                Some(Duration::from_millis(100))
            }
            Some(_) => Some(Duration::from_millis(100)),
            None => pause,
        };
        for signal in self.signals.within(pause) {
            self.pass_on(signal);
        }
    }

    /// Tells the guard what it has to end, where that has changed. The first process announced itself, and decides for
    /// the others as long as it is there.
    fn tell(&mut self, guard: &mut Guard, members: &[u32]) {
        if self.guarded != members {
            guard.look_after(members);
            self.guarded = members.to_vec();
        }
    }

    /// Whether the first process has ended and was not waited for yet.
    fn first_has_ended(&self) -> bool {
        let first = rustix::process::Pid::from_child(&self.child);
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(first), look).is_ok_and(|status| status.is_some())
    }

    fn pass_on(&mut self, signal: Signal) {
        if matches!(signal, Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTERM) {
            self.last_word = Some(signal);
        }
        // The first process decides for the others, as long as it is there.
        let receivers = if self.ended.is_none() { vec![self.child.id()] } else { self.members() };
        for pid in receivers {
            let _ = kill(pid_of(pid), signal);
        }
    }

    fn stop(&mut self, members: &[u32], signal: Signal) {
        self.asked_to_stop = self.asked_to_stop.or_else(|| Some(Instant::now()));
        let receivers =
            if signal == Signal::SIGTERM && self.ended.is_none() { &[self.child.id()][..] } else { members };
        for pid in receivers {
            let _ = kill(pid_of(*pid), signal);
        }
    }

    /// Takes note of every process of the program that has ended.
    fn collect(&mut self, guard: &mut Guard) {
        let members = self.members();
        // Each by its number: the first process may end at any moment.
        for pid in members.into_iter().filter(|pid| *pid != self.child.id()) {
            // Most are no children of ours, or run.
            let _ = waitpid(rustix_pid(pid), WaitOptions::NOHANG);
        }
        if self.ended.is_some() || !self.first_has_ended() {
            return;
        }
        // What the first process leaves behind is known to the guard before that process is gone.
        let members = self.members();
        self.tell(guard, &members);
        if let Ok(Some((_, status))) = waitpid(rustix_pid(self.child.id()), WaitOptions::NOHANG) {
            let by_signal = || status.terminating_signal().map(|signal| 128 + signal);
            self.ended = status.exit_status().or_else(by_signal).map(|code| code as u8);
        }
    }

    /// The processes of the program that are left: all below this one, but for those that are not the program's.
    fn members(&self) -> Vec<u32> {
        let mut members = process::descendants(std::process::id()).unwrap_or_default();
        members.retain(|pid| !self.others.contains(pid));
        // Whatever /proc says: as long as it was not waited for, it is there.
        if self.ended.is_none() && !members.contains(&self.child.id()) {
            members.push(self.child.id());
        }
        members
    }
}

fn rustix_pid(pid: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(pid.cast_signed())
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed())
}
