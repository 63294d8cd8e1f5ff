//! Inspection of a running process: its threads and children, its sockets, its epoll instances and their NAPI instances.
//!
//! Most of it is read from `/proc/<pid>`, so a process in any network namespace can be inspected. `/proc` has neither the busy
//! poll parameters of an epoll instance nor the NAPI ID of a socket: these are read from a duplicate of the process's
//! descriptor, made with `pidfd_getfd(2)` (Linux 5.6) and closed at once. The process is not stopped, and only
//! [`EpollChanges`] changes its settings. (While a duplicate exists, for some microseconds, a `close` in the process does not
//! yet release the socket; and where the old net_cls controller is in use, the kernel assigns a duplicated socket to the
//! caller's cgroup.)

mod epolls;
mod parameters;
mod sockets;
mod tree;
mod waits;

pub use epolls::{EpollParams, EpollView};
pub(crate) use epolls::{member as epoll_member, params as epoll_params};
pub use parameters::{EpollChanges, EpollNote};
pub use sockets::{Protocol, SocketState, SocketView};
pub(crate) use sockets::{busy_polls, view as sockets_of};
pub use tree::{descendants, descendants_by_parent, identity, start_time, threads, tree_threads};
pub use waits::{ThreadWait, WaitCall, blocked_calls, wait_of};

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use abey_text::visible;
use procfs::ProcError;
use procfs::process::{FDTarget, Process};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

/// Why a process could not be inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// There is no such process, or it exited meanwhile.
    #[error("no process {0}; it may have exited")]
    NoProcess(u32),
    /// The ID is that of a thread.
    #[error("{tid} is a thread of process {pid}; give the process")]
    IsThread {
        /// The ID of the thread.
        tid: u32,
        /// The process it belongs to.
        pid: u32,
    },
    /// The caller lacks the privilege.
    #[error("reading {what} of process {pid} is not permitted; run as root, or with CAP_SYS_PTRACE")]
    NoPermission {
        /// The process.
        pid: u32,
        /// What was read.
        what: &'static str,
    },
    /// The kernel cannot duplicate the descriptors of another process.
    #[error("this kernel has no pidfd_getfd (Linux 5.6), without which the sockets of a process cannot be read")]
    NoPidfd,
    /// A value could not be read.
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
    /// Its ID.
    pub tid: u32,
    /// Its name, up to 15 bytes, with control characters made visible.
    pub comm: String,
}

/// One process. Its parts are read one after the other while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessView {
    /// Its ID.
    pub pid: u32,
    /// The process that created it (or adopted it).
    pub parent: u32,
    /// Its name, up to 15 bytes.
    pub comm: String,
    /// The inode number of its network namespace: equal for two processes in the same one.
    pub network_namespace: u64,
    /// Its threads, by ID.
    pub threads: Vec<ThreadView>,
    /// Its children, by ID.
    pub children: Vec<u32>,
    /// Its TCP and UDP sockets, by descriptor.
    pub sockets: Vec<SocketView>,
    /// Its epoll instances, by descriptor.
    pub epolls: Vec<EpollView>,
}

impl ProcessView {
    /// Returns the sockets that accept new peers: listening TCP sockets, and UDP sockets that are bound and not connected.
    pub fn listeners(&self) -> impl Iterator<Item = &SocketView> {
        self.sockets.iter().filter(|s| s.state == SocketState::Listening)
    }

    /// Returns the addresses of [`ProcessView::listeners`], each once.
    #[must_use]
    pub fn listening_addresses(&self) -> Vec<SocketAddr> {
        let mut all: Vec<_> = self.listeners().map(|s| s.local).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the NAPI IDs that its sockets received their last packets from, each with the number of sockets.
    #[must_use]
    pub fn napi_ids(&self) -> BTreeMap<u32, usize> {
        let mut all = BTreeMap::new();
        for id in self.sockets.iter().filter_map(|s| s.napi_id) {
            *all.entry(id).or_default() += 1;
        }
        all
    }
}

/// Inspects process `pid`.
///
/// # Errors
/// [`ProcessError`]. Threads, sockets and epoll instances that come and go meanwhile are no error.
pub fn inspect(pid: u32) -> Result<ProcessView, ProcessError> {
    let parents = tree::parents()?;
    Target::open(pid)?.view(&parents).map(|(view, _)| view)
}

/// Inspects process `pid` and all its descendants, itself first. Descendants that exit meanwhile are omitted. Epoll instances
/// with several descriptors (after a fork, or `dup`) are detected: see [`EpollView::shared_with`].
///
/// # Errors
/// Those of [`inspect`], for any of the processes.
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
            Err(ProcessError::NoProcess(ended)) if ended != pid => {}
            Err(e) => return Err(e),
        }
    }
    epolls::find_shared(&mut views, &instances)?;
    Ok(views)
}

