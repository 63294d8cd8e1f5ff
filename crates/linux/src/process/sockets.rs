//! The TCP and UDP sockets of a process.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use procfs::net::{TcpState, UdpState};
use procfs::process::FDTarget;

use super::{ProcessError, Target, explain};

/// The protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// What a socket is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketState {
    /// TCP: listens. UDP: bound, takes datagrams from anybody.
    Listening,
    /// Has a peer (TCP: established).
    Connected,
    /// Being set up or taken down.
    Other,
}

/// One descriptor of a TCP or UDP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketView {
    /// The descriptor in the process.
    pub fd: i32,
    /// The socket's number: equal for descriptors of the same socket, in any process.
    pub inode: u64,
    /// Its protocol.
    pub protocol: Protocol,
    /// What it is doing.
    pub state: SocketState,
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's, if it has one.
    pub remote: Option<SocketAddr>,
    /// The NAPI instance its last packet came from (`SO_INCOMING_NAPI_ID`, socket(7)); `None` when it has received
    /// nothing yet or its packets come through no NAPI (loopback, or veth without GRO).
    pub napi_id: Option<u32>,
}

#[derive(Clone, Copy)]
struct Entry {
    protocol: Protocol,
    state: SocketState,
    local: SocketAddr,
    remote: SocketAddr,
}

/// The sockets among the descriptors `fds`.
pub(super) fn view(target: &Target, fds: &BTreeMap<i32, FDTarget>) -> Result<Vec<SocketView>, ProcessError> {
    if !fds.values().any(|t| matches!(t, FDTarget::Socket(_))) {
        return Ok(Vec::new());
    }
    let table = table(target)?;
    let mut sockets = Vec::new();
    for (&fd, kind) in fds {
        let FDTarget::Socket(inode) = *kind else { continue };
        let Some(entry) = table.get(&inode) else { continue };
        let Some(duplicate) = target.duplicate(fd)? else { continue };
        sockets.push(SocketView {
            fd,
            inode,
            protocol: entry.protocol,
            state: entry.state,
            local: entry.local,
            remote: (entry.remote.port() != 0).then_some(entry.remote),
            napi_id: napi_id(target, &duplicate)?,
        });
    }
    Ok(sockets)
}

/// The sockets of the process's network namespace, by inode.
fn table(target: &Target) -> Result<HashMap<u64, Entry>, ProcessError> {
    let failed = |e| explain(target.pid, "the socket tables", e);
    let (proc, mut all) = (&target.proc, HashMap::new());
    // A kernel without IPv6 has no tables for it.
    let optional =
        |e| if matches!(e, procfs::ProcError::NotFound(_)) && proc.is_alive() { Ok(()) } else { Err(failed(e)) };
    for tcp in [Ok(proc.tcp().map_err(failed)?), proc.tcp6()] {
        match tcp {
            Ok(entries) => all.extend(entries.into_iter().map(|e| (e.inode, tcp_entry(&e)))),
            Err(e) => optional(e)?,
        }
    }
    for udp in [Ok(proc.udp().map_err(failed)?), proc.udp6()] {
        match udp {
            Ok(entries) => all.extend(entries.into_iter().map(|e| (e.inode, udp_entry(&e)))),
            Err(e) => optional(e)?,
        }
    }
    Ok(all)
}

fn tcp_entry(entry: &procfs::net::TcpNetEntry) -> Entry {
    let state = match entry.state {
        TcpState::Listen => SocketState::Listening,
        TcpState::Established => SocketState::Connected,
        _ => SocketState::Other,
    };
    Entry { protocol: Protocol::Tcp, state, local: entry.local_address, remote: entry.remote_address }
}

fn udp_entry(entry: &procfs::net::UdpNetEntry) -> Entry {
    let state = match entry.state {
        UdpState::Established => SocketState::Connected,
        UdpState::Close => SocketState::Listening,
    };
    Entry { protocol: Protocol::Udp, state, local: entry.local_address, remote: entry.remote_address }
}

/// Not in the libc crate for every target: `SO_INCOMING_NAPI_ID` of `asm-generic/socket.h`.
const SO_INCOMING_NAPI_ID: libc::c_int = 56;

fn napi_id(target: &Target, socket: &OwnedFd) -> Result<Option<u32>, ProcessError> {
    let mut id: u32 = 0;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: `id` and `length` are valid for writes of their sizes during the call, and `socket` is an open descriptor.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_INCOMING_NAPI_ID,
            (&raw mut id).cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        return Ok((id != 0).then_some(id));
    }
    match std::io::Error::last_os_error() {
        // The descriptor has come to mean something else than a socket, or the kernel has no busy polling.
        e if matches!(e.raw_os_error(), Some(libc::ENOTSOCK | libc::ENOPROTOOPT)) => Ok(None),
        e => Err(target.unreadable("the NAPI ID of a socket", &e.to_string())),
    }
}
