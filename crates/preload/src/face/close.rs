//! Numbers that come and go: close and dup in all their forms.

use std::ops::RangeInclusive;

use libc::{c_int, c_uint};

use super::errno::fail;
use super::{descriptors, table};
use crate::real;

/// `close(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C-unwind" fn close(fd: c_int) -> c_int {
    if descriptors::is_ours(fd) {
        return fail(libc::EBADF);
    }
    // Before: as soon as the kernel has closed it, another thread may get the number.
    table::forget(fd);
    // SAFETY: takes no pointers.
    unsafe { real::CLOSE.get()(fd) }
}

/// `close_range(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        table::forget_range(number(first), number(last));
        return close_parts(first, last, flags);
    }
    // SAFETY: takes no pointers.
    unsafe { real::CLOSE_RANGE.get()(first, last, flags) }
}

/// `closefrom(3)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C" fn closefrom(first: c_int) {
    table::forget_range(first.max(0), c_int::MAX);
    let from = first.max(0).cast_unsigned();
    if descriptors::not_ours(from, c_uint::MAX).eq([from..=c_uint::MAX]) {
        // SAFETY: takes no pointers.
        return unsafe { real::CLOSEFROM.get()(first) };
    }
    close_parts(from, c_uint::MAX, 0);
}

/// Closes a range but for the runtime's descriptors.
fn close_parts(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first > last {
        return fail(libc::EINVAL);
    }
    // SAFETY: takes no pointers.
    let close = |part: RangeInclusive<_>| unsafe { real::CLOSE_RANGE.get()(*part.start(), *part.end(), flags) };
    descriptors::not_ours(first, last).map(close).find(|answer| *answer != 0).unwrap_or(0)
}

fn number(fd: c_uint) -> c_int {
    c_int::try_from(fd).unwrap_or(c_int::MAX)
}

/// `dup(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: takes no pointers.
    let new = unsafe { real::DUP.get()(fd) };
    duplicated(fd, new);
    new
}

/// `dup2(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    if descriptors::is_ours(to) {
        return fail(libc::EBADF);
    }
    // SAFETY: takes no pointers.
    let new = unsafe { real::DUP2.get()(fd, to) };
    if fd != to {
        duplicated(fd, new);
    }
    new
}

/// `dup3(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    if descriptors::is_ours(to) {
        return fail(libc::EBADF);
    }
    // SAFETY: takes no pointers.
    let new = unsafe { real::DUP3.get()(fd, to, flags) };
    duplicated(fd, new);
    new
}

/// `new` is what `fd` is.
pub(crate) fn duplicated(fd: c_int, new: c_int) {
    table::forget(new);
    if new >= 0
        && let Some(object) = table::share(fd)
    {
        // A number that is too high is the kernel's unconnected socket: there is no room to say so.
        table::put(new, object);
    }
}
