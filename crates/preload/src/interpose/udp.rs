//! Which UDP sockets are datapath sockets, and `bind(2)` and `connect(2)` of these.
//!
//! A UDP socket becomes a datapath socket when
//!
//! * it is bound to an address of the NIC. Under AF_XDP the kernel socket receives the datagrams that come in fragments;
//! * it is bound to a port on the wildcard address. Then it has *two sides*: the datapath receives what arrives on the NIC,
//!   and the kernel socket of the same port everything else (loopback, other devices). A receive asks the datapath first,
//!   and now and then the kernel ([`datagram_io`](super::datagram_io)). A datagram is sent through the NIC if its destination is
//!   on the NIC's prefix, and otherwise by the kernel, which has the routes;
//! * it is bound to a loopback address that is the NIC's (`memory:self`). It has two sides too, for other processes;
//! * it is connected to, or sends to, a destination on the NIC's prefix. An unbound socket is bound to a port first. Until
//!   then a socket with a port that the kernel chose is the kernel's, since otherwise every resolver would open the NIC.
//!
//! The kernel socket is bound to the port as well, wherever the kernel has the address, so that no other program gets it.
//! Under AF_XDP this reserves the port. A connected socket receives from its peer only, on both sides.
//!
//! # Limits
//!
//! A socket on loopback that asks for a control message or a queue of errors that the datapath does not have (IPV6_RECVHOPLIMIT,
//! IP_RECVERR) becomes the kernel's.
//!
//! Datagrams that are longer than a packet are sent in fragments, and reassembled where Abey is the host (memory NIC, TAP). Under
//! AF_XDP the kernel gets all fragments, since their later parts have no port, and every socket receives from the kernel too.
//! There is no multicast. Ancillary
//! data is limited to IP_PKTINFO and IPV6_PKTINFO.
//!
//! Sockets of one process share a port as in the kernel (SO_REUSEADDR, SO_REUSEPORT): the kernel's `bind` decides whether they
//! may, and the datapath which of them receives ([`Sharing`]). SO_ATTACH_REUSEPORT_CBPF and its like choose among the kernel
//! sockets only.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use abey_datapath::{Sharing, UdpSocket};
use abey_linux::library::DatapathConfig;
use libc::{c_int, sockaddr, socklen_t};

use super::context::{datapath_config, is_af_xdp, is_kernel_addr, is_nic_addr, uninterposed};
use super::datagram::{DatagramSocket, KernelSide};
use super::error_codes::{errno_of, errno_of_open, fail};
use super::fd_table::{self, Entry};
use super::runtime::{RUNTIME, runtime};
use super::socket::{Role, Socket};
use super::socket_options::{SocketOptions, int};
use super::{listen, member_table, route, socket_address};
use crate::errno::preserve_errno;
use crate::real;

fn is_udp(fd: c_int) -> bool {
    int(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_UDP)
}

/// Binds a UDP socket; `pass_on` binds the kernel socket. Returns `None` if the socket stays the kernel's.
pub(super) fn bind(fd: c_int, at: SocketAddr, pass_on: impl Fn() -> c_int) -> Option<c_int> {
    let config = datapath_config()?;
    let is_wildcard = at.ip().is_unspecified() && at.port() != 0;
    // The kernel knows whether the address is free.
    let is_kernels = is_wildcard || is_kernel_addr(config, at);
    if !is_wildcard && !is_nic_addr(config, at) || fd_table::get(fd).is_some() || !is_udp(fd) {
        return None;
    }
    if !route::may_use_device(config, fd) {
        return None;
    }
    let answer = if is_kernels { pass_on() } else { listen::with_free_bind(fd, &pass_on) };
    // The kernel reports an address as taken that another program uses on a NIC of its own.
    let is_bound = answer == 0;
    if !is_bound && (is_kernels || crate::errno::errno() != libc::EADDRINUSE) {
        return Some(answer);
    }
    let at = socket_address::bound_addr(fd).filter(|_| is_bound).unwrap_or(at);
    match open(config, fd, at) {
        None => Some(answer),
        Some(Ok(())) => Some(0),
        Some(Err(number)) => Some(fail(number)),
    }
}

/// Returns with which sockets the kernel socket `fd` shares its address.
fn sharing(fd: c_int) -> Sharing {
    let is_set = |option| int(fd, libc::SOL_SOCKET, option) == Some(1);
    Sharing {
        reuse_address: is_set(libc::SO_REUSEADDR),
        reuse_port: is_set(libc::SO_REUSEPORT),
        v6_only: int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1),
    }
}

