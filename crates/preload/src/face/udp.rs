//! Which UDP sockets are ours: one that is bound on the NIC's address, or on all addresses, or speaks to somebody the NIC reaches.
//!
//! A UDP socket becomes ours when
//!
//! * it is bound on an address of the NIC's;
//! * it is bound to a port on all addresses. Then it has *two sides*: ours has what comes by the NIC, and the kernel's socket
//!   of the same number and port the rest (loopback, other devices). Who receives asks ours first, and now and then the
//!   kernel's ([`datagrams`](super::datagrams)). What is sent goes by the NIC if the destination is on its prefix, and
//!   otherwise by the kernel, which knows the routers;
//! * it is connected to, or sends to, somebody on the NIC's prefix. It is bound to a port first, if it was not. So a socket
//!   for which the kernel chose the port, on all addresses, is the kernel's until then: otherwise every resolver would open
//!   the NIC.
//!
//! The kernel's socket is bound to the port too, wherever the kernel has the address, so that nobody else gets it: under
//! AF_XDP it *is* the reservation. A socket that is connected hears its peer only, on either side.
//!
//! What the datapath's UDP does not do: datagrams longer than a packet (`EMSGSIZE`: it does not fragment), groups
//! (multicast), several sockets on one port with SO_REUSEPORT (the second is refused with `EADDRINUSE`, unless the first
//! is connected), and of what may come beside the data it has IP_PKTINFO and IPV6_PKTINFO.

use std::net::SocketAddr;
use std::sync::Arc;

use abey_datapath::UdpSocket;
use abey_linux::library::DatapathConfig;
use libc::{c_int, sockaddr, socklen_t};

use super::datagrams::Datagrams;
use super::errno::{fail, of, of_open};
use super::kept::{Kept, number};
use super::socket::{Role, Socket};
use super::table::{self, Object};
use super::{address, config, inside, is_own, listen, members, route, runtime};
use crate::real;
use crate::state::keep_errno;

fn is_udp(fd: c_int) -> bool {
    number(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_UDP)
}

/// Whether the kernel has the NIC's addresses too.
fn is_shared(config: &DatapathConfig) -> bool {
    config.nic.starts_with("af_xdp:")
}

/// `bind(2)` of a UDP socket, which `pass_on` does with the kernel's.
pub(super) fn bind(fd: c_int, at: SocketAddr, pass_on: impl Fn() -> c_int) -> Option<c_int> {
    let config = config()?;
    let is_wild = at.ip().is_unspecified() && at.port() != 0;
    if !is_wild && !is_own(config, at) || table::get(fd).is_some() || !is_udp(fd) {
        return None;
    }
    if !route::may_use_device(config, fd) {
        return None;
    }
    let answer = if is_wild { pass_on() } else { listen::with_free_bind(fd, &pass_on) };
    // On a NIC of its own an address may be another program's in the kernel.
    let is_bound = answer == 0;
    if !is_bound && (is_wild || is_shared(config) || crate::wait::errno() != libc::EADDRINUSE) {
        return Some(answer);
    }
    let at = address::own(fd).filter(|_| is_bound).unwrap_or(at);
    match open(config, fd, at) {
        None => Some(answer),
        Some(Ok(())) => Some(0),
        Some(Err(number)) => Some(fail(number)),
    }
}

/// A socket of ours for the kernel's, beside it if it is bound. `None`: there is no runtime.
fn open(config: &DatapathConfig, fd: c_int, at: SocketAddr) -> Option<Result<(), c_int>> {
    let runtime = runtime(config)?;
    let is_wild = at.ip().is_unspecified();
    let own = SocketAddr::new(at.ip().to_canonical(), at.port());
    let opened = inside(|| UdpSocket::bind_beside(runtime, own));
    let datagrams = match opened {
        Ok(socket) => Datagrams::new(socket, is_wild, fd),
        Err(error) => return Some(Err(of_open(&error))),
    };
    let socket = Socket::new(fd, None);
    socket.become_role(Role::Datagrams(datagrams), Arc::new(Kept::of(fd)));
    if !table::put(fd, Arc::new(Object::Socket(socket))) {
        return Some(Err(libc::EMFILE));
    }
    // It may be in epolls already.
    members::adopt(fd);
    Some(Ok(()))
}

/// A socket of the kernel's is about to speak to `to`: it becomes ours, if the NIC leads there.
fn become_ours(config: &DatapathConfig, fd: c_int, to: SocketAddr) -> Option<Result<(), c_int>> {
    if !route::is_on_link(config, to) || !is_udp(fd) || !route::may_use_device(config, fd) {
        return None;
    }
    let mut at = address::own(fd)?;
    if !at.ip().is_unspecified() && !is_own(config, at) {
        // Of loopback, or of another device.
        return None;
    }
    if at.port() == 0 {
        bind_anywhere(fd, at);
        at = address::own(fd).filter(|at| at.port() != 0)?;
    }
    open(config, fd, at)
}

/// The kernel chooses a port.
fn bind_anywhere(fd: c_int, any: SocketAddr) {
    // SAFETY: a plain structure of C's, which may be zero.
    let mut at: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&at) as socklen_t;
    let to: *mut sockaddr = (&raw mut at).cast();
    keep_errno(|| {
        // SAFETY: there is room for `length` bytes, and then as many to read as were written.
        unsafe {
            address::write(any, any.is_ipv6(), to, &raw mut length);
            real::BIND.get()(fd, to, length)
        }
    });
}

/// Takes a socket that sends to somebody the NIC reaches. Costs a call without a destination nothing.
///
/// # Safety
/// `peer` is null, or `length` bytes can be read there.
#[inline]
pub(super) unsafe fn before_sending(fd: c_int, peer: *const sockaddr, length: socklen_t) {
    if peer.is_null() {
        return;
    }
    if let Some(config) = config()
        && table::get(fd).is_none()
        // SAFETY: the caller's promise.
        && let Some(to) = unsafe { address::read(peer, length) }
    {
        // If it cannot be, the kernel says what it has to say of the destination.
        let _ = keep_errno(|| become_ours(config, fd, to));
    }
}

/// `connect(2)` of a UDP socket.
///
/// # Safety
/// As of `connect`.
pub(super) unsafe fn connect(fd: c_int, raw: *const sockaddr, length: socklen_t) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let to = unsafe { address::read(raw, length) };
    // SAFETY: as above.
    if to.is_none() && unsafe { address::family(raw, length) } != Some(libc::AF_UNSPEC) {
        return None;
    }
    let config = config()?;
    if table::get(fd).is_none()
        && let Err(number) = become_ours(config, fd, to?)?
    {
        return Some(fail(number));
    }
    let answer = table::with_socket(fd, |socket| {
        let Some(Role::Datagrams(datagrams)) = socket.role.get() else { return Some(None) };
        if to.is_some_and(|to| datagrams.has_kernel_side() && !route::is_on_link(config, to)) {
            // All of it is the kernel's from here on.
            return None;
        }
        let peer = to.map(|to| SocketAddr::new(to.ip().to_canonical(), to.port()));
        let answer = match datagrams.connect(peer) {
            Ok(()) => 0,
            Err(error) => fail(of(&error)),
        };
        if answer == 0 && (datagrams.has_kernel_side() || is_shared(config)) {
            // The other side hears nobody else either. It may have no route there, and then hears nobody at all.
            // SAFETY: the caller's promise.
            keep_errno(|| unsafe { real::CONNECT.get()(fd, raw, length) });
        }
        Some(Some(answer))
    })?;
    if answer.is_none() {
        table::forget(fd);
    }
    answer.flatten()
}
