//! Interposed calls that send: `write(2)`, `writev(2)`, `pwritev2(2)`, `send(2)`, `sendto(2)` and `sendmsg(2)`.
//!
//! A stream and a UDP socket of the datapath answer; for any other descriptor the kernel does.
//!
//! The buffers of a vector are gathered into one where they fit, since each write to the stream may become a segment of
//! its own. MSG_MORE holds back a small segment, as TCP_CORK does.

use std::ptr::null;

use abey_datapath::Readiness;
use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::datagram_io::DatagramCall;
use super::handover::{Reason, hand_over};
use super::iovecs::{
    CallResult, GATHER_BYTES, interpose, message_iovecs, msghdr_of, readable_slice, retry_until_ready, return_sent,
    return_value,
};
use super::socket::{Role, Socket};
use super::{fd_table, udp};

/// Writes everything if the call may block, and otherwise as much as fits into the send buffer.
pub(super) fn send_bytes(socket: &Socket, from: &[u8], flags: c_int) -> CallResult {
    let stream = socket.stream().ok_or(libc::EPIPE)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let more = flags & libc::MSG_MORE != 0;
    let write =
        |from: &[u8]| retry_until_ready(None, socket, Readiness::WRITABLE, flags, || stream.try_write_more(from, more));
    let mut sent = write(from)?;
    while sent < from.len() && !socket.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0 {
        match write(&from[sent..]) {
            Ok(count) => sent += count,
            // The call returns the bytes that were sent; the next call reports the error.
            Err(_) => break,
        }
    }
    Ok(sent)
}

/// # Safety
/// The same as for `writev`.
unsafe fn send_vectors(socket: &Socket, vectors: &[iovec], flags: c_int) -> CallResult {
    let mut gathered = [0; GATHER_BYTES];
    let (mut used, mut total) = (0, 0);
    // A partial write ends the call. An error is returned only if nothing was sent.
    let mut pass = |bytes: &[u8]| match send_bytes(socket, bytes, flags) {
        Ok(sent) => {
            total += sent;
            Ok(sent == bytes.len())
        }
        Err(_) if total > 0 => Ok(false),
        Err(error) => Err(error),
    };
    let mut goes_on = true;
    for vector in vectors {
        // SAFETY: guaranteed by the caller.
        let mut bytes = unsafe { readable_slice(vector.iov_base, vector.iov_len) }.ok_or(libc::EFAULT)?;
        while !bytes.is_empty() && goes_on {
            if used == 0 && bytes.len() >= GATHER_BYTES {
                goes_on = pass(bytes)?;
                break;
            }
            let (now, later) = bytes.split_at(bytes.len().min(GATHER_BYTES - used));
            gathered[used..used + now.len()].copy_from_slice(now);
            (used, bytes) = (used + now.len(), later);
            if used == GATHER_BYTES {
                goes_on = pass(&gathered)?;
                used = 0;
            }
        }
    }
    if used > 0 && goes_on {
        pass(&gathered[..used])?;
    }
    Ok(total)
}

/// Sends as `sendmsg(2)`, the form to which the other calls are converted.
///
/// # Safety
/// The same as for `sendmsg`.
unsafe fn send_message(fd: c_int, socket: &Socket, message: &msghdr, flags: c_int) -> CallResult {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let vectors = message_iovecs(message)?;
        match socket.role.get() {
            Some(Role::Datagram(datagram)) => DatagramCall { fd, socket, datagram, flags }.send(message, vectors),
            // A stream ignores a destination and ancillary data.
            _ => send_vectors(socket, vectors, flags),
        }
    }
}

/// Hands a connection over for what only the kernel can send.
#[inline]
fn hand_over_for_flags(fd: c_int, flags: c_int) {
    if flags & (libc::MSG_OOB | libc::MSG_ZEROCOPY) != 0 {
        let what = if flags & libc::MSG_OOB == 0 { "MSG_ZEROCOPY" } else { "MSG_OOB" };
        hand_over(fd, Reason::Call(what));
    }
}

