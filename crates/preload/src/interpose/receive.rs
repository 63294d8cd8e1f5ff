//! Interposed calls that receive: `read(2)`, `readv(2)`, `preadv2(2)`, `recv(2)`, `recvfrom(2)` and `recvmsg(2)`.
//!
//! All are converted to one form. A stream and a UDP socket of the datapath answer; for any other descriptor the kernel
//! does.

use std::ptr::null_mut;

use abey_datapath::{Readiness, TcpStream};
use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::datagram_io::DatagramCall;
use super::fd_table;
use super::handover::{Reason, hand_over};
use super::iovecs::{
    CallResult, FILE_CALL, interpose, iovecs, message_iovecs, msghdr_of, retry_until_ready, return_value, total_length,
    writable_slice, writable_slices,
};
use super::socket::{Role, Socket};

/// Number of bytes that are discarded at a time.
const DISCARD_BYTES: usize = 4096;

fn receive_once(socket: &Socket, stream: &TcpStream, to: &mut [u8], flags: c_int) -> CallResult {
    let is_peek = flags & libc::MSG_PEEK != 0;
    retry_until_ready(None, socket, Readiness::READABLE, flags, || {
        if is_peek { stream.try_peek(to) } else { stream.try_read(to) }
    })
}

/// Returns the socket's stream, unless it has none or a flag is not possible on a stream.
fn stream_of(socket: &Socket, flags: c_int) -> Result<&TcpStream, c_int> {
    let stream = socket.stream().ok_or(libc::ENOTCONN)?;
    match flags {
        // There is no out-of-band data: urgent data is received in the stream (RFC 6093).
        _ if flags & libc::MSG_OOB != 0 => Err(libc::EINVAL),
        _ if flags & libc::MSG_ERRQUEUE != 0 => Err(libc::EAGAIN),
        _ => Ok(stream),
    }
}

/// Fills the buffers with what can be received. Waits for the first byte if the call may block, and for all with
/// MSG_WAITALL.
fn receive_stream<'a>(socket: &Socket, buffers: impl Iterator<Item = &'a mut [u8]>, flags: c_int) -> CallResult {
    let stream = stream_of(socket, flags)?;
    let is_peek = flags & libc::MSG_PEEK != 0;
    let all = flags & libc::MSG_WAITALL != 0 && !is_peek;
    let (mut total, mut is_empty) = (0, true);
    for buffer in buffers.filter(|buffer| !buffer.is_empty()) {
        is_empty = false;
        let mut filled = 0;
        while filled < buffer.len() {
            let flags = if total == 0 || all { flags } else { flags | libc::MSG_DONTWAIT };
            match receive_once(socket, stream, &mut buffer[filled..], flags) {
                Ok(0) => return Ok(total),
                Ok(count) => {
                    filled += count;
                    total += count;
                }
                Err(number) => return if total > 0 { Ok(total) } else { Err(number) },
            }
            if !all {
                break;
            }
        }
        // Nothing more is there, or a peek would return the same bytes again.
        if filled < buffer.len() || is_peek {
            break;
        }
    }
    if is_empty && flags & FILE_CALL == 0 {
        // `recv` with a length of zero waits for data or the end, as in the kernel.
        return receive_once(socket, stream, &mut [], flags | libc::MSG_PEEK);
    }
    Ok(total)
}

/// Discards up to `count` received bytes (MSG_TRUNC), or with MSG_PEEK returns how many there are.
fn discard(socket: &Socket, mut count: usize, flags: c_int) -> CallResult {
    let mut discarded = [0; DISCARD_BYTES];
    let mut total = 0;
    loop {
        let now = count.min(DISCARD_BYTES);
        let wait = if total == 0 { 0 } else { libc::MSG_DONTWAIT };
        let removed = receive_stream(socket, std::iter::once(&mut discarded[..now]), flags | wait);
        match removed {
            Ok(removed) if removed == now && now < count && flags & libc::MSG_PEEK == 0 => {
                total += removed;
                count -= removed;
            }
            Ok(removed) => return Ok(total + removed),
            Err(_) if total > 0 => return Ok(total),
            Err(number) => return Err(number),
        }
    }
}

/// Receives as `recvmsg(2)`, the form to which the other calls are converted. `msg_iov` has been checked.
///
/// # Safety
/// The same as for `recvmsg`.
pub(super) unsafe fn receive(fd: c_int, socket: &Socket, message: &mut msghdr, flags: c_int) -> CallResult {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if let Some(Role::Datagram(datagram)) = socket.role.get() {
            return DatagramCall { fd, socket, datagram, flags }.receive(message);
        }
        let vectors = message_iovecs(message)?;
        let count = if flags & libc::MSG_TRUNC != 0 {
            discard(socket, total_length(vectors), flags)?
        } else {
            receive_stream(socket, writable_slices(vectors), flags)?
        };
        // A stream has neither a sender's address nor ancillary data.
        (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
        Ok(count)
    }
}

/// Hands a connection over for what only the kernel can receive.
#[inline]
fn hand_over_for_flags(fd: c_int, flags: c_int) {
    if flags & libc::MSG_OOB != 0 {
        hand_over(fd, Reason::Call("MSG_OOB"));
    }
}

