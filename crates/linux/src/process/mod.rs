//! Looks into a running process: its threads and children, its sockets, its epoll instances and what they receive from.
//!
//! Everything is read from `/proc/<pid>`, so a process in any network namespace can be looked at. Two things `/proc` does
//! not tell, the busy poll parameters of an epoll instance and the NAPI ID of a socket, are asked on a duplicate of the
//! process's descriptor made with `pidfd_getfd(2)` (Linux 5.6) and closed at once. The process is not stopped and none of
//! its settings are changed, but by [`EpollChanges`]. (While a duplicate exists, for some microseconds, a `close` in the process does not yet
//! release the socket; and the kernel stamps a duplicated socket with the net_cls cgroup of the caller, where that old
//! controller is in use.)

mod epolls;
mod parameters;
mod sockets;
mod tree;

pub use epolls::{EpollParams, EpollView};
pub use parameters::{EpollChanges, EpollNote};
pub use sockets::{Protocol, SocketState, SocketView};
pub use tree::{descendants, start_time, threads, tree_threads};

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use procfs::ProcError;
use procfs::process::{FDTarget, Process};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

/// Why a process could not be looked into.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// There is no such process, or it exited meanwhile.
    #[error("no process {0}; it may have exited")]
    NoProcess(u32),
    /// The number is that of a thread.
    #[error("{tid} is a thread of process {pid}; give the process")]
    IsThread {
        /// The number given.
        tid: u32,
        /// The process it belongs to.
        pid: u32,
    },
    /// The caller may not look.
    #[error("looking at {what} of process {pid} is not permitted; run as root, or with CAP_SYS_PTRACE")]
    NoPermission {
        /// The process.
        pid: u32,
        /// At what.
        what: &'static str,
    },
    /// The kernel cannot duplicate another process's descriptors.
    #[error("this kernel has no pidfd_getfd (Linux 5.6), without which a process's sockets cannot be looked at")]
    NoPidfd,
    /// Something could not be read.
    #[error("cannot read {what} of process {pid}: {reason}")]
    Read {
        /// The process.
        pid: u32,
        /// What was read.
        what: &'static str,
        /// The reason.
        reason: String,
    },
}

/// A thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadView {
    /// Its number.
    pub tid: u32,
    /// Its name, up to 15 bytes.
    pub comm: String,
}

/// One process at one moment. Its parts are read one after the other while it runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessView {
    /// Its number.
    pub pid: u32,
    /// The process that created it (or adopted it).
    pub parent: u32,
    /// Its name, up to 15 bytes.
    pub comm: String,
    /// The inode number of its network namespace: equal for two processes in the same one.
    pub network_namespace: u64,
    /// Its threads, by number.
    pub threads: Vec<ThreadView>,
    /// Its children, by number.
    pub children: Vec<u32>,
    /// Its TCP and UDP sockets, by descriptor.
    pub sockets: Vec<SocketView>,
    /// Its epoll instances, by descriptor.
    pub epolls: Vec<EpollView>,
}

impl ProcessView {
    /// Sockets that take new peers: TCP sockets that listen, UDP sockets that are bound and not connected.
    pub fn listeners(&self) -> impl Iterator<Item = &SocketView> {
        self.sockets.iter().filter(|s| s.state == SocketState::Listening)
    }

    /// The addresses of [`ProcessView::listeners`], each once.
    #[must_use]
    pub fn listening_addresses(&self) -> Vec<SocketAddr> {
        let mut all: Vec<_> = self.listeners().map(|s| s.local).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The NAPI IDs its connected sockets received from last, each with the number of sockets.
    #[must_use]
    pub fn napi_ids(&self) -> BTreeMap<u32, usize> {
        let mut all = BTreeMap::new();
        for id in self.sockets.iter().filter_map(|s| s.napi_id) {
            *all.entry(id).or_default() += 1;
        }
        all
    }
}

/// Looks into process `pid`.
///
/// # Errors
/// [`ProcessError`]; what comes and goes *within* the process while it is looked at is no error.
pub fn inspect(pid: u32) -> Result<ProcessView, ProcessError> {
    let parents = tree::parents()?;
    Target::open(pid)?.view(&parents).map(|(view, _)| view)
}

/// Looks into process `pid` and all its descendants, itself first. Descendants that exit meanwhile are left out. Epoll
/// instances that several descriptors share (after a fork, or `dup`) are found: see [`EpollView::shared_with`].
///
/// # Errors
/// As [`inspect`], for any of the processes.
pub fn inspect_tree(pid: u32) -> Result<Vec<ProcessView>, ProcessError> {
    let parents = tree::parents()?;
    let mut views = Vec::new();
    let mut instances = Vec::new();
    for member in std::iter::once(pid).chain(tree::below(pid, &parents)) {
        match Target::open(member).and_then(|target| target.view(&parents)) {
            Ok((view, fds)) => {
                views.push(view);
                instances.push(fds);
            }
            Err(ProcessError::NoProcess(gone)) if gone != pid => {}
            Err(e) => return Err(e),
        }
    }
    epolls::find_shared(&mut views, &instances)?;
    Ok(views)
}

/// A process held by a pidfd, so that its number cannot come to mean another one unnoticed.
struct Target {
    pid: u32,
    pidfd: OwnedFd,
    proc: Process,
}

impl Target {
    fn open(pid: u32) -> Result<Self, ProcessError> {
        let gone = ProcessError::NoProcess(pid);
        let Ok(raw) = i32::try_from(pid) else { return Err(gone) };
        let Some(number) = Pid::from_raw(raw) else { return Err(gone) };
        let proc = Process::new(raw).map_err(|e| explain(pid, "the directory in /proc", e))?;
        let leader = proc.status().map_err(|e| explain(pid, "the status", e))?.tgid as u32;
        // A process that is just being taken away belongs to nobody.
        if leader == 0 {
            return Err(gone);
        }
        if leader != pid {
            return Err(ProcessError::IsThread { tid: pid, pid: leader });
        }
        let pidfd = rustix::process::pidfd_open(number, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => gone,
            Errno::NOSYS => ProcessError::NoPidfd,
            other => ProcessError::Read { pid, what: "the pidfd", reason: other.to_string() },
        })?;
        Ok(Self { pid, pidfd, proc })
    }

