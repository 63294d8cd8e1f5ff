//! The epoll instances of a process: their busy poll parameters and the NAPI instances of their sockets.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use abey_delivery::EpollBusyPoll;
use procfs::process::FDTarget;

use crate::epoll::{self, EpollError};

use super::{ProcessError, ProcessView, SocketState, SocketView, Target, explain_io};

/// The busy poll parameters in force on an epoll instance (`EPIOCGPARAMS`, ioctl_eventpoll(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpollParams {
    /// These parameters.
    Set(EpollBusyPoll),
    /// None were set (all are 0): `net.core.busy_poll` applies.
    Unset,
    /// The kernel has no parameters per epoll instance (before Linux 6.9): `net.core.busy_poll` applies.
    Unsupported,
}

impl EpollParams {
    /// Returns the parameters, if any were set.
    #[must_use]
    pub fn get(self) -> Option<EpollBusyPoll> {
        match self {
            Self::Set(params) => Some(params),
            Self::Unset | Self::Unsupported => None,
        }
    }
}

/// One descriptor of an epoll instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpollView {
    /// The descriptor in the process.
    pub fd: i32,
    /// The busy poll parameters in force.
    pub params: EpollParams,
    /// How many descriptors it watches, of any kind.
    pub watched: usize,
    /// The NAPI instances that the watched sockets received their last packets from, each with the number of sockets. Linux
    /// busy polls *one* instance per epoll instance: that of the socket that was ready last. If there are several, the others
    /// are served by interrupts.
    pub napi_ids: BTreeMap<u32, usize>,
    /// Watched sockets that are connected or accept datagrams and have no NAPI ID: they received nothing yet, or through no
    /// NAPI instance.
    pub without_napi: usize,
    /// Watched listening TCP sockets.
    pub listeners: usize,
    /// Other descriptors of the *same* instance, as (process, descriptor). Only [`super::inspect_tree`] fills this in, for
    /// processes of the tree.
    pub shared_with: Vec<(u32, i32)>,
}

/// Returns the epoll instances among `fds`, with a duplicate of each.
pub(super) fn view(
    target: &Target,
    fds: &BTreeMap<i32, FDTarget>,
    sockets: &[SocketView],
) -> Result<(Vec<EpollView>, Vec<OwnedFd>), ProcessError> {
    let by_inode: HashMap<u64, &SocketView> = sockets.iter().map(|s| (s.inode, s)).collect();
    let (mut views, mut duplicates) = (Vec::new(), Vec::new());
    for (&fd, kind) in fds {
        if !matches!(kind, FDTarget::AnonInode(name) if name.contains("eventpoll")) {
            continue;
        }
        let Some(watched) = watched(target.pid, fd)? else { continue };
        let Some(duplicate) = target.duplicate(fd)? else { continue };
        // The descriptor may have been reused since the list was read.
        let Some(params) = params(target, &duplicate)? else { continue };
        let mut view = EpollView {
            fd,
            params,
            watched: watched.len(),
            napi_ids: BTreeMap::new(),
            without_napi: 0,
            listeners: 0,
            shared_with: Vec::new(),
        };
        for socket in watched.iter().filter_map(|inode| by_inode.get(inode)) {
            match (socket.state, socket.napi_id) {
                (SocketState::Listening, _) if socket.protocol == super::Protocol::Tcp => view.listeners += 1,
                (_, Some(id)) => *view.napi_ids.entry(id).or_default() += 1,
                (_, None) => view.without_napi += 1,
            }
        }
        views.push(view);
        duplicates.push(duplicate);
    }
    Ok((views, duplicates))
}

/// Returns the inodes of the files that epoll instance `fd` watches, or `None` if it was closed meanwhile. The descriptor
/// numbers in `fdinfo` are not used: they are those at the time of EPOLL_CTL_ADD, and may have been reused.
fn watched(pid: u32, fd: i32) -> Result<Option<Vec<u64>>, ProcessError> {
    match std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")) {
        Ok(text) => Ok(Some(text.lines().filter_map(watched_inode).collect())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(explain_io(pid, "a descriptor", &e)),
    }
}

fn watched_inode(line: &str) -> Option<u64> {
    member(line).map(|(inode, _)| inode)
}

/// Returns the inode of a watched file, and its descriptor at the time of EPOLL_CTL_ADD, of a line
/// `tfd:        5 events:       19 data: 5  pos:0 ino:1f3c sdev:8`, numbers after `ino:` in hexadecimal.
pub(crate) fn member(line: &str) -> Option<(u64, i32)> {
    let rest = line.strip_prefix("tfd:")?;
    let fd = rest.split_whitespace().next()?.parse().ok()?;
    let inode = rest.split_once("ino:")?.1.split_whitespace().next()?;
    Some((u64::from_str_radix(inode, 16).ok()?, fd))
}

/// Returns the parameters of an epoll instance; `None` if the descriptor is not one.
pub(crate) fn params(target: &Target, epoll: &OwnedFd) -> Result<Option<EpollParams>, ProcessError> {
    match epoll::get(epoll.as_fd()) {
        Ok(EpollBusyPoll { usecs: 0, budget: 0, prefer: false }) => Ok(Some(EpollParams::Unset)),
        Ok(params) => Ok(Some(EpollParams::Set(params))),
        Err(EpollError::Unsupported) => Ok(Some(EpollParams::Unsupported)),
        Err(EpollError::NotEpoll(_)) => Ok(None),
        Err(error) => Err(target.unreadable("the parameters of an epoll instance", &error.to_string())),
    }
}

/// Fills in [`EpollView::shared_with`]. `instances` holds the duplicates of `views[i].epolls`.
pub(super) fn find_shared(views: &mut [ProcessView], instances: &[Vec<OwnedFd>]) -> Result<(), ProcessError> {
    let all: Vec<(usize, usize)> =
        instances.iter().enumerate().flat_map(|(p, fds)| (0..fds.len()).map(move |e| (p, e))).collect();
    for (index, &(p, e)) in all.iter().enumerate() {
        for &(q, f) in &all[index + 1..] {
            if same_file(&instances[p][e], &instances[q][f])? {
                let (one, other) = ((views[p].pid, views[p].epolls[e].fd), (views[q].pid, views[q].epolls[f].fd));
                views[p].epolls[e].shared_with.push(other);
                views[q].epolls[f].shared_with.push(one);
            }
        }
    }
    Ok(())
}

/// Returns whether two descriptors of this process refer to the same open file (`kcmp(2)`, KCMP_FILE).
fn same_file(one: &OwnedFd, other: &OwnedFd) -> Result<bool, ProcessError> {
    const KCMP_FILE: libc::c_int = 0;
    let me = std::process::id();
    // SAFETY: the call takes five integers and accesses no memory of this process.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, me, me, KCMP_FILE, one.as_raw_fd(), other.as_raw_fd()) };
    match order {
        0 => Ok(true),
        -1 => {
            let reason = format!("kcmp: {} (it needs CONFIG_KCMP)", io::Error::last_os_error());
            Err(ProcessError::Read { pid: me, what: "which epoll instances are the same", reason })
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::watched_inode;

    #[test]
    fn watched_inodes_are_hexadecimal() {
        let line = "tfd:        5 events:       19 data:                5  pos:0 ino:1f3c sdev:8";
        assert_eq!(super::member(line), Some((0x1f3c, 5)));
        assert_eq!(watched_inode("pos:\t0"), None);
        assert_eq!(watched_inode("ino:\t1063"), None);
    }
}
