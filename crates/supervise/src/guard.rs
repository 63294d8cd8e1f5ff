//! The guard: a process that outlives an Abey that was killed, ends its program and restores its settings.
//!
//! [`Guard`] is the handle in the process that is guarded. It writes to the guard's standard input what is to be ended and
//! restored, one JSON value a line. [`run`] is the guard itself: it reads until the pipe closes, and cleans up
//! unless the last message was a dismissal.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use abey_datapath::control::{self, Change, Client, ControlError};
use abey_linux::process::{self, EpollNote, ProcessError};
use abey_reconcile::{JournalError, RUNTIME_UNITS, restore_abandoned};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};
use serde::{Deserialize, Serialize};

/// Time that the program may take to end before it is killed, and that the guarded process may take to disappear.
const TERMINATION_LIMIT: Duration = Duration::from_secs(5);

/// A line on the guard's standard input.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Line {
    /// The number of a process to end, which the process itself wrote before its program started
    /// ([`write_pid_to`](abey_linux::spawn::CommandSetup::write_pid_to)).
    Announced(u32),
    Message(Message),
}

/// A message from [`Guard`].
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// The processes to end, as [`ProcessId`]s; replaces those before.
    Processes(Vec<String>),
    /// The epoll instances to restore, as [`EpollNote`]s; replaces those before.
    Epolls(Vec<String>),
    /// The changes that restore the datapath of a process; replaces those before.
    Datapath { pid: u32, changes: Vec<Change> },
    /// Nothing is left to clean up.
    Dismiss,
}

/// The guard of this process.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    pipe: ChildStdin,
}

impl Guard {
    /// Starts a guard with a command that calls [`run`].
    ///
    /// # Errors
    /// The command could not be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        // In a process group of its own it does not get the Ctrl-C of a terminal.
        let mut child = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let pipe = child.stdin.take().expect("stdin is piped");
        Ok(Self { child, pipe })
    }

    /// Returns the guard's process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Duplicates the pipe, for a process that announces itself as one to end.
    ///
    /// # Errors
    /// The system's.
    pub fn pipe(&self) -> io::Result<OwnedFd> {
        self.pipe.as_fd().try_clone_to_owned()
    }

    /// Sets the processes to end, with their descendants.
    pub fn set_processes(&mut self, pids: &[u32]) {
        let processes = pids.iter().filter_map(|pid| ProcessId::of(*pid));
        self.send(Message::Processes(processes.map(|process| process.to_string()).collect()));
    }

    /// Sets the epoll instances to restore.
    pub fn set_epolls(&mut self, notes: &BTreeSet<EpollNote>) {
        self.send(Message::Epolls(notes.iter().map(EpollNote::to_string).collect()));
    }

    /// Sets the changes that restore the datapath of a process.
    pub fn set_datapath(&mut self, pid: u32, changes: &[Change]) {
        self.send(Message::Datapath { pid, changes: changes.to_vec() });
    }

    /// Ends the guard without any cleaning up.
    pub fn dismiss(mut self) {
        self.send(Message::Dismiss);
        drop(self.pipe);
        let _ = self.child.wait();
    }

    fn send(&mut self, message: Message) {
        let line = serde_json::to_string(&Line::Message(message)).expect("a message is JSON");
        // If the guard has ended, the journal remains, which `abey set --restore` reads.
        let _ = writeln!(self.pipe, "{line}");
    }
}

/// A process, identified by its number and its start time, as numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId {
    pid: u32,
    /// In clock ticks after boot.
    started: u64,
}

impl ProcessId {
    /// Returns the process that has this number now.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        process::start_time(pid).map(|started| Self { pid, started })
    }

    fn runs(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    fn descendants(self) -> Vec<Self> {
        process::descendants(self.pid).unwrap_or_default().into_iter().filter_map(Self::of).collect()
    }

    fn send(self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.pid.cast_signed()), signal);
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.started)
    }
}

impl FromStr for ProcessId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(pid, started)| Some((pid.parse().ok()?, started.parse().ok()?)));
        let (pid, started) = parts.ok_or_else(|| format!("`{text}` is not PID:START"))?;
        Ok(Self { pid, started })
    }
}

