//! Supervision of a running program: forwards signals to it, and waits until all of its processes have ended.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use abey_linux::process::{descendants, descendants_by_parent};
use abey_linux::spawn::CommandSetup;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, getsid};
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

use crate::guard::Guard;
use crate::signals::Signals;

/// What a [`Supervisor`] does until it calls its caller's `check` again.
#[derive(Clone, Copy, Debug)]
pub enum Next {
    /// Calls it after this long, or at the next signal.
    CheckAfter(Duration),
    /// Never calls it again, and waits until the program has ended.
    Wait,
    /// Ends the program.
    Stop,
}

/// SIGCHLD, and the signals that are forwarded.
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

/// Time from SIGTERM to SIGKILL.
const TERMINATION_LIMIT: Duration = Duration::from_secs(10);
/// Interval between two checks of a program that was asked to end.
const TERMINATION_POLL: Duration = Duration::from_millis(100);

/// Catches SIGCHLD and the signals that a supervisor forwards.
///
/// From here on SIGINT and SIGTERM do not end this process.
///
/// # Errors
/// See [`Signals::catch`].
pub fn catch_signals() -> io::Result<Signals> {
    Signals::catch(&CAUGHT)
}

/// Supervisor of a program and of the processes that it leaves in the background.
#[derive(Debug)]
pub struct Supervisor {
    child: Child,
    signals: Signals,
    /// Children of this process that are not the program's.
    excluded: BTreeSet<u32>,
    /// Exit status of the first process, once it has ended.
    status: Option<u8>,
    stop_requested: Option<Instant>,
    /// The last forwarded signal that asks a program to end.
    forwarded_termination: Option<Signal>,
    /// The processes last reported to the guard.
    guarded: Vec<u32>,
}

impl Supervisor {
    /// Starts the program. `signals` are those of [`catch_signals`]; `excluded` are children of this process that are not
    /// the program's.
    ///
    /// # Errors
    /// The program could not be started.
    pub fn start(command: &mut Command, signals: Signals, excluded: impl IntoIterator<Item = u32>) -> io::Result<Self> {
        // A server that goes to the background then remains a descendant of this process.
        prctl::set_child_subreaper(true)?;
        let child = command.unblock_signals(&CAUGHT.into_iter().collect()).spawn()?;
        Ok(Self {
            child,
            signals,
            excluded: excluded.into_iter().collect(),
            status: None,
            stop_requested: None,
            forwarded_termination: None,
            guarded: Vec::new(),
        })
    }

    /// Starts the program such that the guard ends it if this process is killed.
    ///
    /// # Errors
    /// The guard's pipe could not be duplicated, or the program could not be started.
    pub fn start_guarded(mut command: Command, signals: Signals, guard: &Guard) -> Result<Self, StartError> {
        command.write_pid_to(guard.pipe().map_err(StartError::Guard)?);
        // The command holds a copy of the pipe, which closes with it when this function returns.
        Self::start(&mut command, signals, [guard.pid()]).map_err(StartError::Program)
    }

    /// Waits until the program and everything it left in the background has ended.
    ///
    /// Returns the exit status of its first process, or 128 and the number of the signal that ended it. `check` gets the
    /// program's processes; it is called at once, and then as it asks for. `on_background` is called once, when the first
    /// process has ended without being asked to and others run on.
    pub fn wait(
        &mut self,
        guard: &mut Guard,
        mut check: impl FnMut(&[u32]) -> Next,
        on_background: impl FnOnce(),
    ) -> u8 {
        let mut pause = Some(Duration::ZERO);
        let mut on_background = Some(on_background);
        let mut is_signalled = true;
        loop {
            // Without a signal no child has ended, and only `check` needs the processes.
            let unsignalled = (!is_signalled && self.status.is_none()).then(|| self.members_by_parent()).flatten();
            let left = unsignalled.unwrap_or_else(|| {
                self.reap(guard);
                self.members()
            });
            if left.is_empty() {
                return self.status.unwrap_or(0);
            }
            if self.status.is_some() {
                self.update_guard(guard, &left);
            }
            if self.status.is_some()
                && self.stop_requested.is_none()
                && let Some(on_background) = on_background.take()
            {
                match self.forwarded_termination {
                    // The first process handled the signal by itself, as a shell does, and left the others running.
                    Some(signal) => self.forward(signal),
                    None => on_background(),
                }
            }
            if pause.is_some() {
                pause = match check(&left) {
                    Next::CheckAfter(span) => Some(span),
                    Next::Wait => None,
                    Next::Stop => {
                        self.stop(&left, Signal::SIGTERM);
                        None
                    }
                };
            }
            is_signalled = self.forward_signals(pause, &left);
        }
    }

