//! Gathers the facts of a process: resolves the descriptors that its threads wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;

use procfs::process::FDTarget;

use super::{Library, Needs, ServedSocket, Wait};
use crate::library::FILE_NAME;
use crate::listeners::Listener;
use crate::process::{self, EpollParams, ProcessError, Protocol, SocketState, Target, ThreadWait, WaitCall};

/// The most descriptors of one wait that are examined for connections: threads that wait for more serve them alike.
const MAX_CONNECTIONS: usize = 16;

/// Reads the waits of process `pid` that are [suspect](super::suspect), of the calls that
/// [`blocked_calls`](process::blocked_calls) returned. `listeners` are those of the network namespace of the process, by inode.
///
/// # Errors
/// [`ProcessError`]. Descriptors that are closed meanwhile are no error.
pub fn read<'a>(
    pid: u32,
    needs: &Needs,
    listeners: &BTreeMap<u64, Listener>,
    calls: impl IntoIterator<Item = &'a String>,
) -> Result<Vec<Wait>, ProcessError> {
    let reader = Reader { target: Target::open(pid)?, pid, needs, listeners };
    let mut waits = Vec::new();
    let distinct: BTreeSet<(WaitCall, Vec<i32>)> =
        calls.into_iter().filter_map(|text| process::wait_of(pid, text)).map(|wait| (wait.call, wait.fds)).collect();
    for (call, fds) in distinct {
        let wait = reader.wait(&ThreadWait { call, fds })?;
        if super::suspect(needs, &wait) {
            waits.push(wait);
        }
    }
    Ok(waits)
}

struct Reader<'a> {
    target: Target,
    pid: u32,
    needs: &'a Needs,
    listeners: &'a BTreeMap<u64, Listener>,
}

impl Reader<'_> {
    fn wait(&self, wait: &ThreadWait) -> Result<Wait, ProcessError> {
        let mut found = Wait { call: wait.call, epoll: None, ring_polls: false, sockets: Vec::new() };
        let mut members = BTreeMap::new();
        match wait.call {
            WaitCall::Epoll => {
                let Some(fd) = wait.fds.first() else { return Ok(found) };
                found.epoll = self.epoll_parameters(*fd)?;
                // What it waits for matters only if the instance has no parameters.
                if matches!(self.needs, Needs::Epoll) && found.epoll != Some(EpollParams::Unset) {
                    return Ok(found);
                }
                members = self.members(*fd);
            }
            WaitCall::IoUring => {
                let fds = self.target.descriptors()?;
                found.ring_polls = fds.iter().any(|(fd, kind)| is_named(kind, "io_uring") && self.ring_polls(*fd));
                members = self.outside_epolls(&fds);
            }
            WaitCall::Poll | WaitCall::Select | WaitCall::Accept | WaitCall::Receive => {
                for fd in &wait.fds {
                    match self.link(*fd) {
                        Some(FDTarget::Socket(inode)) => drop(members.insert(inode, *fd)),
                        Some(kind) if is_named(&kind, "eventpoll") => members.extend(self.members(*fd)),
                        _ => {}
                    }
                }
            }
        }
        found.sockets = self.sockets(&members)?;
        Ok(found)
    }

    /// Returns those of these sockets that the mode concerns: listeners, or if there is none, accepted connections.
    fn sockets(&self, members: &BTreeMap<u64, i32>) -> Result<Vec<ServedSocket>, ProcessError> {
        let mut sockets = BTreeSet::new();
        for (inode, fd) in members {
            let Some(listener) = self.listeners.get(inode).filter(|one| self.needs.concern(one)) else { continue };
            let (protocol, local) = (listener.protocol, listener.local);
            sockets.insert(ServedSocket { protocol, local, is_listener: true, busy_polls: self.busy_polls(*fd)? });
        }
        if sockets.is_empty() {
            for (inode, fd) in
                members.iter().filter(|(inode, _)| !self.listeners.contains_key(inode)).take(MAX_CONNECTIONS)
            {
                sockets.extend(self.connection(*inode, *fd)?);
            }
        }
        Ok(sockets.into_iter().collect())
    }

    /// Returns the socket if it is a TCP connection that a listener of this namespace has accepted, from another machine.
    fn connection(&self, inode: u64, fd: i32) -> Result<Option<ServedSocket>, ProcessError> {
        let fds = BTreeMap::from([(fd, FDTarget::Socket(inode))]);
        let Some(view) = process::sockets_of(&self.target, &fds)?.pop() else { return Ok(None) };
        let (Protocol::Tcp, SocketState::Connected, Some(remote)) = (view.protocol, view.state, view.remote) else {
            return Ok(None);
        };
        let (local, remote) = (view.local.ip().to_canonical(), remote.ip().to_canonical());
        let is_of = |listener: &Listener| {
            let at = listener.local.ip();
            let overlaps = at == local || at.is_unspecified();
            listener.protocol == Protocol::Tcp && listener.local.port() == view.local.port() && overlaps
        };
        let is_accepted = self.listeners.values().any(|one| is_of(one) && self.needs.concern(one));
        let is_reached = match self.needs {
            Needs::Datapath { addresses, .. } => addresses.contains(&local) && !addresses.contains(&remote),
            _ => !local.is_loopback() && remote != local,
        };
        let local = std::net::SocketAddr::new(local, view.local.port());
        Ok((is_accepted && is_reached).then_some(ServedSocket {
            protocol: Protocol::Tcp,
            local,
            is_listener: false,
            busy_polls: self.busy_polls(fd)?,
        }))
    }

    /// Returns whether a socket has SO_BUSY_POLL. Read only where the mode needs it.
    fn busy_polls(&self, fd: i32) -> Result<bool, ProcessError> {
        if *self.needs != Needs::SocketBusyPoll {
            return Ok(false);
        }
        let duplicate = self.target.duplicate(fd)?;
        // The descriptor was closed meanwhile: what it was does not matter any more.
        Ok(duplicate.is_none_or(|socket| process::busy_polls(&socket)))
    }

    fn epoll_parameters(&self, fd: i32) -> Result<Option<EpollParams>, ProcessError> {
        let Some(duplicate) = self.target.duplicate(fd)? else { return Ok(None) };
        process::epoll_params(&self.target, &duplicate)
    }

    /// Returns the sockets that an epoll instance watches, by inode, with the descriptor at the time of EPOLL_CTL_ADD.
    fn members(&self, epoll: i32) -> BTreeMap<u64, i32> {
        let text = fs::read_to_string(format!("/proc/{}/fdinfo/{epoll}", self.pid)).unwrap_or_default();
        text.lines().filter_map(process::epoll_member).collect()
    }

    /// Returns the sockets that no epoll instance of the process watches.
    fn outside_epolls(&self, fds: &BTreeMap<i32, FDTarget>) -> BTreeMap<u64, i32> {
        let epolls = fds.iter().filter(|(_, kind)| is_named(kind, "eventpoll"));
        let watched: BTreeSet<u64> = epolls.flat_map(|(fd, _)| self.members(*fd).into_keys()).collect();
        let socket = |(fd, kind): (&i32, &FDTarget)| match kind {
            FDTarget::Socket(inode) if !watched.contains(inode) => Some((*inode, *fd)),
            _ => None,
        };
        fds.iter().filter_map(socket).collect()
    }

    fn ring_polls(&self, ring: i32) -> bool {
        let text = fs::read_to_string(format!("/proc/{}/fdinfo/{ring}", self.pid)).unwrap_or_default();
        text.lines().filter_map(|line| line.strip_prefix("NAPI:")).any(|state| state.trim() == "enabled")
    }

    fn link(&self, fd: i32) -> Option<FDTarget> {
        fs::read_link(format!("/proc/{}/fd/{fd}", self.pid)).ok()?.to_str()?.parse().ok()
    }
}

