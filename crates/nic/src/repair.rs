//! Puts an established TCP connection into a kernel socket (TCP_REPAIR, `tcp(7)`).
//!
//! The caller is the owner of the connection until [`end`] has succeeded. The steps:
//!
//! 1. [`begin`] makes the socket one of this connection. It does not send, and its queues are empty. This takes CAP_NET_ADMIN
//!    in the user namespace of the socket's network namespace, which a broker has for others.
//! 2. [`fill`] writes the queues and the windows. The socket is in repair mode, so this takes no privileges.
//! 3. The frames of the connection are passed to the kernel from here on ([`Ports::pass_flow`](crate::Ports::pass_flow)).
//! 4. [`end`] ends the repair mode. The socket sends a window probe, whose answer tells the peer's latest acknowledgement and
//!    window. This takes CAP_NET_ADMIN again.
//! 5. What was never sent is written ([`write_unsent`]), and shutdowns are repeated.
//!
//! After an error in steps 1 to 3, [`undo`] makes the socket unconnected again. It sends nothing.
//!
//! The kernel knows no repair into other states than ESTABLISHED. The peer's FIN, and ranges beyond a gap, have to arrive
//! again ([`Ports::inject`](crate::Ports::inject)).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_void, socklen_t};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, bind, connect, getsockname, send, sockopt};
use serde::{Deserialize, Serialize};

/// Values of `linux/tcp.h`.
const TCP_REPAIR: c_int = 19;
const TCP_REPAIR_QUEUE: c_int = 20;
const TCP_QUEUE_SEQ: c_int = 21;
const TCP_REPAIR_OPTIONS: c_int = 22;
const TCP_TIMESTAMP: c_int = 24;
const TCP_REPAIR_WINDOW: c_int = 29;
const REPAIR_ON: c_int = 1;
const REPAIR_OFF: c_int = 0;
const REPAIR_OFF_WITHOUT_PROBE: c_int = -1;
const NO_QUEUE: c_int = 0;
const RECEIVE_QUEUE: c_int = 1;
const SEND_QUEUE: c_int = 2;
/// Numbers of TCP options (IANA).
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW_SCALE: u32 = 3;
const OPTION_SACK_PERMITTED: u32 = 4;
const OPTION_TIMESTAMP: u32 = 8;
/// `SO_BUF_LOCK` of `asm-generic/socket.h` (Linux 5.14).
const SO_BUF_LOCK: c_int = 72;

/// `struct tcp_repair_opt`.
#[repr(C)]
struct RepairOption {
    code: u32,
    value: u32,
}

/// `struct tcp_repair_window`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RepairWindow {
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}

/// State of a connection, without the contents of its queues. Sequence numbers are absolute, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RepairState {
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the peer.
    pub remote: SocketAddr,
    /// First sequence number that the peer has not acknowledged.
    pub send_next: u32,
    /// First sequence number that the application has not read.
    pub read_next: u32,
    /// First sequence number that has not arrived.
    pub receive_next: u32,
    /// Maximum segment size that the peer accepts.
    pub peer_mss: u16,
    /// Scales of the peer's window and of this end's, if the connection scales windows.
    pub scales: Option<(u8, u8)>,
    /// Whether both ends use SACK.
    pub sack: bool,
    /// This end's timestamp clock now, if both ends use timestamps.
    pub timestamp: Option<u32>,
    /// Window of the peer, the sequence number of the segment that carried it, and the largest window so far.
    pub send_window: (u32, u32, u32),
    /// Window that was advertised, from `receive_next`.
    pub receive_window: u32,
    /// Sizes of the send and of the receive buffer that the socket needs at least.
    pub buffers: (usize, usize),
    /// Whether the socket has SO_REUSEADDR afterwards, as one that was accepted by such a listener.
    pub reuse_address: bool,
}

/// Contents of a connection's queues, and the end of its streams.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepairQueues<'a> {
    /// Bytes that the application has not read.
    pub unread: &'a [u8],
    /// Bytes that were sent and not acknowledged.
    pub sent: &'a [u8],
}

/// Makes `socket`, an unconnected TCP socket, one of the connection, in repair mode.
///
/// # Errors
/// EPERM without CAP_NET_ADMIN; EINVAL if the socket is bound to another port, or of another family; those of `connect(2)`.
/// The caller calls [`undo`].
pub fn begin(socket: BorrowedFd<'_>, state: &RepairState) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, TCP_REPAIR, &REPAIR_ON)?;
    resize(socket, libc::SO_SNDBUFFORCE, state.buffers.0);
    resize(socket, libc::SO_RCVBUFFORCE, state.buffers.1);
    // Setting a size has disabled its automatic adjustment. Kernels without the option leave it disabled.
    let _ = set(socket, libc::SOL_SOCKET, SO_BUF_LOCK, &0);
    set(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, &SEND_QUEUE)?;
    set(socket, libc::IPPROTO_TCP, TCP_QUEUE_SEQ, &state.send_next)?;
    set(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, &RECEIVE_QUEUE)?;
    set(socket, libc::IPPROTO_TCP, TCP_QUEUE_SEQ, &state.read_next)?;
    let is_v6 = sockopt::socket_domain(socket)? == AddressFamily::INET6;
    let bound = SocketAddr::try_from(getsockname(socket)?).map_or(0, |at| at.port());
    if bound == 0 {
        bind(socket, &for_family(state.local, is_v6)?)?;
    } else if bound != state.local.port() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    connect(socket, &for_family(state.remote, is_v6)?)?;
    let scales = state.scales.map(|(peer, own)| u32::from(peer) | u32::from(own) << 16);
    let options: Vec<RepairOption> = [
        Some((OPTION_MSS, u32::from(state.peer_mss))),
        scales.map(|scales| (OPTION_WINDOW_SCALE, scales)),
        state.sack.then_some((OPTION_SACK_PERMITTED, 0)),
        state.timestamp.map(|_| (OPTION_TIMESTAMP, 0)),
    ]
    .into_iter()
    .flatten()
    .map(|(code, value)| RepairOption { code, value })
    .collect();
    set_slice(socket, libc::IPPROTO_TCP, TCP_REPAIR_OPTIONS, &options)?;
    if let Some(timestamp) = state.timestamp {
        // The lowest bit of the value selects a clock of microseconds. The clock must not go backwards, so it is rounded up.
        let even = timestamp.wrapping_add(1) & !1;
        set(socket, libc::IPPROTO_TCP, TCP_TIMESTAMP, &even)?;
    }
    Ok(())
}

