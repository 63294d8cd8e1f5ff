//! `abey guard` (hidden): outlives an `abey run` that was killed, ends its program and puts its settings back.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use abey_datapath::control::Change;
use abey_linux::apply::restore_abandoned;
use abey_linux::process::{self, EpollNote, ProcessError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};

use crate::commands::tune::put_back;
use crate::datapath_world::Datapaths;
use crate::failure::Failure;

/// Wait for an `abey run` to end, and clean up after it if it was killed
#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    journals: PathBuf,
    /// The `abey run`
    #[arg(long)]
    of: Member,
}

const LOOK_AFTER: &str = "look after ";
const EPOLLS: &str = "epolls ";
const DATAPATH: &str = "datapath ";
const DONE: &str = "done";

/// How long the program may take to end before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The guard of this process: told what to look after, dismissed at the end.
pub(crate) struct Guard {
    child: Child,
    pipe: ChildStdin,
}

impl Guard {
    pub(crate) fn start(journals: &Path) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let me = Member::of(std::process::id()).ok_or(io::ErrorKind::NotFound)?;
        command.arg("guard").arg("--journals").arg(journals).arg("--of").arg(me.to_string());
        // A process group of its own: Ctrl-C at the terminal is not for the guard.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn()?;
        let pipe = child.stdin.take().expect("stdin is piped");
        Ok(Self { child, pipe })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where a process announces itself as one to end.
    pub(crate) fn pipe(&self) -> io::Result<OwnedFd> {
        self.pipe.as_fd().try_clone_to_owned()
    }

    /// Names the processes to end, with all below them, if this process is killed.
    pub(crate) fn look_after(&mut self, processes: &[u32]) {
        let members = processes.iter().filter_map(|pid| Member::of(*pid));
        let names: Vec<String> = members.map(|member| member.to_string()).collect();
        // A guard that is gone leaves the journal, which `abey set --restore` reads.
        let _ = writeln!(self.pipe, "{LOOK_AFTER}{}", names.join(" "));
    }

    /// Names the epoll instances whose parameters go back, if this process is killed: all there are.
    pub(crate) fn put_back_epolls(&mut self, notes: &BTreeSet<EpollNote>) {
        let notes: Vec<String> = notes.iter().map(EpollNote::to_string).collect();
        let _ = writeln!(self.pipe, "{EPOLLS}{}", notes.join(" "));
    }

    /// Says what leads back in the datapath of a process, if this one is killed.
    pub(crate) fn put_back_datapath(&mut self, pid: u32, back: &[Change]) {
        let back = serde_json::to_string(&(pid, back)).expect("changes are JSON");
        let _ = writeln!(self.pipe, "{DATAPATH}{back}");
    }

    /// There is nothing left to clean up.
    pub(crate) fn dismiss(mut self) {
        let _ = writeln!(self.pipe, "{DONE}");
        drop(self.pipe);
        let _ = self.child.wait();
    }
}

/// A process, by its number and when it started: numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Member {
    pid: u32,
    started: u64,
}

impl Member {
    fn of(pid: u32) -> Option<Self> {
        process::start_time(pid).map(|started| Self { pid, started })
    }

    fn runs(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    fn below(self) -> Vec<Self> {
        let below = process::descendants(self.pid).unwrap_or_default();
        below.into_iter().filter_map(Self::of).collect()
    }

    fn send(self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid.cast_signed()), signal);
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.started)
    }
}

impl FromStr for Member {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pid, started) = text.split_once(':').ok_or_else(|| format!("`{text}` is not PID:START"))?;
        let number = |_| format!("`{text}` is not PID:START");
        Ok(Self { pid: pid.parse().map_err(number)?, started: started.parse().map_err(number)? })
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    // A session of its own: a terminal that hangs up, or a kill of the whole group, does not reach the guard.
    let _ = setsid();
    let mut members = Vec::new();
    let mut epolls: Vec<EpollNote> = Vec::new();
    let mut datapath: Option<(u32, Vec<Change>)> = None;
    for line in BufReader::new(io::stdin()).lines().map_while(Result::ok) {
        if line == DONE {
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(names) = line.strip_prefix(LOOK_AFTER) {
            members = names.split(' ').filter_map(|name| name.parse().ok()).collect();
        } else if let Some(notes) = line.strip_prefix(EPOLLS) {
            epolls = notes.split(' ').filter_map(|note| note.parse().ok()).collect();
        } else if let Some(back) = line.strip_prefix(DATAPATH) {
            datapath = serde_json::from_str(back).ok();
        } else if let Ok(pid) = line.parse() {
            // It announced itself (`CommandPlace::announces_itself`).
            members.extend(Member::of(pid));
        }
    }
    // The pipe closed without the word: the process that held it was killed. It closes a moment before that process is
    // gone, and as long as it is there its journal counts as held.
    let closed = Instant::now();
    while args.of.runs() && closed.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    end(&members);
    // As much as possible: what cannot be put back is no reason to leave the rest.
    let failed: Vec<ProcessError> = epolls.iter().filter_map(|note| note.put_back().err()).collect();
    let datapath = datapath.map_or(Ok(()), |(pid, back)| put_back_datapath(pid, &back));
    restore_abandoned(&args.journals)?;
    datapath?;
    failed.into_iter().next().map_or(Ok(ExitCode::SUCCESS), |error| Err(Failure::check(error)))
}

/// Puts a datapath back, unless it has ended.
fn put_back_datapath(pid: u32, back: &[Change]) -> Result<(), Failure> {
    let mut all = Datapaths::all()?;
    all.keep(None, Some(pid));
    all.reached.iter().try_for_each(|one| put_back(&one.client, back))
}

/// Ends a program that lost its `abey run`: asks first, as `abey run` would have (the first processes, and then those that
/// they leave behind), and kills what is left of it.
fn end(asked: &[Member]) {
    let mut left: BTreeSet<Member> = asked.iter().copied().filter(|member| member.runs()).collect();
    let below: Vec<Member> = left.iter().flat_map(|member| member.below()).collect();
    left.iter().for_each(|member| member.send(Signal::SIGTERM));
    left.extend(below);
    let mut has_asked_all = false;
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        left.retain(|member| member.runs());
        if left.is_empty() {
            return;
        }
        if !has_asked_all && asked.iter().all(|member| !left.contains(member)) {
            left.iter().for_each(|member| member.send(Signal::SIGTERM));
            has_asked_all = true;
        }
        let below: Vec<Member> = left.iter().flat_map(|member| member.below()).collect();
        left.extend(below);
        std::thread::sleep(Duration::from_millis(20));
    }
    left.iter().filter(|member| member.runs()).for_each(|member| member.send(Signal::SIGKILL));
}