/// A process with its pidfd, so that a reuse of its ID is noticed.
pub(crate) struct Target {
    pid: u32,
    pidfd: OwnedFd,
    proc: Process,
}

impl Target {
    pub(crate) fn open(pid: u32) -> Result<Self, ProcessError> {
        let no_process = ProcessError::NoProcess(pid);
        let Ok(raw) = i32::try_from(pid) else { return Err(no_process) };
        let Some(number) = Pid::from_raw(raw) else { return Err(no_process) };
        let proc = Process::new(raw).map_err(|e| explain(pid, "the directory in /proc", e))?;
        let leader = proc.status().map_err(|e| explain(pid, "the status", e))?.tgid as u32;
        // The kernel reports 0 for a process that is being reaped.
        if leader == 0 {
            return Err(no_process);
        }
        if leader != pid {
            return Err(ProcessError::IsThread { tid: pid, pid: leader });
        }
        let pidfd = rustix::process::pidfd_open(number, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => no_process,
            Errno::NOSYS => ProcessError::NoPidfd,
            other => ProcessError::Read { pid, what: "the pidfd", reason: other.to_string() },
        })?;
        // As long as the process of the directory exists, which was opened first, no other has its ID.
        proc.stat().map_err(|_| ProcessError::NoProcess(pid))?;
        Ok(Self { pid, pidfd, proc })
    }

    /// Returns the view, and the duplicates of its epoll instances in the order of [`ProcessView::epolls`].
    fn view(&self, parents: &BTreeMap<u32, u32>) -> Result<(ProcessView, Vec<OwnedFd>), ProcessError> {
        match self.try_view(parents) {
            // Results obtained after the process exited are meaningless.
            _ if self.exited() => Err(ProcessError::NoProcess(self.pid)),
            other => other,
        }
    }

    fn try_view(&self, parents: &BTreeMap<u32, u32>) -> Result<(ProcessView, Vec<OwnedFd>), ProcessError> {
        let stat = self.proc.stat().map_err(|e| explain(self.pid, "the status", e))?;
        // Not through the procfs crate, which reports a process that is just exiting as an internal error.
        let network = std::fs::metadata(format!("/proc/{}/ns/net", self.pid))
            .map_err(|e| explain_io(self.pid, "the network namespace", &e))?;
        let fds = self.descriptors()?;
        let sockets = sockets::view(self, &fds)?;
        let (epolls, duplicates) = epolls::view(self, &fds, &sockets)?;
        let view = ProcessView {
            pid: self.pid,
            parent: stat.ppid as u32,
            comm: visible(&stat.comm).into_owned(),
            network_namespace: network.ino(),
            threads: tree::thread_views(self.pid)?,
            children: parents.iter().filter(|&(_, parent)| *parent == self.pid).map(|(&child, _)| child).collect(),
            sockets,
            epolls,
        };
        Ok((view, duplicates))
    }

    pub(crate) fn descriptors(&self) -> Result<BTreeMap<i32, FDTarget>, ProcessError> {
        let fds = self.proc.fd().map_err(|e| explain(self.pid, "the descriptors", e))?;
        // A descriptor that cannot be read was closed since the directory was read.
        Ok(fds.filter_map(|fd| fd.ok().map(|fd| (fd.fd, fd.target))).collect())
    }

    /// Duplicates the process's descriptor `fd`; `None` if it was closed meanwhile.
    pub(crate) fn duplicate(&self, fd: i32) -> Result<Option<OwnedFd>, ProcessError> {
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
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
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