/// Writes the queues and windows of a socket in repair mode.
///
/// # Errors
/// ENOBUFS if a queue does not fit; those of `send(2)`. The caller calls [`undo`].
pub fn fill(socket: BorrowedFd<'_>, state: &RepairState, queues: &RepairQueues<'_>) -> io::Result<()> {
    for (queue, bytes) in [(RECEIVE_QUEUE, queues.unread), (SEND_QUEUE, queues.sent)] {
        set(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue)?;
        if write(socket, bytes)? < bytes.len() {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
    }
    let (window, window_seq, largest) = state.send_window;
    let window = RepairWindow {
        snd_wl1: window_seq,
        snd_wnd: window,
        max_window: largest.max(window),
        rcv_wnd: state.receive_window,
        rcv_wup: state.receive_next,
    };
    set(socket, libc::IPPROTO_TCP, TCP_REPAIR_WINDOW, &window)?;
    // With a queue selected, the socket would take what it is to send as sent.
    set(socket, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, &NO_QUEUE)
}

/// Ends the repair mode: the connection is the kernel's. Needs the privileges of [`begin`].
///
/// # Errors
/// EPERM.
pub fn end(socket: BorrowedFd<'_>, reuse_address: bool) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, TCP_REPAIR, &REPAIR_OFF)?;
    // The repair mode has cleared it. It says who may bind the port, and the connection works without.
    let _ = sockopt::set_socket_reuseaddr(socket, reuse_address);
    Ok(())
}

/// Makes a socket in repair mode unconnected again. Sends nothing. Needs the privileges of [`begin`].
///
/// # Errors
/// EPERM.
pub fn undo(socket: BorrowedFd<'_>, reuse_address: bool) -> io::Result<()> {
    // In repair mode this is silent. It fails for a socket that was not connected yet.
    let _ = rustix::net::connect_unspec(socket);
    let _ = sockopt::socket_error(socket);
    set(socket, libc::IPPROTO_TCP, TCP_REPAIR, &REPAIR_OFF_WITHOUT_PROBE)?;
    let _ = sockopt::set_socket_reuseaddr(socket, reuse_address);
    Ok(())
}

/// Writes what the connection has never sent, after [`end`].
///
/// The send buffer was sized for it. If it does not fit all the same, for lack of memory, and the peer makes no room in
/// time, the connection is reset: a stream with a hole would be worse.
///
/// # Errors
/// Those of `send(2)`; ETIMEDOUT, after which the connection is reset.
pub fn write_unsent(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<()> {
    let mut written = write(socket, bytes)?;
    while written < bytes.len() {
        let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        if poll(&mut polled, Some(&limit))? == 0 {
            let _ = rustix::net::connect_unspec(socket);
            return Err(io::ErrorKind::TimedOut.into());
        }
        written += write(socket, &bytes[written..])?;
    }
    Ok(())
}

/// Writes bytes without waiting. Returns their number, which is smaller only if the socket's buffer is full.
fn write(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match send(socket, &bytes[written..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(count) => written += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOMEM) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(written)
}

/// Returns an address as a socket of the family takes it.
fn for_family(address: SocketAddr, is_v6: bool) -> io::Result<SocketAddr> {
    match (address.ip(), is_v6) {
        (IpAddr::V4(v4), true) => Ok(SocketAddr::new(v4.to_ipv6_mapped().into(), address.port())),
        (IpAddr::V6(_), false) => Err(io::ErrorKind::InvalidInput.into()),
        _ => Ok(address),
    }
}

/// Sets a buffer's size if it is smaller. Without privileges, or with a size that the kernel does not have, it stays as it is,
/// and a queue that does not fit is reported later.
fn resize(socket: BorrowedFd<'_>, option: c_int, bytes: usize) {
    let current = if option == libc::SO_SNDBUFFORCE {
        sockopt::socket_send_buffer_size(socket)
    } else {
        sockopt::socket_recv_buffer_size(socket)
    };
    // The kernel counts its own structures, and doubles the value for them.
    if current.is_ok_and(|current| current < 2 * bytes) {
        let _ = set(socket, libc::SOL_SOCKET, option, &c_int::try_from(bytes).unwrap_or(c_int::MAX / 2));
    }
}

fn set<T: Copy>(socket: BorrowedFd<'_>, level: c_int, option: c_int, value: &T) -> io::Result<()> {
    set_slice(socket, level, option, std::slice::from_ref(value))
}

fn set_slice<T>(socket: BorrowedFd<'_>, level: c_int, option: c_int, values: &[T]) -> io::Result<()> {
    let (at, length) = (values.as_ptr().cast::<c_void>(), size_of_val(values) as socklen_t);
    // SAFETY: the kernel reads `length` bytes from `at`, which are those of `values`: plain integers without padding.
    let answer = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, length) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
