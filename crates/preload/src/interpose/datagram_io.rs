//! Sending and receiving on a UDP datapath socket: `recvmsg(2)` and `sendmsg(2)` with IP_PKTINFO, through the NIC and, for a
//! socket that is bound to a wildcard, through the kernel socket of the same port.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use abey_datapath::{Error, IoError, Message, Readiness};
use abey_linux::library::DatapathConfig;
use libc::{c_int, iovec, msghdr};

use super::datagram::DatagramSocket;
use super::error_codes::errno_of;
use super::iovecs::{
    CallResult, FILE_CALL, GATHER_BYTES, message_iovecs, readable_slice, retry_until_ready, total_length,
    writable_slices,
};
use super::socket::Socket;
use super::{ancillary, socket_address};
use crate::{config, real};

/// The result of a receive on a socket that was handed over; no errno has this number.
const MOVED: c_int = -1;

/// A call that sends or receives on a UDP socket.
#[derive(Clone, Copy)]
pub(super) struct DatagramCall<'a> {
    pub(super) fd: c_int,
    pub(super) socket: &'a Socket,
    /// The datapath's side of `socket`.
    pub(super) datagram: &'a DatagramSocket,
    /// The flags of `recvmsg` or `sendmsg`, and [`FILE_CALL`].
    pub(super) flags: c_int,
}

impl DatagramCall<'_> {
    /// Receives a datagram, as `recvmsg(2)`.
    ///
    /// # Safety
    /// The same as for `recvmsg`.
    pub(super) unsafe fn receive(mut self, message: &mut msghdr) -> CallResult {
        // SAFETY: guaranteed by the caller.
        let room = unsafe { message_iovecs(message)? };
        if self.flags & FILE_CALL != 0 && total_length(room) == 0 {
            return Ok(0);
        }
        self.flags &= !FILE_CALL;
        if self.flags & libc::MSG_ERRQUEUE != 0 {
            return Err(libc::EAGAIN);
        }
        // An error other than EAGAIN ends the wait, too.
        let attempt = || {
            // SAFETY: guaranteed by the caller.
            match unsafe { self.try_receive(room, message) } {
                Err(libc::EAGAIN) => Err(IoError::WouldBlock.into()),
                Err(MOVED) => Err(IoError::Moved.into()),
                answer => Ok(answer),
            }
        };
        retry_until_ready(Some(self.fd), self.socket, Readiness::READABLE, self.flags, attempt)?
    }

    /// Receives a datagram from either side, without waiting.
    ///
    /// # Safety
    /// The same as for `recvmsg`.
    unsafe fn try_receive(&self, room: &[iovec], message: &mut msghdr) -> CallResult {
        let kernel_first = self.datagram.count_receive();
        for of_kernel in [kernel_first, !kernel_first] {
            let answer = if !of_kernel {
                // SAFETY: guaranteed by the caller.
                let take = |datagram: &Message<'_>| unsafe { self.deliver(datagram, room, &mut *message) };
                let taken = self.datagram.socket.try_recv_with(self.flags & libc::MSG_PEEK != 0, take);
                zero_at_end(taken, self.socket.is_nonblocking() || self.flags & libc::MSG_DONTWAIT != 0)
            } else if self.datagram.has_kernel_side() {
                // SAFETY: guaranteed by the caller.
                let count = unsafe { real::RECVMSG.get()(self.fd, &raw mut *message, self.flags | libc::MSG_DONTWAIT) };
                usize::try_from(count).map_err(|_| crate::errno::errno())
            } else {
                continue;
            };
            if answer != Err(libc::EAGAIN) {
                return answer;
            }
        }
        Err(libc::EAGAIN)
    }

    /// Copies a datagram into the program's buffers. Returns what `recvmsg` returns.
    ///
    /// # Safety
    /// The same as for `recvmsg`.
    unsafe fn deliver(&self, datagram: &Message<'_>, room: &[iovec], message: &mut msghdr) -> usize {
        let mut rest = datagram.payload;
        // SAFETY: guaranteed by the caller.
        for buffer in unsafe { writable_slices(room) } {
            let (now, later) = rest.split_at(rest.len().min(buffer.len()));
            buffer[..now.len()].copy_from_slice(now);
            rest = later;
        }
        // SAFETY: guaranteed by the caller.
        unsafe {
            socket_address::write(
                datagram.peer,
                self.socket.is_v6,
                message.msg_name.cast(),
                &raw mut message.msg_namelen,
            )
        };
        message.msg_flags = if rest.is_empty() { 0 } else { libc::MSG_TRUNC };
        let local = self.datagram.wants_pktinfo().then_some(datagram.local);
        // SAFETY: guaranteed by the caller.
        unsafe { ancillary::write_destination(message, local, self.socket.is_v6) };
        if self.flags & libc::MSG_TRUNC != 0 { datagram.payload.len() } else { datagram.payload.len() - rest.len() }
    }

    /// Sends a datagram, as `sendmsg(2)`. `parts` are the message's buffers, already checked.
    ///
    /// # Safety
    /// The same as for `sendmsg`.
    pub(super) unsafe fn send(self, message: &msghdr, parts: &[iovec]) -> CallResult {
        let Self { fd, socket, datagram, flags } = self;
        let mut to = None;
        if !message.msg_name.is_null() && message.msg_namelen > 0 {
            // SAFETY: guaranteed by the caller.
            let peer = unsafe { socket_address::read(message.msg_name.cast(), message.msg_namelen) };
            let peer = peer.ok_or(libc::EINVAL)?;
            to = Some(SocketAddr::new(peer.ip().to_canonical(), peer.port()));
        }
        // The process may be about to move to the kernel.
        let config = config::get().datapath.as_ref().ok_or(libc::ENETDOWN)?;
        if datagram.sends_by_kernel() && to.is_some_and(|to| !datagram.reaches(config, to)) {
            // SAFETY: guaranteed by the caller.
            let sent = unsafe { real::SENDMSG.get()(fd, message, flags | libc::MSG_NOSIGNAL) };
            return usize::try_from(sent).map_err(|_| crate::errno::errno());
        }
        match to {
            Some(to) if to.port() == 0 => return Err(libc::EINVAL),
            Some(to) if is_broadcast(config, to.ip()) && !datagram.may_broadcast() => {
                return Err(libc::EACCES);
            }
            _ => {}
        }
        if flags & libc::MSG_OOB != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: guaranteed by the caller.
        let from = unsafe { ancillary::read_source(message) };
        let send = |payload: &[u8]| {
            retry_until_ready(None, socket, Readiness::WRITABLE, flags, || {
                datagram.socket.try_send_from(payload, to, from)
            })
        };
        // SAFETY: guaranteed by the caller.
        unsafe { with_contiguous(parts, send) }
            .map_err(|number| if number == libc::ENOTCONN { libc::EDESTADDRREQ } else { number })
    }
}

