//! Checks while a program runs whether its mode has reached the sockets of each of its processes.
//!
//! One check a second: the listeners of the network namespace (four netlink requests), and for each process its name and the
//! system calls of its threads. Descriptors are resolved only where one of these has changed. A process is reported when two
//! checks in a row find the same, so that a server that is just starting is not.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use abey_datapath::control::{self, ControlError, MAX_SOCKETS, SocketPage};
use abey_linux::engagement::{
    DatapathSockets, Library, Needs, NotEngaged, ProcessFacts, Reason, is_sandboxed, judge, library_of, read,
};
use abey_linux::listeners::{Listener, ListenerReader};
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNs;
use abey_linux::process::{self, ProcessError, Protocol};

use crate::broker::Claim;

/// Time between two checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time until the first check, and until a process that was found is checked again.
const CONFIRMATION: Duration = Duration::from_millis(200);

/// What is not checked.
#[derive(Debug, Default)]
pub struct Exceptions {
    /// Names of programs.
    pub programs: Vec<String>,
    /// The file of a program that was reported to be without the library when it was started.
    pub reported: Option<PathBuf>,
}

/// The checks of one program.
#[derive(Debug)]
pub struct EngagementCheck {
    needs: Needs,
    exceptions: Exceptions,
    reader: ListenerReader,
    network_namespace: u64,
    listeners: BTreeMap<u64, Listener>,
    processes: BTreeMap<u32, Known>,
    next: Instant,
    /// What was returned, without the process IDs: workers that have the same problem are reported once.
    reported: BTreeSet<(String, String)>,
}

/// What is known of one process.
#[derive(Debug)]
struct Known {
    started: u64,
    comm: String,
    is_excepted: bool,
    calls: BTreeMap<u32, String>,
    datapath: DatapathSockets,
    /// What the last check found.
    found: Option<NotEngaged>,
}

impl EngagementCheck {
    /// Begins the checks of a program that has just been started in `netns`.
    ///
    /// # Errors
    /// The namespace cannot be entered, or the kernel has no socket diagnostics.
    pub fn begin(needs: Needs, exceptions: Exceptions, netns: &NetNs) -> Result<Self, NetlinkError> {
        Ok(Self {
            needs,
            exceptions,
            reader: ListenerReader::open(netns)?,
            network_namespace: netns.inode(),
            listeners: BTreeMap::new(),
            processes: BTreeMap::new(),
            next: Instant::now() + CONFIRMATION,
            reported: BTreeSet::new(),
        })
    }

    /// Checks the program's processes if it is time to. Returns what the mode has not reached, each once, and the time until
    /// the next check. `claim` returns what the broker has given to a process.
    ///
    /// # Errors
    /// The listeners cannot be read any more.
    pub fn check(
        &mut self,
        members: &[u32],
        claim: impl Fn(u32) -> Claim,
    ) -> Result<(Vec<NotEngaged>, Duration), NetlinkError> {
        let left = self.next.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            return Ok((Vec::new(), left));
        }
        let listeners = self.reader.read()?;
        let have_changed = listeners != self.listeners;
        self.listeners = listeners;
        self.processes.retain(|pid, _| members.contains(pid));
        let mut found = Vec::new();
        for pid in members {
            // A process that ends meanwhile, or that this user may not trace, is not judged.
            if let Ok(Some(one)) = self.check_process(*pid, have_changed, claim(*pid)) {
                found.push(one);
            }
        }
        found.retain(|one| self.reported.insert((one.comm.clone(), one.cause())));
        let is_pending = self.processes.values().any(|known| {
            known.found.as_ref().is_some_and(|one| !self.reported.contains(&(one.comm.clone(), one.cause())))
        });
        let pause = if is_pending { CONFIRMATION } else { INTERVAL };
        self.next = Instant::now() + pause;
        Ok((found, pause))
    }

    /// Returns what two checks in a row have found of a process.
    fn check_process(&mut self, pid: u32, is_changed: bool, claim: Claim) -> Result<Option<NotEngaged>, ProcessError> {
        let Some((started, comm)) = process::identity(pid) else { return Ok(None) };
        let is_known = self.processes.get(&pid).is_some_and(|known| known.started == started && known.comm == comm);
        if !is_known {
            let is_excepted = self.is_excepted(pid, &comm);
            let known = Known {
                started,
                comm,
                is_excepted,
                calls: BTreeMap::new(),
                datapath: DatapathSockets::None,
                found: None,
            };
            self.processes.insert(pid, known);
        }
        let Some(known) = self.processes.get_mut(&pid) else { return Ok(None) };
        // The broker has reported a process that it gave no queue.
        if known.is_excepted || claim == Claim::Refused || serves_all(&self.needs, &known.datapath, &self.listeners) {
            known.found = None;
            return Ok(None);
        }
        let calls = process::blocked_calls(pid)?;
        if calls == known.calls && !is_changed && known.found.is_none() {
            return Ok(None);
        }
        let found = known.judge(pid, &self.needs, &self.listeners, &calls, claim)?;
        known.calls = calls;
        let found = found.filter(|one| !is_reported_already(&self.exceptions, one));
        let is_confirmed = found.is_some() && found == known.found;
        known.found.clone_from(&found);
        Ok(found.filter(|_| is_confirmed))
    }

    /// Returns whether a process is in another network namespace, or has the name of a program that is not checked.
    fn is_excepted(&self, pid: u32, comm: &str) -> bool {
        const COMM_BYTES: usize = 15;
        let netns = std::fs::metadata(format!("/proc/{pid}/ns/net"));
        let is_elsewhere = netns.is_ok_and(|found| found.ino() != self.network_namespace);
        let file = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let file = file.as_deref().and_then(|path| path.file_name()?.to_str());
        let is_named =
            |name: &String| comm.as_bytes() == &name.as_bytes()[..name.len().min(COMM_BYTES)] || file == Some(name);
        is_elsewhere || self.exceptions.programs.iter().any(is_named)
    }
}

