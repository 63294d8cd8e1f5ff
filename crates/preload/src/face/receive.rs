//! Reading: one look at the table, and then the stream, the datagrams, or the kernel.

use std::ptr::null_mut;

use abey_datapath::{Readiness, TcpStream};
use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::buffers::{Answer, blocking, calls, length, room, rooms, tell, vectors, vectors_of};
use super::socket::{Role, Socket};
use super::{datagrams, table};

/// What is thrown away at a time.
const SCRAP: usize = 4096;

/// Flags beside those of `recv(2)`, which leave the upper bits alone: the call is one of a file's, to which no bytes are
/// no wait.
pub(super) const OF_A_FILE: c_int = 1 << 20;

fn receive_once(socket: &Socket, stream: &TcpStream, to: &mut [u8], flags: c_int) -> Answer {
    let is_peek = flags & libc::MSG_PEEK != 0;
    blocking(
        None,
        socket,
        Readiness::READABLE,
        flags,
        || if is_peek { stream.try_peek(to) } else { stream.try_read(to) },
    )
}

/// The stream of a socket that has one, and flags that one has.
fn stream_of(socket: &Socket, flags: c_int) -> Result<&TcpStream, c_int> {
    let stream = socket.stream().ok_or(libc::ENOTCONN)?;
    match flags {
        // There is no urgent data: it is data like any other (RFC 6093).
        _ if flags & libc::MSG_OOB != 0 => Err(libc::EINVAL),
        _ if flags & libc::MSG_ERRQUEUE != 0 => Err(libc::EAGAIN),
        _ => Ok(stream),
    }
}

/// Fills the buffers as far as there is something; the first with waiting, if that is so.
fn receive_stream<'a>(socket: &Socket, buffers: impl Iterator<Item = &'a mut [u8]>, flags: c_int) -> Answer {
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
        // There was no more, or it is not to be looked at again.
        if filled < buffer.len() || is_peek {
            break;
        }
    }
    if is_empty && flags & OF_A_FILE == 0 {
        // Even nothing is waited for.
        return receive_once(socket, stream, &mut [], flags | libc::MSG_PEEK);
    }
    Ok(total)
}

/// Throws away up to `count` bytes that came in (MSG_TRUNC), or says how many there are.
fn discard(socket: &Socket, mut count: usize, flags: c_int) -> Answer {
    let mut scrap = [0; SCRAP];
    let mut total = 0;
    loop {
        let now = count.min(SCRAP);
        let wait = if total == 0 { 0 } else { libc::MSG_DONTWAIT };
        let gone = receive_stream(socket, std::iter::once(&mut scrap[..now]), flags | wait);
        match gone {
            Ok(gone) if gone == now && now < count && flags & libc::MSG_PEEK == 0 => {
                total += gone;
                count -= gone;
            }
            Ok(gone) => return Ok(total + gone),
            Err(_) if total > 0 => return Ok(total),
            Err(number) => return Err(number),
        }
    }
}

/// `recvmsg(2)` of a socket of ours, and every other call of the family in its form. `msg_iov` was looked at.
///
/// # Safety
/// As of `recvmsg`.
pub(super) unsafe fn receive(fd: c_int, socket: &Socket, message: &mut msghdr, flags: c_int) -> Answer {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(Role::Datagrams(datagrams)) = socket.role.get() {
            return datagrams.receive(fd, socket, message, flags);
        }
        let vectors = vectors_of(message)?;
        let count = if flags & libc::MSG_TRUNC != 0 {
            discard(socket, length(vectors), flags)?
        } else {
            receive_stream(socket, rooms(vectors), flags)?
        };
        // A stream's data has no sender's address, and nothing beside it.
        (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
        Ok(count)
    }
}

/// `recvfrom(2)` of a descriptor of ours.
///
/// # Safety
/// As of `recvfrom`.
#[inline]
unsafe fn receive_ours(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    flags: c_int,
    peer: *mut sockaddr,
    peer_length: *mut socklen_t,
) -> Option<ssize_t> {
    table::with_socket(fd, |socket| {
        // SAFETY: the caller's promise.
        let simple = socket.stream().is_some() && flags & libc::MSG_TRUNC == 0 && peer.is_null();
        if simple {
            // SAFETY: the caller's promise.
            let Some(room) = (unsafe { room(to, length) }) else { return tell(Err(libc::EFAULT)) };
            return tell(receive_stream(socket, std::iter::once(room), flags));
        }
        let mut vector = iovec { iov_base: to, iov_len: length };
        let mut message = datagrams::message(&raw mut vector, 1);
        // SAFETY: the caller's promises.
        unsafe {
            if !peer.is_null() {
                if peer_length.is_null() {
                    return tell(Err(libc::EFAULT));
                }
                (message.msg_name, message.msg_namelen) = (peer.cast(), peer_length.read());
            }
            // The buffer may be null if what comes is thrown away.
            let throws = flags & libc::MSG_TRUNC != 0 && socket.stream().is_some();
            if to.is_null() && length > 0 && !throws {
                return tell(Err(libc::EFAULT));
            }
            let answer = if throws { discard(socket, length, flags) } else { receive(fd, socket, &mut message, flags) };
            if answer.is_ok() && !peer.is_null() {
                peer_length.write(if throws { 0 } else { message.msg_namelen });
            }
            tell(answer)
        }
    })
}