/// Receives as `recvfrom(2)`. Returns `None` if `fd` is not a datapath socket.
///
/// # Safety
/// The same as for `recvfrom`.
#[inline]
unsafe fn datapath_recvfrom(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
    peer: *mut sockaddr,
    peer_length: *mut socklen_t,
) -> Option<ssize_t> {
    hand_over_for_flags(fd, flags);
    fd_table::with_socket(fd, |socket| {
        // SAFETY: guaranteed by the caller.
        let simple = socket.stream().is_some() && flags & libc::MSG_TRUNC == 0 && peer.is_null();
        if simple {
            // SAFETY: guaranteed by the caller.
            let Some(room) = (unsafe { writable_slice(to, length) }) else { return return_value(Err(libc::EFAULT)) };
            return return_value(receive_stream(socket, std::iter::once(room), flags));
        }
        let mut vector = iovec { iov_base: to, iov_len: length };
        let mut message = msghdr_of(&raw mut vector, 1);
        // SAFETY: guaranteed by the caller.
        unsafe {
            if !peer.is_null() {
                if peer_length.is_null() {
                    return return_value(Err(libc::EFAULT));
                }
                (message.msg_name, message.msg_namelen) = (peer.cast(), peer_length.read());
            }
            // With MSG_TRUNC the buffer of a stream may be null, since the bytes are discarded.
            let throws = flags & libc::MSG_TRUNC != 0 && socket.stream().is_some();
            if to.is_null() && length > 0 && !throws {
                return return_value(Err(libc::EFAULT));
            }
            let answer = if throws { discard(socket, length, flags) } else { receive(fd, socket, &mut message, flags) };
            if answer.is_ok() && !peer.is_null() {
                peer_length.write(if throws { 0 } else { message.msg_namelen });
            }
            return_value(answer)
        }
    })
}

/// # Safety
/// The same as for `readv`.
unsafe fn datapath_readv(fd: c_int, vector: *const iovec, count: c_int, flags: c_int) -> Option<ssize_t> {
    fd_table::with_socket(fd, |socket| {
        // SAFETY: guaranteed by the caller.
        let answer =
            unsafe { iovecs(vector, usize::try_from(count).unwrap_or(usize::MAX), libc::EINVAL) }.and_then(|vectors| {
                match total_length(vectors) {
                    0 => Ok(0),
                    // SAFETY: guaranteed by the caller; the `iovec`s are not changed.
                    _ => unsafe { receive(fd, socket, &mut msghdr_of(vector.cast_mut(), vectors.len()), flags) },
                }
            });
        return_value(answer)
    })
}

/// Receives as `preadv2(2)`. A socket has no offset, and of the flags only RWF_NOWAIT.
///
/// # Safety
/// The same as for `preadv2`.
unsafe fn datapath_preadv2(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Option<ssize_t> {
    fd_table::with_socket(fd, |_| ())?;
    match super::send::flags_of_file(offset, flags) {
        // SAFETY: guaranteed by the caller.
        Ok(flags) => unsafe { datapath_readv(fd, vector, count, flags | FILE_CALL) },
        Err(number) => Some(return_value(Err(number))),
    }
}

/// Receives as `recvmsg(2)`. Returns `None` if `fd` is not a datapath socket.
///
/// # Safety
/// The same as for `recvmsg`.
pub(super) unsafe fn datapath_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    hand_over_for_flags(fd, flags);
    fd_table::with_socket(fd, |socket| {
        // SAFETY: guaranteed by the caller.
        return_value(match unsafe { message.as_mut() } {
            // SAFETY: as above.
            Some(message) => unsafe { receive(fd, socket, message, flags) },
            None => Err(libc::EFAULT),
        })
    })
}

interpose! {
    /// `read(2)`.
    read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t =
        datapath_recvfrom(fd, to, length, FILE_CALL, null_mut(), null_mut()), READ;
    /// `__read`, by which some libraries call `read(2)`.
    __read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t =
        datapath_recvfrom(fd, to, length, FILE_CALL, null_mut(), null_mut()), READ;
    /// `recv(2)`.
    recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t =
        datapath_recvfrom(fd, to, length, flags, null_mut(), null_mut()), RECV;
    /// `recvfrom(2)`.
    recvfrom(
        fd: c_int,
        to: *mut c_void,
        length: size_t,
        flags: c_int,
        peer: *mut sockaddr,
        peer_length: *mut socklen_t
    ) -> ssize_t = datapath_recvfrom(fd, to, length, flags, peer, peer_length), RECVFROM;
    /// `readv(2)`.
    readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t =
        datapath_readv(fd, vector, count, FILE_CALL), READV;
    /// `preadv2(2)`.
    preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        datapath_preadv2(fd, vector, count, offset, flags), PREADV2;
    /// `preadv2(2)`, as programs with large-file support call it.
    preadv64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        datapath_preadv2(fd, vector, count, offset, flags), PREADV2;
    /// `recvmsg(2)`.
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t =
        datapath_recvmsg(fd, message, flags), RECVMSG;
}

/// `__read_chk`, which programs built with `_FORTIFY_SOURCE` call.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(fd: c_int, to: *mut c_void, length: size_t, room: size_t) -> ssize_t {
    check(length, room);
    // SAFETY: the caller's guarantees are passed on.
    unsafe { read(fd, to, length) }
}

/// `__recv_chk`, as [`__read_chk`].
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(length, room);
    // SAFETY: the caller's guarantees are passed on.
    unsafe { recv(fd, to, length, flags) }
}

/// `__recvfrom_chk`, as [`__read_chk`].
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    peer: *mut sockaddr,
    peer_length: *mut socklen_t,
) -> ssize_t {
    check(length, room);
    // SAFETY: the caller's guarantees are passed on.
    unsafe { recvfrom(fd, to, length, flags, peer, peer_length) }
}

/// Aborts if the program's buffer is too small, as the C library does.
fn check(length: size_t, room: size_t) {
    if length > room {
        std::process::abort();
    }
}
