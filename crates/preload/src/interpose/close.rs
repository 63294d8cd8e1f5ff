//! Interposed calls that close and duplicate descriptors: `close(2)`, `close_range(2)`, `closefrom(3)`, `dup(2)`, `dup2(2)`
//! and `dup3(2)`.
//!
//! The runtime's own descriptors cannot be closed or replaced: these calls fail with EBADF, or skip them in a range. An
//! epoll instance and a socket live until their last descriptor is closed, as in the kernel.

use std::ops::RangeInclusive;

use libc::{c_int, c_uint};

use super::error_codes::fail;
use super::handover::{self, Reason};
use super::{fd_table, process, runtime_fds, shared_listener, unknown_options};
use crate::real;

/// `close(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn close(fd: c_int) -> c_int {
    if runtime_fds::is_runtime_fd(fd) && !runtime_fds::give_up(fd) {
        return fail(libc::EBADF);
    }
    // Removed first: once the kernel has closed the descriptor, another thread may get its number.
    fd_table::close(fd);
    unknown_options::forget(fd);
    // SAFETY: the call takes no pointers.
    unsafe { real::CLOSE.get()(fd) }
}

/// `close_range(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        fd_table::close_range(number(first), number(last));
        return close_parts(first, last, flags);
    }
    // SAFETY: the call takes no pointers.
    unsafe { real::CLOSE_RANGE.get()(first, last, flags) }
}

/// `closefrom(3)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
extern "C" fn closefrom(first: c_int) {
    fd_table::close_range(first.max(0), c_int::MAX);
    let from = first.max(0).cast_unsigned();
    if runtime_fds::gaps(from, c_uint::MAX).eq([from..=c_uint::MAX]) {
        // SAFETY: the call takes no pointers.
        return unsafe { real::CLOSEFROM.get()(first) };
    }
    close_parts(from, c_uint::MAX, 0);
}

/// Closes the descriptors of a range except the runtime's.
fn close_parts(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first > last {
        return fail(libc::EINVAL);
    }
    // SAFETY: the call takes no pointers.
    let close = |part: RangeInclusive<_>| unsafe { real::CLOSE_RANGE.get()(*part.start(), *part.end(), flags) };
    runtime_fds::gaps(first, last).map(close).find(|answer| *answer != 0).unwrap_or(0)
}

fn number(fd: c_uint) -> c_int {
    c_int::try_from(fd).unwrap_or(c_int::MAX)
}

/// `dup(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn dup(fd: c_int) -> c_int {
    before_dup(fd, c_int::MAX);
    // SAFETY: the call takes no pointers.
    let new = unsafe { real::DUP.get()(fd) };
    duplicated(fd, new);
    new
}

/// `dup2(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if runtime_fds::is_runtime_fd(to) {
        return fail(libc::EBADF);
    }
    before_dup(fd, to);
    // SAFETY: the call takes no pointers.
    let new = unsafe { real::DUP2.get()(fd, to) };
    if fd != to {
        duplicated(fd, new);
    }
    new
}

/// `dup3(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if runtime_fds::is_runtime_fd(to) {
        return fail(libc::EBADF);
    }
    before_dup(fd, to);
    // SAFETY: the call takes no pointers.
    let new = unsafe { real::DUP3.get()(fd, to, flags) };
    duplicated(fd, new);
    new
}

/// Hands a connection over that is about to replace a standard stream, or to be duplicated in a child of `vfork(2)`, which will
/// execute a program.
pub(crate) fn before_dup(fd: c_int, to: c_int) {
    let is_stream = fd_table::with_socket(fd, |socket| socket.stream().is_some());
    if fd != to
        && to != c_int::MAX
        && let Some(object) = fd_table::entry(to)
    {
        // The number is closed, unless the call fails: then the connection is the kernel's, which does no harm.
        handover::before_close(to, &object);
    }
    let is_standard_stream = to <= libc::STDERR_FILENO;
    match is_stream.filter(|_| fd != to) {
        Some(is_stream) if (is_stream || is_standard_stream) && process::is_vforked() => {
            handover::hand_over(fd, Reason::Exec);
        }
        Some(_) if is_standard_stream => {
            handover::hand_over(fd, Reason::Passed);
        }
        _ => {}
    }
}

/// Gives `new` the table entry of `fd`.
pub(crate) fn duplicated(fd: c_int, new: c_int) {
    fd_table::made(new);
    if new < 0 {
        return;
    }
    if let Some(object) = fd_table::entry(fd) {
        // A number beyond the table stays the unconnected kernel socket; `dup` has no error for that.
        fd_table::insert(new, object);
    } else if process::is_child() {
        shared_listener::duplicate(fd, new);
    }
}