    /// The view, and the duplicates of its epoll instances in the same order as [`ProcessView::epolls`].
    fn view(&self, parents: &BTreeMap<u32, u32>) -> Result<(ProcessView, Vec<OwnedFd>), ProcessError> {
        match self.try_view(parents) {
            // Whatever failed or was read once the process was gone says nothing about it.
            _ if self.exited() => Err(ProcessError::NoProcess(self.pid)),
            other => other,
        }
    }

    fn try_view(&self, parents: &BTreeMap<u32, u32>) -> Result<(ProcessView, Vec<OwnedFd>), ProcessError> {
        let stat = self.proc.stat().map_err(|e| explain(self.pid, "the status", e))?;
        // Not through the procfs crate, which takes a process that is just exiting for a bug of its own.
        let network = std::fs::metadata(format!("/proc/{}/ns/net", self.pid))
            .map_err(|e| explain_io(self.pid, "the network namespace", &e))?;
        let fds = self.descriptors()?;
        let sockets = sockets::view(self, &fds)?;
        let (epolls, duplicates) = epolls::view(self, &fds, &sockets)?;
        let view = ProcessView {
            pid: self.pid,
            parent: stat.ppid as u32,
            comm: stat.comm,
            network_namespace: network.ino(),
            threads: tree::thread_views(self.pid)?,
            children: parents.iter().filter(|&(_, parent)| *parent == self.pid).map(|(&child, _)| child).collect(),
            sockets,
            epolls,
        };
        Ok((view, duplicates))
    }

    fn descriptors(&self) -> Result<BTreeMap<i32, FDTarget>, ProcessError> {
        let fds = self.proc.fd().map_err(|e| explain(self.pid, "the descriptors", e))?;
        // One that cannot be read was closed since the directory was.
        Ok(fds.filter_map(|fd| fd.ok().map(|fd| (fd.fd, fd.target))).collect())
    }

    /// A duplicate of the process's descriptor `fd`, or `None` when it was closed meanwhile.
    fn duplicate(&self, fd: i32) -> Result<Option<OwnedFd>, ProcessError> {
        match rustix::process::pidfd_getfd(&self.pidfd, fd, PidfdGetfdFlags::empty()) {
            Ok(duplicate) => Ok(Some(duplicate)),
            Err(Errno::BADF) => Ok(None),
            Err(Errno::SRCH) => Err(ProcessError::NoProcess(self.pid)),
            Err(Errno::PERM | Errno::ACCESS) => {
                Err(ProcessError::NoPermission { pid: self.pid, what: "a duplicate of a descriptor" })
            }
            Err(Errno::NOSYS) => Err(ProcessError::NoPidfd),
            Err(other) => Err(self.unreadable("a duplicate of a descriptor", &other.to_string())),
        }
    }

    fn exited(&self) -> bool {
        let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        nix::poll::poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    fn unreadable(&self, what: &'static str, reason: &str) -> ProcessError {
        ProcessError::Read { pid: self.pid, what, reason: reason.into() }
    }
}

fn explain(pid: u32, what: &'static str, error: ProcError) -> ProcessError {
    match error {
        ProcError::NotFound(_) => ProcessError::NoProcess(pid),
        ProcError::PermissionDenied(_) => ProcessError::NoPermission { pid, what },
        ProcError::Io(e, _) => explain_io(pid, what, &e),
        other => ProcessError::Read { pid, what, reason: other.to_string() },
    }
}

fn explain_io(pid: u32, what: &'static str, error: &io::Error) -> ProcessError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => ProcessError::NoProcess(pid),
        Some(libc::EACCES | libc::EPERM) => ProcessError::NoPermission { pid, what },
        _ => ProcessError::Read { pid, what, reason: error.to_string() },
    }
}