fn is_named(kind: &FDTarget, name: &str) -> bool {
    matches!(kind, FDTarget::AnonInode(found) if found.contains(name))
}

/// Returns whether the library is in process `pid` and may act there, and if not, why.
#[must_use]
pub fn library_of(pid: u32) -> Library {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    if maps.lines().any(|line| line.ends_with(&format!("/{FILE_NAME}"))) {
        return if is_secure(pid) { Library::Privileged } else { Library::Loaded };
    }
    if has_no_loader(pid) {
        return Library::Static;
    }
    if is_secure(pid) { Library::Privileged } else { Library::Missing }
}

/// Returns whether process `pid` has seccomp filters that this process has not. The library then reports what it cannot do there.
#[must_use]
pub fn is_sandboxed(pid: u32) -> bool {
    filters(&format!("/proc/{pid}/status")) > filters("/proc/self/status")
}

/// Returns the number of seccomp filters in a status file (Linux 5.9; before, whether there is any).
fn filters(status: &str) -> u32 {
    let text = fs::read_to_string(status).unwrap_or_default();
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    value("Seccomp_filters:").or_else(|| value("Seccomp:")).unwrap_or(0)
}

/// Returns whether the program was started without a dynamic loader: the kernel then has no base address of one (`AT_BASE`).
fn has_no_loader(pid: u32) -> bool {
    auxiliary(pid, libc::AT_BASE) == Some(0)
}

fn is_secure(pid: u32) -> bool {
    auxiliary(pid, libc::AT_SECURE) == Some(1)
}

/// Returns a value of the auxiliary vector (getauxval(3)); `None` if the process cannot be read.
fn auxiliary(pid: u32, key: libc::c_ulong) -> Option<libc::c_ulong> {
    const WORD: usize = size_of::<libc::c_ulong>();
    let mut bytes = Vec::new();
    fs::File::open(format!("/proc/{pid}/auxv")).ok()?.read_to_end(&mut bytes).ok()?;
    let word = |bytes: &[u8]| libc::c_ulong::from_ne_bytes(bytes.try_into().expect("a word"));
    let mut pairs = bytes.chunks_exact(2 * WORD).map(|pair| (word(&pair[..WORD]), word(&pair[WORD..])));
    pairs.find(|(found, _)| *found == key).map(|(_, value)| value)
}