/// Opens the datapath's side of the kernel socket `fd`. Returns `None` if there is no runtime.
fn open(config: &DatapathConfig, fd: c_int, at: SocketAddr) -> Option<Result<(), c_int>> {
    let runtime = runtime(config)?;
    // A child may have a socket of the port that only it receives from, as socat's UDP-LISTEN makes one for each peer.
    if runtime.is_udp_port_handed_over(at.port()) {
        return None;
    }
    let kernel_side = match at.ip() {
        ip if ip.is_unspecified() || ip.to_canonical().is_loopback() => KernelSide::Full,
        _ if is_af_xdp(config) => KernelSide::Receives,
        _ => KernelSide::None,
    };
    let own = SocketAddr::new(at.ip().to_canonical(), at.port());
    // SAFETY: the caller's descriptor, which it keeps open during its call.
    let holder = unsafe { BorrowedFd::borrow_raw(fd) };
    let opened = uninterposed(|| UdpSocket::bind_reserved(runtime, own, sharing(fd), holder));
    let datagram = match opened {
        Ok(socket) => DatagramSocket::new(socket, kernel_side, fd),
        Err(error) => return Some(Err(errno_of_open(&error))),
    };
    let socket = Socket::new(fd, None);
    socket.become_role(Role::Datagram(datagram), Arc::new(SocketOptions::from_kernel_socket(fd)));
    if !fd_table::insert(fd, Arc::new(Entry::Socket(socket))) {
        return Some(Err(libc::EMFILE));
    }
    // The socket may be a member of epoll sets already.
    member_table::migrate(fd);
    Some(Ok(()))
}

/// Makes a kernel socket that is about to send to `to` a datapath socket, if the NIC reaches `to`.
fn move_to_datapath(config: &DatapathConfig, fd: c_int, to: SocketAddr) -> Option<Result<(), c_int>> {
    let has_receiver = || RUNTIME.get().and_then(Option::as_ref).is_some_and(|runtime| runtime.has_receiver(to));
    if !route::takes_datagrams(config, to, has_receiver) || !is_udp(fd) || !route::may_use_device(config, fd) {
        return None;
    }
    let mut at = socket_address::bound_addr(fd)?;
    if !at.ip().is_unspecified() && !is_nic_addr(config, at) {
        // Bound to loopback, or to another device's address.
        return None;
    }
    if at.port() == 0 {
        bind_any_port(fd, at);
        at = socket_address::bound_addr(fd).filter(|at| at.port() != 0)?;
    }
    open(config, fd, at)
}

/// Binds the kernel socket to a port that the kernel chooses.
fn bind_any_port(fd: c_int, any: SocketAddr) {
    // SAFETY: a plain C structure, for which zero is valid.
    let mut at: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&at) as socklen_t;
    let to: *mut sockaddr = (&raw mut at).cast();
    preserve_errno(|| {
        // SAFETY: the buffer has room for `length` bytes, and the address written there is read.
        unsafe {
            socket_address::write(any, any.is_ipv6(), to, &raw mut length);
            real::BIND.get()(fd, to, length)
        }
    });
}

/// Makes a socket that sends to a destination on the NIC's prefix a datapath socket. Does nothing for a call without a
/// destination.
///
/// # Safety
/// `peer` is null, or `length` bytes can be read there.
#[inline]
pub(super) unsafe fn prepare_send(fd: c_int, peer: *const sockaddr, length: socklen_t) {
    if peer.is_null() {
        return;
    }
    if let Some(config) = datapath_config()
        && fd_table::get(fd).is_none()
        // SAFETY: guaranteed by the caller.
        && let Some(to) = unsafe { socket_address::read(peer, length) }
    {
        // If this fails, the kernel reports the error of the send.
        let _ = preserve_errno(|| move_to_datapath(config, fd, to));
    }
}

/// `connect(2)` of a UDP socket.
///
/// # Safety
/// The same as for `connect`.
pub(super) unsafe fn connect(fd: c_int, raw: *const sockaddr, length: socklen_t) -> Option<c_int> {
    // SAFETY: guaranteed by the caller.
    let to = unsafe { socket_address::read(raw, length) };
    // SAFETY: as above.
    if to.is_none() && unsafe { socket_address::family(raw, length) } != Some(libc::AF_UNSPEC) {
        return None;
    }
    let config = datapath_config()?;
    if fd_table::get(fd).is_none()
        && let Err(number) = move_to_datapath(config, fd, to?)?
    {
        return Some(fail(number));
    }
    let answer = fd_table::with_socket(fd, |socket| {
        let Some(Role::Datagram(datagram)) = socket.role.get() else { return Some(None) };
        if to.is_some_and(|to| datagram.sends_by_kernel() && !datagram.reaches(config, to)) {
            // The kernel has the socket from now on.
            return None;
        }
        let peer = to.map(|to| SocketAddr::new(to.ip().to_canonical(), to.port()));
        let answer = match datagram.connect(peer) {
            Ok(()) => 0,
            Err(error) => fail(errno_of(&error)),
        };
        if answer == 0 && datagram.has_kernel_side() {
            // The kernel side must receive from this peer only, too. If the kernel has no route to the peer, it receives
            // nothing.
            // SAFETY: guaranteed by the caller.
            preserve_errno(|| unsafe { real::CONNECT.get()(fd, raw, length) });
        }
        Some(Some(answer))
    })?;
    if answer.is_none() {
        fd_table::remove(fd);
    }
    answer.flatten()
}
