//! Interposed `sendfile(2)`, and `splice(2)`, which the kernel makes after a hand-over.
//!
//! The file is read at its offset with `pread(2)`, so that bytes that the socket did not accept are not lost. The file's
//! offset moves by the number of bytes sent.

use std::cell::Cell;

use libc::{c_int, c_uint, off_t, size_t, ssize_t};

use super::fd_table;
use super::handover::{Reason, hand_over};
use super::iovecs::{CallResult, interpose, return_sent, return_value};
use super::send::send_bytes;
use super::socket::Socket;
use crate::errno::errno;

/// Number of bytes that are read at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// The most that one call sends, as in the kernel (`sendfile(2)`).
const MAX_BYTES: usize = 0x7fff_f000;

thread_local! {
    /// The thread's buffer for a chunk, reused by the next call.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// # Safety
/// The same as for `sendfile`.
unsafe fn datapath_sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> Option<ssize_t> {
    if fd_table::get(from).is_some() {
        return Some(return_value(Err(libc::EINVAL)));
    }
    fd_table::with_socket(to, |socket| {
        if socket.stream().is_none() {
            return return_value(Err(libc::EINVAL));
        }
        let start = if offset.is_null() {
            // SAFETY: the call takes no pointers.
            unsafe { libc::lseek64(from, 0, libc::SEEK_CUR) }
        } else {
            // SAFETY: guaranteed by the caller.
            unsafe { offset.read() }
        };
        if start < 0 {
            // A pipe or a socket cannot be read at an offset.
            return return_value(Err(if offset.is_null() && errno() == libc::EBADF {
                libc::EBADF
            } else {
                libc::EINVAL
            }));
        }
        let answer = send_file(socket, from, start, count.min(MAX_BYTES));
        if let Ok(sent) = answer {
            let end = start + sent as off_t;
            if offset.is_null() {
                // SAFETY: the call takes no pointers.
                unsafe { libc::lseek64(from, end, libc::SEEK_SET) };
            } else {
                // SAFETY: guaranteed by the caller.
                unsafe { offset.write(end) };
            }
        }
        return_sent(answer, 0)
    })
}

/// Sends `count` bytes of a file, or what the file has and the socket accepts. An error is returned only if nothing was
/// sent.
fn send_file(socket: &Socket, from: c_int, start: off_t, count: usize) -> CallResult {
    let mut buffer = BUFFER.take();
    buffer.resize(CHUNK_BYTES, 0);
    let mut total = 0;
    let result = loop {
        let chunk = &mut buffer[..CHUNK_BYTES.min(count - total)];
        // SAFETY: the chunk has room for this many bytes.
        let read = unsafe { libc::pread64(from, chunk.as_mut_ptr().cast(), chunk.len(), start + total as off_t) };
        let Ok(read) = usize::try_from(read) else {
            break Err(if errno() == libc::ESPIPE { libc::EINVAL } else { errno() });
        };
        if read == 0 {
            break Ok(());
        }
        match send_bytes(socket, &chunk[..read], 0) {
            Ok(sent) => {
                total += sent;
                if sent < read || total == count {
                    break Ok(());
                }
            }
            Err(number) => break Err(number),
        }
    };
    BUFFER.set(buffer);
    match result {
        Err(number) if total == 0 => Err(number),
        _ => Ok(total),
    }
}

/// Hands a connection over, so that the kernel can make the call. A connection that stays fails with EINVAL; programs then
/// copy, as for other files that do not support `splice`.
fn datapath_splice(from: c_int, to: c_int) -> Option<ssize_t> {
    let is_kernels = [from, to].map(|fd| hand_over(fd, Reason::Call("splice")));
    (!is_kernels[0] || !is_kernels[1]).then(|| return_value(Err(libc::EINVAL)))
}

interpose! {
    /// `sendfile(2)`.
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t =
        datapath_sendfile(to, from, offset, count), SENDFILE;
    /// `sendfile(2)`, as programs with large-file support call it.
    sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t =
        datapath_sendfile(to, from, offset, count), SENDFILE;
    /// `splice(2)`.
    splice(
        from: c_int,
        from_offset: *mut off_t,
        to: c_int,
        to_offset: *mut off_t,
        count: size_t,
        flags: c_uint
    ) -> ssize_t = datapath_splice(from, to), SPLICE;
}