/// Sends as `sendto(2)`. Returns `None` if `fd` is not a datapath socket.
///
/// # Safety
/// The same as for `sendto`.
#[inline]
unsafe fn datapath_sendto(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    peer: *const sockaddr,
    peer_length: socklen_t,
) -> Option<ssize_t> {
    // SAFETY: guaranteed by the caller.
    unsafe { udp::prepare_send(fd, peer, peer_length) };
    hand_over_for_flags(fd, flags);
    fd_table::with_socket(fd, |socket| {
        if socket.stream().is_some() {
            if flags & libc::MSG_FASTOPEN != 0 {
                return return_sent(Err(libc::EISCONN), flags);
            }
            // SAFETY: guaranteed by the caller.
            let bytes = unsafe { readable_slice(from, length) }.ok_or(libc::EFAULT);
            return return_sent(bytes.and_then(|bytes| send_bytes(socket, bytes, flags)), flags);
        }
        let mut vector = iovec { iov_base: from.cast_mut(), iov_len: length };
        let mut message = msghdr_of(&raw mut vector, 1);
        (message.msg_name, message.msg_namelen) = (peer.cast_mut().cast(), peer_length);
        // SAFETY: guaranteed by the caller.
        return_sent(unsafe { send_message(fd, socket, &message, flags) }, flags)
    })
}

/// # Safety
/// The same as for `writev`.
unsafe fn datapath_writev(fd: c_int, vector: *const iovec, count: c_int, flags: c_int) -> Option<ssize_t> {
    fd_table::with_socket(fd, |socket| {
        let Ok(count @ 0..=super::iovecs::IOV_MAX) = usize::try_from(count) else {
            return return_value(Err(libc::EINVAL));
        };
        // SAFETY: guaranteed by the caller.
        return_sent(unsafe { send_message(fd, socket, &msghdr_of(vector.cast_mut(), count), flags) }, flags)
    })
}

/// Converts the flags of `preadv2(2)` to those of `recv(2)`. Fails for an offset other than -1, since a socket has none.
pub(super) fn flags_of_file(offset: off_t, flags: c_int) -> Result<c_int, c_int> {
    if offset != -1 {
        return Err(if offset < -1 { libc::EINVAL } else { libc::ESPIPE });
    }
    match flags {
        0 => Ok(0),
        libc::RWF_NOWAIT => Ok(libc::MSG_DONTWAIT),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// # Safety
/// The same as for `pwritev2`.
unsafe fn datapath_pwritev2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Option<ssize_t> {
    fd_table::with_socket(fd, |_| ())?;
    match flags_of_file(offset, flags) {
        // SAFETY: guaranteed by the caller.
        Ok(flags) => unsafe { datapath_writev(fd, vector, count, flags) },
        Err(number) => Some(return_value(Err(number))),
    }
}

/// Sends as `sendmsg(2)`. Returns `None` if `fd` is not a datapath socket.
///
/// # Safety
/// The same as for `sendmsg`.
pub(super) unsafe fn datapath_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        hand_over_for_flags(fd, flags);
        if let Some(message) = message.as_ref() {
            super::ancillary::hand_over_rights(message);
            udp::prepare_send(fd, message.msg_name.cast(), message.msg_namelen);
        }
        fd_table::with_socket(fd, |socket| match message.as_ref() {
            Some(message) => return_sent(send_message(fd, socket, message, flags), flags),
            None => return_value(Err(libc::EFAULT)),
        })
    }
}

interpose! {
    /// `write(2)`.
    write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t = datapath_sendto(fd, from, length, 0, null(), 0), WRITE;
    /// `__write`, by which some libraries call `write(2)`.
    __write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t =
        datapath_sendto(fd, from, length, 0, null(), 0), WRITE;
    /// `send(2)`.
    send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t =
        datapath_sendto(fd, from, length, flags, null(), 0), SEND;
    /// `__send`, by which some libraries call `send(2)`.
    __send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t =
        datapath_sendto(fd, from, length, flags, null(), 0), SEND;
    /// `sendto(2)`.
    sendto(
        fd: c_int,
        from: *const c_void,
        length: size_t,
        flags: c_int,
        peer: *const sockaddr,
        peer_length: socklen_t
    ) -> ssize_t = datapath_sendto(fd, from, length, flags, peer, peer_length), SENDTO;
    /// `writev(2)`.
    writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t = datapath_writev(fd, vector, count, 0), WRITEV;
    /// `pwritev2(2)`.
    pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        datapath_pwritev2(fd, vector, count, offset, flags), PWRITEV2;
    /// `pwritev2(2)`, as programs with large-file support call it.
    pwritev64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        datapath_pwritev2(fd, vector, count, offset, flags), PWRITEV2;
    /// `sendmsg(2)`.
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t =
        datapath_sendmsg(fd, message, flags), SENDMSG;
}