/// # Safety
/// As of `readv`.
unsafe fn receive_vectors_ours(fd: c_int, vector: *const iovec, count: c_int, flags: c_int) -> Option<ssize_t> {
    table::with_socket(fd, |socket| {
        // SAFETY: the caller's promise.
        let answer = unsafe { vectors(vector, usize::try_from(count).unwrap_or(usize::MAX), libc::EINVAL) }.and_then(
            |vectors| match length(vectors) {
                0 => Ok(0),
                // SAFETY: the caller's promise; the structures are not changed.
                _ => unsafe { receive(fd, socket, &mut datagrams::message(vector.cast_mut(), vectors.len()), flags) },
            },
        );
        tell(answer)
    })
}

/// As [`receive_vectors_ours`], at an offset, of which a socket has none, and with flags of which it has one.
///
/// # Safety
/// As of `preadv2`.
unsafe fn receive_at_ours(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> Option<ssize_t> {
    table::with_socket(fd, |_| ())?;
    match super::send::flags_of_file(offset, flags) {
        // SAFETY: the caller's promise.
        Ok(flags) => unsafe { receive_vectors_ours(fd, vector, count, flags | OF_A_FILE) },
        Err(number) => Some(tell(Err(number))),
    }
}

/// `recvmsg(2)` of a descriptor of ours.
///
/// # Safety
/// As of `recvmsg`.
pub(super) unsafe fn receive_message_ours(fd: c_int, message: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    table::with_socket(fd, |socket| {
        // SAFETY: the caller's promise.
        tell(match unsafe { message.as_mut() } {
            // SAFETY: as above.
            Some(message) => unsafe { receive(fd, socket, message, flags) },
            None => Err(libc::EFAULT),
        })
    })
}

calls! {
    /// `read(2)`.
    read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t =
        receive_ours(fd, to, length, OF_A_FILE, null_mut(), null_mut()), READ;
    /// `read(2)`, as some libraries call it.
    __read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t =
        receive_ours(fd, to, length, OF_A_FILE, null_mut(), null_mut()), READ;
    /// `recv(2)`.
    recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t =
        receive_ours(fd, to, length, flags, null_mut(), null_mut()), RECV;
    /// `recvfrom(2)`.
    recvfrom(
        fd: c_int,
        to: *mut c_void,
        length: size_t,
        flags: c_int,
        peer: *mut sockaddr,
        peer_length: *mut socklen_t
    ) -> ssize_t = receive_ours(fd, to, length, flags, peer, peer_length), RECVFROM;
    /// `readv(2)`.
    readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t =
        receive_vectors_ours(fd, vector, count, OF_A_FILE), READV;
    /// `preadv2(2)`.
    preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        receive_at_ours(fd, vector, count, offset, flags), PREADV2;
    /// `preadv2(2)`, as programs with large files call it.
    preadv64v2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        receive_at_ours(fd, vector, count, offset, flags), PREADV2;
    /// `recvmsg(2)`.
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t =
        receive_message_ours(fd, message, flags), RECVMSG;
}

/// `__read_chk`, which a program calls that was built with checks of its buffers.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(fd: c_int, to: *mut c_void, length: size_t, room: size_t) -> ssize_t {
    check(length, room);
    // SAFETY: the caller's promises are passed on.
    unsafe { read(fd, to, length) }
}

/// `__recv_chk`, as [`__read_chk`].
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    to: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(length, room);
    // SAFETY: the caller's promises are passed on.
    unsafe { recv(fd, to, length, flags) }
}

/// `__recvfrom_chk`, as [`__read_chk`].
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
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
    // SAFETY: the caller's promises are passed on.
    unsafe { recvfrom(fd, to, length, flags, peer, peer_length) }
}

/// What the C library does too, with more words.
fn check(length: size_t, room: size_t) {
    if length > room {
        std::process::abort();
    }
}