/// Converts the result of a receive. After `shutdown` a call that may wait returns 0, and another one EAGAIN.
fn zero_at_end(answer: Result<usize, Error>, is_nonblocking: bool) -> CallResult {
    match answer {
        Ok(count) => Ok(count),
        Err(Error::Socket(IoError::Ended)) if is_nonblocking => Err(libc::EAGAIN),
        Err(Error::Socket(IoError::Ended)) => Ok(0),
        Err(Error::Socket(IoError::Moved)) => Err(MOVED),
        Err(error) => Err(errno_of(&error)),
    }
}

/// Runs `work` with the contents of all buffers in one piece.
///
/// # Safety
/// The same as for `sendmsg`.
unsafe fn with_contiguous<R>(parts: &[iovec], work: impl FnOnce(&[u8]) -> R) -> R {
    // SAFETY: guaranteed by the caller; no pointer is null.
    let each = || parts.iter().filter_map(|one| unsafe { readable_slice(one.iov_base, one.iov_len) });
    let total = total_length(parts);
    match parts {
        [_] => work(each().next().unwrap_or_default()),
        _ if total <= GATHER_BYTES => {
            let (mut gathered, mut used) = ([0; GATHER_BYTES], 0);
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

/// Returns whether `to` is a broadcast address of the NIC's networks.
fn is_broadcast(config: &DatapathConfig, to: IpAddr) -> bool {
    let IpAddr::V4(to) = to else { return false };
    to == Ipv4Addr::BROADCAST
        || config.addresses.iter().any(|(own, prefix)| match own {
            IpAddr::V4(own) if *prefix < 31 => own.to_bits() | (u32::MAX >> *prefix) == to.to_bits(),
            _ => false,
        })
}
