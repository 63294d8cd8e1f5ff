//! Files to sockets: `sendfile(2)`. And `splice(2)`, which a socket of ours has not, as some of the kernel's have not.
//!
//! The file is read in pieces where it is to be read from, so that what a socket did not take is not lost, and the file's
//! own place moves by what was sent only.

use std::cell::Cell;

use libc::{c_int, c_uint, off_t, size_t, ssize_t};

use super::buffers::{Answer, calls, tell, tell_sent};
use super::send::send_bytes;
use super::socket::Socket;
use super::table;
use crate::wait::errno;

/// What is read at a time.
const PIECE: usize = 64 << 10;
/// What one call sends at most, as the kernel's (`sendfile(2)`).
const MOST: usize = 0x7fff_f000;

thread_local! {
    /// The thread's room for a piece, kept from one call to the next.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// # Safety
/// As of `sendfile`.
unsafe fn send_ours(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> Option<ssize_t> {
    if table::get(from).is_some() {
        return Some(tell(Err(libc::EINVAL)));
    }
    table::with_socket(to, |socket| {
        if socket.stream().is_none() {
            return tell(Err(libc::EINVAL));
        }
        let start = if offset.is_null() {
            // SAFETY: takes no pointers.
            unsafe { libc::lseek64(from, 0, libc::SEEK_CUR) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { offset.read() }
        };
        if start < 0 {
            // A pipe or a socket cannot be read twice.
            return tell(Err(if offset.is_null() && errno() == libc::EBADF { libc::EBADF } else { libc::EINVAL }));
        }
        let answer = pass(socket, from, start, count.min(MOST));
        if let Ok(sent) = answer {
            let end = start + sent as off_t;
            if offset.is_null() {
                // SAFETY: takes no pointers.
                unsafe { libc::lseek64(from, end, libc::SEEK_SET) };
            } else {
                // SAFETY: the caller's promise.
                unsafe { offset.write(end) };
            }
        }
        tell_sent(answer, 0)
    })
}

/// Sends `count` bytes of a file, or what there is. An error is told unless something was sent.
fn pass(socket: &Socket, from: c_int, start: off_t, count: usize) -> Answer {
    let mut room = ROOM.take();
    room.resize(PIECE, 0);
    let mut total = 0;
    let result = loop {
        let piece = &mut room[..PIECE.min(count - total)];
        // SAFETY: the piece has room for as many bytes.
        let read = unsafe { libc::pread64(from, piece.as_mut_ptr().cast(), piece.len(), start + total as off_t) };
        let Ok(read) = usize::try_from(read) else {
            break Err(if errno() == libc::ESPIPE { libc::EINVAL } else { errno() });
        };
        if read == 0 {
            break Ok(());
        }
        match send_bytes(socket, &piece[..read], 0) {
            Ok(sent) => {
                total += sent;
                if sent < read || total == count {
                    break Ok(());
                }
            }
            Err(number) => break Err(number),
        }
    };
    ROOM.set(room);
    match result {
        Err(number) if total == 0 => Err(number),
        _ => Ok(total),
    }
}

/// Programs that know `splice` know what to do without.
fn splice_ours(from: c_int, to: c_int) -> Option<ssize_t> {
    let is_ours = table::with_socket(from, |_| ()).or_else(|| table::with_socket(to, |_| ()));
    is_ours.map(|()| tell(Err(libc::EINVAL)))
}

calls! {
    /// `sendfile(2)`.
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t =
        send_ours(to, from, offset, count), SENDFILE;
    /// `sendfile(2)`, as programs with large files call it.
    sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t =
        send_ours(to, from, offset, count), SENDFILE;
    /// `splice(2)`.
    splice(
        from: c_int,
        from_offset: *mut off_t,
        to: c_int,
        to_offset: *mut off_t,
        count: size_t,
        flags: c_uint
    ) -> ssize_t = splice_ours(from, to), SPLICE;
}
