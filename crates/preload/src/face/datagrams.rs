//! What a UDP socket of ours sends and receives, by the NIC and, if it has two sides, by the kernel.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abey_datapath::{Error, IoError, Message, Readiness, Shutdown, UdpSocket};
use abey_linux::library::DatapathConfig;
use libc::{c_int, iovec, msghdr};

use super::buffers::{Answer, blocking, bytes, length, rooms, vectors_of};
use super::errno::{fail, of};
use super::kept::number;
use super::send::GATHERED;
use super::socket::Socket;
use super::{address, config, control, route};
use crate::real;

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

impl Datagrams {
    /// `socket` for the kernel's `fd`, which receives too if it `has_kernel_side`.
    pub(super) fn new(socket: UdpSocket, has_kernel_side: bool, fd: c_int) -> Self {
        let datagrams = Self {
            socket,
            has_kernel_side,
            turn: AtomicU32::new(0),
            may_broadcast: AtomicBool::new(false),
            wants_address: AtomicBool::new(false),
        };
        for (level, option) in OPTIONS {
            datagrams.follow(fd, level, option);
        }
        datagrams
    }

    pub(super) fn connect(&self, peer: Option<SocketAddr>) -> Result<(), Error> {
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
