//! UDP: a socket that is bound on the NIC's address, or on all addresses, or that speaks to somebody the NIC reaches.
//!
//! A UDP socket becomes ours when
//!
//! * it is bound on an address of the NIC's;
//! * it is bound to a port on all addresses. Then it has *two sides*: ours has what comes by the NIC, and the kernel's socket
//!   of the same number and port the rest (loopback, other devices). Who receives asks ours first, and every
//!   [`TURN`]th time the kernel's. What is sent goes by the NIC if the destination is on its prefix, and otherwise by the
//!   kernel, which knows the routers;
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

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abey_datapath::{Error, IoError, Message, Readiness, Shutdown, UdpSocket};
use abey_linux::library::DatapathConfig;
use libc::{c_int, iovec, msghdr, sockaddr, socklen_t};

use super::buffers::{Answer, blocking, bytes, length, rooms, vectors_of};
use super::errno::{fail, of, of_open};
use super::kept::{Kept, number};
use super::send::GATHERED;
use super::socket::{Role, Socket};
use super::table::{self, Object};
use super::{address, config, control, inside, is_own, listen, members, route, runtime};
use crate::real;
use crate::state::keep_errno;

/// How often the kernel's side is asked first.
const TURN: u32 = 16;

/// What the kernel's socket remembers for ours from before it was ours.
const OPTIONS: [(c_int, c_int); 2] = [(libc::SOL_SOCKET, libc::SO_BROADCAST), (libc::IPPROTO_IP, libc::IP_PKTINFO)];

/// A UDP socket of ours.
#[derive(Debug)]
pub(crate) struct Datagrams {
    pub(crate) socket: UdpSocket,
    /// The kernel's socket of the same number receives, too.
    has_kernel_side: bool,
    turn: AtomicU32,
    /// SO_BROADCAST.
    may_broadcast: AtomicBool,
    /// IP_PKTINFO, IPV6_RECVPKTINFO: whoever receives wants to know to which own address it came.
    wants_address: AtomicBool,
}

