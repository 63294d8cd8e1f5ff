//! The TCP and UDP sockets of a process.
//!
//! Each socket is queried through a duplicate rather than searched in `/proc/net/tcp`: that works in any network namespace, and
//! does not read every connection of the machine.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use procfs::process::FDTarget;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketType, ipproto};

use super::{ProcessError, Target};

/// The protocol of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// The state of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketState {
    /// TCP: listening. UDP: bound, and accepts datagrams from any peer.
    Listening,
    /// It has a peer.
    Connected,
    /// Neither, yet or any more.
    Other,
}

/// One descriptor of a TCP or UDP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketView {
    /// The descriptor in the process.
    pub fd: i32,
    /// The inode number: equal for descriptors of the same socket, in any process.
    pub inode: u64,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its state.
    pub state: SocketState,
    /// Its own address.
    pub local: SocketAddr,
    /// The address of its peer, if it has one.
    pub remote: Option<SocketAddr>,
    /// The NAPI instance of its last packet (`SO_INCOMING_NAPI_ID`, socket(7)); `None` if it has received nothing yet, or
    /// through no NAPI instance (loopback, or veth without GRO).
    pub napi_id: Option<u32>,
}

/// Returns the TCP and UDP sockets among the descriptors `fds`.
pub(crate) fn view(target: &Target, fds: &BTreeMap<i32, FDTarget>) -> Result<Vec<SocketView>, ProcessError> {
    let mut sockets = Vec::new();
    for (&fd, kind) in fds {
        let FDTarget::Socket(inode) = *kind else { continue };
        let Some(duplicate) = target.duplicate(fd)? else { continue };
        match query(fd, inode, &duplicate) {
            Ok(socket) => sockets.extend(socket),
            // The descriptor was reused since the list was read. One opened with O_PATH returns EBADF.
            Err(Errno::NOTSOCK | Errno::BADF) => {}
            Err(errno) => return Err(target.unreadable("a socket", &errno.to_string())),
        }
    }
    Ok(sockets)
}

/// Returns the state of socket `fd`, or `None` if it is neither TCP nor UDP over IP.
fn query(fd: i32, inode: u64, socket: &OwnedFd) -> Result<Option<SocketView>, Errno> {
    let family = sockopt::socket_domain(socket)?;
    if family != AddressFamily::INET && family != AddressFamily::INET6 {
        return Ok(None);
    }
    let protocol = sockopt::socket_protocol(socket)?;
    let protocol = match sockopt::socket_type(socket)? {
        SocketType::STREAM if protocol == Some(ipproto::TCP) => Protocol::Tcp,
        SocketType::DGRAM if protocol == Some(ipproto::UDP) => Protocol::Udp,
        _ => return Ok(None),
    };
    let address = |any| SocketAddr::try_from(any).ok();
    let Some(local) = address(rustix::net::getsockname(socket)?) else { return Ok(None) };
    let remote = match rustix::net::getpeername(socket) {
        Ok(peer) => peer.and_then(address),
        Err(Errno::NOTCONN | Errno::INVAL) => None,
        Err(errno) => return Err(errno),
    };
    let listens = match protocol {
        Protocol::Tcp => sockopt::socket_acceptconn(socket)?,
        Protocol::Udp => remote.is_none() && local.port() != 0,
    };
    let state = match (listens, remote) {
        (true, _) => SocketState::Listening,
        (false, Some(_)) => SocketState::Connected,
        (false, None) => SocketState::Other,
    };
    Ok(Some(SocketView { fd, inode, protocol, state, local, remote, napi_id: napi_id(socket)? }))
}

/// `SO_INCOMING_NAPI_ID` of `asm-generic/socket.h`, which the libc crate lacks for some targets.
const SO_INCOMING_NAPI_ID: libc::c_int = 56;

fn napi_id(socket: &OwnedFd) -> Result<Option<u32>, Errno> {
    let id = socket_option(socket, SO_INCOMING_NAPI_ID)?;
    Ok(id.filter(|id| *id != 0))
}

/// Returns whether a socket has SO_BUSY_POLL (socket(7)).
pub(crate) fn busy_polls(socket: &OwnedFd) -> bool {
    socket_option(socket, libc::SO_BUSY_POLL).is_ok_and(|usecs| usecs.is_some_and(|usecs| usecs > 0))
}

/// Returns an option of a socket that is one word; `None` on a kernel without busy polling, which has none of these options.
fn socket_option(socket: &OwnedFd, option: libc::c_int) -> Result<Option<u32>, Errno> {
    let mut value: u32 = 0;
    let mut length = size_of::<u32>() as libc::socklen_t;
    // SAFETY: `value` and `length` are valid for writes of their sizes, and `socket` is open.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 {
        return Ok(Some(value));
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
        Errno::NOPROTOOPT => Ok(None),
        errno => Err(errno),
    }
}