impl Known {
    fn judge(
        &mut self,
        pid: u32,
        needs: &Needs,
        listeners: &BTreeMap<u64, Listener>,
        calls: &BTreeMap<u32, String>,
        claim: Claim,
    ) -> Result<Option<NotEngaged>, ProcessError> {
        let waits = read(pid, needs, listeners, calls.values())?;
        if waits.is_empty() {
            return Ok(None);
        }
        let datapath = self.datapath.clone();
        let mut facts = ProcessFacts { pid, comm: self.comm.clone(), library: library_of(pid), waits, datapath };
        let found = judge(needs, &facts);
        if found.is_none() || facts.library == Library::Loaded && is_sandboxed(pid) {
            return Ok(None);
        }
        if !matches!(needs, Needs::Datapath { .. }) {
            return Ok(found);
        }
        // Read after the waits: a process that began to wait before its datapath listened is found to have it.
        facts.datapath = datapath_of(pid, claim);
        self.datapath.clone_from(&facts.datapath);
        Ok(judge(needs, &facts))
    }
}

/// Returns whether a process's datapath serves every listener of the namespace that it could.
fn serves_all(needs: &Needs, datapath: &DatapathSockets, listeners: &BTreeMap<u64, Listener>) -> bool {
    *datapath != DatapathSockets::None
        && listeners.values().filter(|one| needs.concern(one)).all(|one| datapath.serve(one.protocol, one.local))
}

fn is_reported_already(exceptions: &Exceptions, found: &NotEngaged) -> bool {
    let Some(program) = &exceptions.reported else { return false };
    let without_library = matches!(found.reason, Reason::NoLibrary(Library::Static | Library::Privileged));
    without_library && std::fs::read_link(format!("/proc/{}/exe", found.pid)).is_ok_and(|file| file == *program)
}

/// Returns the sockets of a process's datapath that accept new peers.
fn datapath_of(pid: u32, claim: Claim) -> DatapathSockets {
    let without_answer = if claim == Claim::Granted { DatapathSockets::Unknown } else { DatapathSockets::None };
    let clients = match control::find() {
        Ok(clients) => clients,
        Err(ControlError::NoDirectory) => return without_answer,
        Err(_) => return DatapathSockets::Unknown,
    };
    for client in clients {
        match client {
            Ok(client) if client.local_pid() == Some(pid) => {
                return client.sockets(MAX_SOCKETS).map_or(DatapathSockets::Unknown, |pages| listening(&pages));
            }
            Err(unreachable) if unreachable.pid == pid => return DatapathSockets::Unknown,
            _ => {}
        }
    }
    without_answer
}

fn listening(pages: &[SocketPage]) -> DatapathSockets {
    if pages.iter().any(|page| page.more > 0) {
        return DatapathSockets::Unknown;
    }
    let sockets = pages.iter().flat_map(|page| &page.sockets);
    let listeners = sockets.filter(|socket| socket.remote.is_none()).map(|socket| {
        let protocol = if socket.transport == "udp" { Protocol::Udp } else { Protocol::Tcp };
        (protocol, socket.local)
    });
    DatapathSockets::Listening(listeners.collect())
}