/// A call's message of these buffers, and nothing beside them.
pub(super) fn message(vector: *mut iovec, count: usize) -> msghdr {
    // SAFETY: a plain structure of C's, of numbers and pointers that may be null.
    let mut message = unsafe { std::mem::zeroed::<msghdr>() };
    (message.msg_iov, message.msg_iovlen) = (vector, count as _);
    message
}

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
        Ok(socket) => Datagrams {
            socket,
            has_kernel_side: is_wild,
            turn: AtomicU32::new(0),
            may_broadcast: AtomicBool::new(false),
            wants_address: AtomicBool::new(false),
        },
        Err(error) => return Some(Err(of_open(&error))),
    };
    for (level, option) in OPTIONS {
        datagrams.follow(fd, level, option);
    }
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
        if to.is_some_and(|to| datagrams.has_kernel_side && !route::is_on_link(config, to)) {
            // All of it is the kernel's from here on.
            return None;
        }
        let peer = to.map(|to| SocketAddr::new(to.ip().to_canonical(), to.port()));
        let answer = match datagrams.connect(peer) {
            Ok(()) => 0,
            Err(error) => fail(of(&error)),
        };
        if answer == 0 && (datagrams.has_kernel_side || is_shared(config)) {
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

impl Datagrams {
    fn connect(&self, peer: Option<SocketAddr>) -> Result<(), Error> {
        self.socket.connect(peer)
    }

    pub(super) fn shutdown(&self, how: Shutdown) -> c_int {
        if self.socket.peer_addr().is_err() {
            return fail(libc::ENOTCONN);
        }
        self.socket.shutdown(how).map_or_else(|error| fail(of(&error)), |()| 0)
    }

    pub(crate) fn has_kernel_side(&self) -> bool {
        self.has_kernel_side
    }

    /// Follows an option of the kernel's socket.
    pub(crate) fn follow(&self, fd: c_int, level: c_int, option: c_int) {
        match (level, option) {
            (libc::SOL_SOCKET, libc::SO_BROADCAST) => {
                self.may_broadcast.store(number(fd, level, option) == Some(1), Ordering::Relaxed);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) | (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) => {
                // An IPv6 socket may have both.
                let either = [(libc::IPPROTO_IP, libc::IP_PKTINFO), (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO)];
                let wants = either.into_iter().any(|(level, option)| number(fd, level, option) == Some(1));
                self.wants_address.store(wants, Ordering::Relaxed);
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                let bytes = number(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).and_then(|bytes| usize::try_from(bytes).ok());
                // A runtime that is gone has no use for it.
                let _ = bytes.map(|bytes| self.socket.set_receive_buffer(bytes));
            }
            _ => {}
        }
    }

    /// `recvmsg(2)`.
    ///
    /// # Safety
    /// As of `recvmsg`.
    pub(super) unsafe fn receive(&self, fd: c_int, socket: &Socket, message: &mut msghdr, flags: c_int) -> Answer {
        // SAFETY: the caller's promise.
        let room = unsafe { vectors_of(message)? };
        if flags & super::receive::OF_A_FILE != 0 && length(room) == 0 {
            return Ok(0);
        }
        let flags = flags & !super::receive::OF_A_FILE;
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(libc::EAGAIN);
        }
        // The kernel's errors are answers, too.
        let attempt = || {
            // SAFETY: the caller's promises.
            match unsafe { self.try_receive(fd, socket, room, message, flags) } {
                Err(libc::EAGAIN) => Err(IoError::WouldBlock.into()),
                answer => Ok(answer),
            }
        };
        blocking(Some(fd), socket, Readiness::READABLE, flags, attempt)?
    }

    /// Receives from either side, without waiting.
    ///
    /// # Safety
    /// As of `recvmsg`.
    unsafe fn try_receive(
        &self,
        fd: c_int,
        socket: &Socket,
        room: &[iovec],
        message: &mut msghdr,
        flags: c_int,
    ) -> Answer {
        let kernel_first = self.has_kernel_side && self.turn.fetch_add(1, Ordering::Relaxed) % TURN == TURN - 1;
        for of_kernel in [kernel_first, !kernel_first] {
            let answer = if !of_kernel {
                // SAFETY: the caller's promises.
                let take =
                    |datagram: &Message<'_>| unsafe { self.deliver(datagram, room, &mut *message, socket, flags) };
                ended(self.socket.try_recv_with(flags & libc::MSG_PEEK != 0, take))
            } else if self.has_kernel_side {
                // SAFETY: the caller's promises.
                let count = unsafe { real::RECVMSG.get()(fd, &raw mut *message, flags | libc::MSG_DONTWAIT) };
                usize::try_from(count).map_err(|_| crate::wait::errno())
            } else {
                continue;
            };
            if answer != Err(libc::EAGAIN) {
                return answer;
            }
        }
        Err(libc::EAGAIN)
    }

    /// Writes a datagram where the program wants it. What the call returns.
    ///
    /// # Safety
    /// As of `recvmsg`.
    unsafe fn deliver(
        &self,
        datagram: &Message<'_>,
        room: &[iovec],
        message: &mut msghdr,
        socket: &Socket,
        flags: c_int,
    ) -> usize {
        let mut rest = datagram.payload;
        // SAFETY: the caller's promise.
        for buffer in unsafe { rooms(room) } {
            let (now, later) = rest.split_at(rest.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            rest = later;
        }
        // SAFETY: the caller's promises.
        unsafe { address::write(datagram.peer, socket.is_v6, message.msg_name.cast(), &raw mut message.msg_namelen) };
        message.msg_flags = if rest.is_empty() { 0 } else { libc::MSG_TRUNC };
        let local = self.wants_address.load(Ordering::Relaxed).then_some(datagram.local);
        // SAFETY: the caller's promises.
        unsafe { control::write_destination(message, local, socket.is_v6) };
        if flags & libc::MSG_TRUNC != 0 { datagram.payload.len() } else { datagram.payload.len() - rest.len() }
    }

    /// `sendmsg(2)`. `parts` are the message's buffers, which were looked at.
    ///
    /// # Safety
    /// As of `sendmsg`.
    pub(super) unsafe fn send(
        &self,
        fd: c_int,
        socket: &Socket,
        message: &msghdr,
        parts: &[iovec],
        flags: c_int,
    ) -> Answer {
        let mut to = None;
        if !message.msg_name.is_null() && message.msg_namelen > 0 {
            // SAFETY: the caller's promise.
            let peer = unsafe { address::read(message.msg_name.cast(), message.msg_namelen) };
            let peer = peer.ok_or(libc::EINVAL)?;
            to = Some(SocketAddr::new(peer.ip().to_canonical(), peer.port()));
        }
        let config = config().ok_or(libc::ENETDOWN)?;
        if self.has_kernel_side && to.is_some_and(|to| !route::is_on_link(config, to)) {
            // SAFETY: the caller's promises.
            let sent = unsafe { real::SENDMSG.get()(fd, message, flags | libc::MSG_NOSIGNAL) };
            return usize::try_from(sent).map_err(|_| crate::wait::errno());
        }
        match to {
            Some(to) if to.port() == 0 => return Err(libc::EINVAL),
            Some(to) if is_broadcast(config, to.ip()) && !self.may_broadcast.load(Ordering::Relaxed) => {
                return Err(libc::EACCES);
            }
            _ => {}
        }
        if flags & libc::MSG_OOB != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller's promise.
        let from = unsafe { control::read_source(message) };
        let send = |payload: &[u8]| {
            blocking(None, socket, Readiness::WRITABLE, flags, || self.socket.try_send_from(payload, to, from))
        };
        // SAFETY: the caller's promise.
        unsafe { whole(parts, send) }
            .map_err(|number| if number == libc::ENOTCONN { libc::EDESTADDRREQ } else { number })
    }
}

/// One that was shut down says that it has nothing.
fn ended(answer: Result<usize, Error>) -> Answer {
    match answer {
        Ok(count) => Ok(count),
        Err(Error::Socket(IoError::Ended)) => Ok(0),
        Err(error) => Err(of(&error)),
    }
}

/// Does something with all buffers as one.
///
/// # Safety
/// As of `sendmsg`.
unsafe fn whole<R>(parts: &[iovec], work: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: the caller's promise; none is null.
    let each = || parts.iter().filter_map(|one| unsafe { bytes(one.iov_base, one.iov_len) });
    let total = length(parts);
    match parts {
        [_] => work(each().next().unwrap_or_default()),
        _ if total <= GATHERED => {
            let (mut gathered, mut used) = ([0; GATHERED], 0);
            for part in each() {
                gathered[used..used + part.len()].copy_from_slice(part);
                used += part.len();
            }
            work(&gathered[..used])
        }
        _ => {
            let mut gathered = Vec::with_capacity(total);
            each().for_each(|part| gathered.extend_from_slice(part));
            work(&gathered)
        }
    }
}

/// Whether datagrams to `to` are for everybody on the NIC's network.
fn is_broadcast(config: &DatapathConfig, to: IpAddr) -> bool {
    let IpAddr::V4(to) = to else { return false };
    to == Ipv4Addr::BROADCAST
        || config.addresses.iter().any(|(own, prefix)| match own {
            IpAddr::V4(own) if *prefix < 31 => own.to_bits() | (u32::MAX >> *prefix) == to.to_bits(),
            _ => false,
        })
}