    /// Forwards the signals that are delivered within `pause`; without one, waits for the first. Returns whether there was one.
    fn forward_signals(&mut self, pause: Option<Duration>, members: &[u32]) -> bool {
        let pause = match self.stop_requested {
            Some(since) if since.elapsed() > TERMINATION_LIMIT => {
                self.stop(members, Signal::SIGKILL);
                Some(TERMINATION_POLL)
            }
            Some(_) => Some(TERMINATION_POLL),
            None => pause,
        };
        self.signals.wait(pause);
        // At a hangup the terminal sends SIGHUP to the session leader only.
        let leads_session = getsid(None) == Ok(getpid());
        let mut is_signalled = false;
        while let Some(delivered) = self.signals.next_delivered() {
            is_signalled = true;
            let signal = delivered.signal;
            // What a terminal sends (Ctrl-C) goes to its whole foreground process group, the program included.
            let program_got_it = delivered.from_kernel && !(leads_session && signal == Signal::SIGHUP);
            if signal != Signal::SIGCHLD && !program_got_it {
                self.forward(signal);
            }
        }
        is_signalled
    }

    /// Reports the program's processes to the guard where they have changed. The first process announced itself and, while
    /// it runs, decides for the others.
    fn update_guard(&mut self, guard: &mut Guard, members: &[u32]) {
        if self.guarded != members {
            guard.set_processes(members);
            self.guarded = members.to_vec();
        }
    }

    /// Returns whether the first process has ended and was not reaped yet.
    fn first_has_ended(&self) -> bool {
        let first = rustix::process::Pid::from_child(&self.child);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(first), options).is_ok_and(|status| status.is_some())
    }

    fn forward(&mut self, signal: Signal) {
        if matches!(signal, Signal::SIGINT | Signal::SIGQUIT | Signal::SIGTERM) {
            self.forwarded_termination = Some(signal);
        }
        // While the first process runs, it decides for the others.
        let receivers = if self.status.is_none() { vec![self.child.id()] } else { self.members() };
        receivers.into_iter().for_each(|pid| send(pid, signal));
    }

    fn stop(&mut self, members: &[u32], signal: Signal) {
        self.stop_requested = self.stop_requested.or_else(|| Some(Instant::now()));
        if signal == Signal::SIGTERM && self.status.is_none() {
            send(self.child.id(), signal);
        } else {
            members.iter().for_each(|pid| send(*pid, signal));
        }
    }

    /// Reaps every process of the program that has ended, and notes the first one's status.
    fn reap(&mut self, guard: &mut Guard) {
        // One by one: a wait for any child could reap the first process, which may end at any moment.
        for pid in self.members().into_iter().filter(|pid| *pid != self.child.id()) {
            // Fails for those that are children of others.
            let _ = waitpid(rustix_pid(pid), WaitOptions::NOHANG);
        }
        if self.status.is_some() || !self.first_has_ended() {
            return;
        }
        // The guard gets the processes that the first one leaves behind before that one is reaped.
        let members = self.members();
        self.update_guard(guard, &members);
        if let Ok(Some((_, status))) = waitpid(rustix_pid(self.child.id()), WaitOptions::NOHANG) {
            let by_signal = || status.terminating_signal().map(|signal| 128 + signal);
            self.status = status.exit_status().or_else(by_signal).map(|code| code as u8);
        }
    }

    /// Returns the processes of the program: all descendants of this process but the excluded ones.
    fn members(&self) -> Vec<u32> {
        self.without_excluded(descendants(std::process::id()).unwrap_or_default())
    }

    /// Does the same as [`Self::members`] at a cost that does not depend on the other processes of the machine.
    fn members_by_parent(&self) -> Option<Vec<u32>> {
        descendants_by_parent(std::process::id()).map(|found| self.without_excluded(found))
    }

    fn without_excluded(&self, mut members: Vec<u32>) -> Vec<u32> {
        members.retain(|pid| !self.excluded.contains(pid));
        // A process that was not reaped yet exists, even if a snapshot of /proc lacks it.
        if self.status.is_none() && !members.contains(&self.child.id()) {
            members.push(self.child.id());
        }
        members
    }
}

/// Reason why a program was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The guard's pipe could not be duplicated.
    #[error("cannot reach the guard process: {0}")]
    Guard(#[source] io::Error),
    /// The system refused the program.
    #[error(transparent)]
    Program(io::Error),
}

fn send(pid: u32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
}

fn rustix_pid(pid: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(pid.cast_signed())
}
