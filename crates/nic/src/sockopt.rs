//! Socket options that rustix and nix do not have.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h` (Linux 5.14).
const SO_NETNS_COOKIE: libc::c_int = 71;
/// `SO_PEERPIDFD` of `asm-generic/socket.h` (Linux 6.5).
const SO_PEERPIDFD: libc::c_int = 77;

/// A type of which every bit pattern is a value.
trait Plain: Copy {}

impl Plain for u64 {}
impl Plain for RawFd {}

fn get<T: Plain>(socket: impl AsFd, option: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` has room for the `length` bytes that the kernel writes at most.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, value.as_mut_ptr().cast(), &raw mut length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every byte is initialized, and every bit pattern is a value.
    Ok(unsafe { value.assume_init() })
}

/// Returns a number of the socket's network namespace that no other namespace has had since the machine started.
pub(crate) fn netns_cookie(socket: impl AsFd) -> io::Result<u64> {
    get(socket, SO_NETNS_COOKIE)
}

/// Returns a descriptor of the process that connected.
pub(crate) fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let descriptor: RawFd = get(socket, SO_PEERPIDFD)?;
    // SAFETY: the kernel has made a new descriptor for this process, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
