//! Writing: one look at the table, and then the stream, the datagrams, or the kernel.
//!
//! A vector is written to a stream from one buffer where it fits, since each write of the stream may be a segment of its
//! own. MSG_MORE and TCP_CORK only keep small writes apart from each other less: the stream sends what it has when the
//! call ends.

use std::ptr::null;

use abey_datapath::Readiness;
use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::buffers::{Answer, blocking, bytes, calls, tell, tell_sent, vectors_of};
use super::socket::{Role, Socket};
use super::{datagrams, table, udp};

/// What is gathered before it is written; longer pieces are written as they are.
pub(super) const GATHERED: usize = 4096;

/// Writes everything if it may wait, and otherwise what there is room for.
pub(super) fn send_bytes(socket: &Socket, from: &[u8], flags: c_int) -> Answer {
    let stream = socket.stream().ok_or(libc::EPIPE)?;
    if flags & libc::MSG_OOB != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let write = |from: &[u8]| blocking(None, socket, Readiness::WRITABLE, flags, || stream.try_write(from));
    let mut sent = write(from)?;
    while sent < from.len() && !socket.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0 {
        match write(&from[sent..]) {
            Ok(count) => sent += count,
            // What was sent is told, and the next call tells the rest.
            Err(_) => break,
        }
    }
    Ok(sent)
}

/// # Safety
/// As of `writev`.
unsafe fn send_vectors(socket: &Socket, vectors: &[iovec], flags: c_int) -> Answer {
    let mut gathered = [0; GATHERED];
    let (mut used, mut total) = (0, 0);
    // What could not be sent at once ends the call; an error is told unless something was sent.
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
        // SAFETY: the caller's promise.
        let mut bytes = unsafe { bytes(vector.iov_base, vector.iov_len) }.ok_or(libc::EFAULT)?;
        while !bytes.is_empty() && goes_on {
            if used == 0 && bytes.len() >= GATHERED {
                goes_on = pass(bytes)?;
                break;
            }
            let (now, later) = bytes.split_at(bytes.len().min(GATHERED - used));
            gathered[used..used + now.len()].copy_from_slice(now);
            (used, bytes) = (used + now.len(), later);
            if used == GATHERED {
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

/// `sendmsg(2)` on a socket of ours, and every other call of the family in its form.
///
/// # Safety
/// As of `sendmsg`.
unsafe fn send_message(fd: c_int, socket: &Socket, message: &msghdr, flags: c_int) -> Answer {
    // SAFETY: the caller's promise.
    unsafe {
        let vectors = vectors_of(message)?;
        match socket.role.get() {
            Some(Role::Datagrams(datagrams)) => datagrams.send(fd, socket, message, vectors, flags),
            // A stream's destination is known, and nothing goes beside its data.
            _ => send_vectors(socket, vectors, flags),
        }
    }
}

/// `sendto(2)` on a descriptor of ours.
///
/// # Safety
/// As of `sendto`.
#[inline]
unsafe fn send_ours(
    fd: c_int,
    from: *const c_void,
    length: size_t,
    flags: c_int,
    peer: *const sockaddr,
    peer_length: socklen_t,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    unsafe { udp::before_sending(fd, peer, peer_length) };
    table::with_socket(fd, |socket| {
        if socket.stream().is_some() {
            // SAFETY: the caller's promise.
            let bytes = unsafe { bytes(from, length) }.ok_or(libc::EFAULT);
            return tell_sent(bytes.and_then(|bytes| send_bytes(socket, bytes, flags)), flags);
        }
        let mut vector = iovec { iov_base: from.cast_mut(), iov_len: length };
        let mut message = datagrams::message(&raw mut vector, 1);
        (message.msg_name, message.msg_namelen) = (peer.cast_mut().cast(), peer_length);
        // SAFETY: the caller's promise.
        tell_sent(unsafe { send_message(fd, socket, &message, flags) }, flags)
    })
}

/// # Safety
/// As of `writev`.
unsafe fn send_vectors_ours(fd: c_int, vector: *const iovec, count: c_int, flags: c_int) -> Option<ssize_t> {
    table::with_socket(fd, |socket| {
        let Ok(count @ 0..=super::buffers::VECTORS) = usize::try_from(count) else { return tell(Err(libc::EINVAL)) };
        // SAFETY: the caller's promise.
        tell_sent(unsafe { send_message(fd, socket, &datagrams::message(vector.cast_mut(), count), flags) }, flags)
    })
}

/// The flags of `recv(2)` for those of `preadv2(2)`: no wait. An offset other than "here" is none of a socket's.
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
/// As of `pwritev2`.
unsafe fn send_at_ours(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> Option<ssize_t> {
    table::with_socket(fd, |_| ())?;
    match flags_of_file(offset, flags) {
        // SAFETY: the caller's promise.
        Ok(flags) => unsafe { send_vectors_ours(fd, vector, count, flags) },
        Err(number) => Some(tell(Err(number))),
    }
}

/// `sendmsg(2)` on a descriptor of ours.
///
/// # Safety
/// As of `sendmsg`.
pub(super) unsafe fn send_message_ours(fd: c_int, message: *const msghdr, flags: c_int) -> Option<ssize_t> {
    // SAFETY: the caller's promises.
    unsafe {
        if let Some(message) = message.as_ref() {
            udp::before_sending(fd, message.msg_name.cast(), message.msg_namelen);
        }
        table::with_socket(fd, |socket| match message.as_ref() {
            Some(message) => tell_sent(send_message(fd, socket, message, flags), flags),
            None => tell(Err(libc::EFAULT)),
        })
    }
}

calls! {
    /// `write(2)`.
    write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t = send_ours(fd, from, length, 0, null(), 0), WRITE;
    /// `write(2)`, as some libraries call it.
    __write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t =
        send_ours(fd, from, length, 0, null(), 0), WRITE;
    /// `send(2)`.
    send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t =
        send_ours(fd, from, length, flags, null(), 0), SEND;
    /// `send(2)`, as some libraries call it.
    __send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t =
        send_ours(fd, from, length, flags, null(), 0), SEND;
    /// `sendto(2)`.
    sendto(
        fd: c_int,
        from: *const c_void,
        length: size_t,
        flags: c_int,
        peer: *const sockaddr,
        peer_length: socklen_t
    ) -> ssize_t = send_ours(fd, from, length, flags, peer, peer_length), SENDTO;
    /// `writev(2)`.
    writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t = send_vectors_ours(fd, vector, count, 0), WRITEV;
    /// `pwritev2(2)`.
    pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        send_at_ours(fd, vector, count, offset, flags), PWRITEV2;
    /// `pwritev2(2)`, as programs with large files call it.
    pwritev64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        send_at_ours(fd, vector, count, offset, flags), PWRITEV2;
    /// `sendmsg(2)`.
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t =
        send_message_ours(fd, message, flags), SENDMSG;
}