/// Something that a guard could not restore.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// Settings in the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Settings of a datapath.
    #[error(transparent)]
    Datapath(#[from] ControlError),
    /// Parameters of an epoll instance.
    #[error(transparent)]
    Epoll(#[from] ProcessError),
}

/// What is to be cleaned up.
#[derive(Debug, Default)]
struct Duties {
    processes: Vec<ProcessId>,
    epolls: Vec<EpollNote>,
    datapath: Option<(u32, Vec<Change>)>,
}

/// Guards `guarded`: waits until it closes this process's standard input, and cleans up unless the guard was dismissed.
///
/// # Errors
/// Something could not be restored. The rest is restored all the same.
pub fn run(guarded: ProcessId, journals: &Path) -> Result<(), GuardError> {
    // A session of its own: the hangup of a terminal and signals to its process groups do not reach the guard.
    let _ = setsid();
    let mut duties = Duties::default();
    for line in BufReader::new(io::stdin()).lines().map_while(Result::ok) {
        match serde_json::from_str(&line) {
            Ok(Line::Announced(pid)) => duties.processes.extend(ProcessId::of(pid)),
            Ok(Line::Message(Message::Processes(ids))) => {
                duties.processes = ids.iter().filter_map(|id| id.parse().ok()).collect();
            }
            Ok(Line::Message(Message::Epolls(notes))) => {
                duties.epolls = notes.iter().filter_map(|note| note.parse().ok()).collect();
            }
            Ok(Line::Message(Message::Datapath { pid, changes })) => duties.datapath = Some((pid, changes)),
            Ok(Line::Message(Message::Dismiss)) => return Ok(()),
            Err(_) => {}
        }
    }
    // The pipe of a killed process closes a moment before the process ends, and until then its journal counts as in use.
    let closed = Instant::now();
    while guarded.runs() && closed.elapsed() < TERMINATION_LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    duties.perform(journals)
}

impl Duties {
    /// Ends the processes and restores the settings. Returns the first error, after everything was tried.
    fn perform(self, journals: &Path) -> Result<(), GuardError> {
        end(&self.processes);
        let epolls: Vec<ProcessError> = self.epolls.iter().filter_map(|note| note.put_back().err()).collect();
        let datapath = self.datapath.map_or(Ok(()), |(pid, changes)| restore_datapath(pid, &changes));
        restore_abandoned(journals, Path::new(RUNTIME_UNITS))?;
        datapath?;
        epolls.into_iter().next().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Restores the datapaths of a process, unless it has ended.
fn restore_datapath(pid: u32, changes: &[Change]) -> Result<(), ControlError> {
    let clients = match control::find() {
        Err(ControlError::NoDirectory) => return Ok(()),
        clients => clients?,
    };
    clients
        .iter()
        .flatten()
        .filter(|client| client.local_pid() == Some(pid))
        .try_for_each(|client| make_changes(client, changes))
}

/// Makes changes to a datapath, as far as it does not end meanwhile.
///
/// # Errors
/// It refused one.
pub fn make_changes(client: &Client, changes: &[Change]) -> Result<(), ControlError> {
    for change in changes {
        match client.set(change.clone()) {
            Err(ControlError::Gone { .. }) => return Ok(()),
            other => drop(other?),
        }
    }
    Ok(())
}

/// Ends a program that has lost its supervisor.
///
/// Sends SIGTERM as the supervisor would have, first to `processes`, then to those that they leave behind; and SIGKILL to
/// what still runs after [`TERMINATION_LIMIT`].
fn end(processes: &[ProcessId]) {
    let mut left: BTreeSet<ProcessId> = processes.iter().copied().filter(|process| process.runs()).collect();
    let below: Vec<ProcessId> = left.iter().flat_map(|process| process.descendants()).collect();
    left.iter().for_each(|process| process.send(Signal::SIGTERM));
    left.extend(below);
    let mut all_asked = false;
    let since = Instant::now();
    while since.elapsed() < TERMINATION_LIMIT {
        left.retain(|process| process.runs());
        if left.is_empty() {
            return;
        }
        if !all_asked && processes.iter().all(|process| !left.contains(process)) {
            left.iter().for_each(|process| process.send(Signal::SIGTERM));
            all_asked = true;
        }
        let below: Vec<ProcessId> = left.iter().flat_map(|process| process.descendants()).collect();
        left.extend(below);
        std::thread::sleep(Duration::from_millis(20));
    }
    left.iter().filter(|process| process.runs()).for_each(|process| process.send(Signal::SIGKILL));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbers_of_processes_or_messages() {
        assert!(matches!(serde_json::from_str("42"), Ok(Line::Announced(42))));
        let text = serde_json::to_string(&Line::Message(Message::Processes(vec!["1:2".to_owned()]))).expect("JSON");
        assert!(matches!(serde_json::from_str(&text), Ok(Line::Message(Message::Processes(ids))) if ids == ["1:2"]));
        let text = serde_json::to_string(&Line::Message(Message::Dismiss)).expect("JSON");
        assert!(matches!(serde_json::from_str(&text), Ok(Line::Message(Message::Dismiss))), "{text}");
        assert!(serde_json::from_str::<Line>("done").is_err());
    }

    #[test]
    fn a_process_is_its_number_and_its_start() {
        let own = ProcessId::of(std::process::id()).expect("this process");
        assert_eq!(own.to_string().parse(), Ok(own));
        assert!(own.runs() && !ProcessId { started: own.started + 1, ..own }.runs());
        assert!("12".parse::<ProcessId>().is_err());
    }
}
