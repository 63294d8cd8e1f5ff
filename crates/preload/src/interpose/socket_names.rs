//! Interposed `getsockname(2)` and `getpeername(2)`.

use std::net::SocketAddr;

use libc::{c_int, sockaddr, socklen_t};

use super::error_codes::fail;
use super::{fd_table, socket_address};
use crate::real;

/// `getsockname(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getsockname(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let addr = fd_table::with_socket(fd, |socket| {
        let known = match socket.datagram() {
            Some(datagram) => datagram.socket.local_addr().ok(),
            None => socket.stream().and_then(|stream| stream.local_addr().ok()),
        };
        Some((known.or(socket.datapath_only_addr)?, socket.is_v6))
    });
    match addr.flatten() {
        // SAFETY: guaranteed by the caller.
        Some((own, is_v6)) => unsafe { write_address(own, is_v6, to, length) },
        // SAFETY: the caller's guarantees are passed on.
        None => unsafe { real::GETSOCKNAME.get()(fd, to, length) },
    }
}

/// `getpeername(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn getpeername(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let addr = fd_table::with_socket(fd, |socket| {
        if let Some(datagram) = socket.datagram() {
            return (datagram.socket.peer_addr().ok(), socket.is_v6);
        }
        let stream = socket.stream().filter(|stream| stream.is_connected().unwrap_or(false));
        (stream.and_then(|stream| stream.peer_addr().ok()), socket.is_v6)
    });
    match addr {
        // SAFETY: guaranteed by the caller.
        Some((Some(peer), is_v6)) => unsafe { write_address(peer, is_v6, to, length) },
        Some((None, _)) => fail(libc::ENOTCONN),
        // SAFETY: the caller's guarantees are passed on.
        None => unsafe { real::GETPEERNAME.get()(fd, to, length) },
    }
}

/// Writes an address for the program.
///
/// # Safety
/// The same as for `getsockname`.
unsafe fn write_address(at: SocketAddr, is_v6: bool, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    if to.is_null() || length.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { socket_address::write(at, is_v6, to, length) };
    0
}
