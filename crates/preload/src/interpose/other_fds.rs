//! Interposed calls that make descriptors of kinds of which the runtime has some: `socketpair(2)`, `eventfd(2)` and
//! `timerfd_create(2)`.
//!
//! They only report what they made, so that it is distinguished from the descriptors of the runtime
//! ([`runtime_fds`](super::runtime_fds)).

use libc::{c_int, c_uint};

use super::fd_table;
use crate::real;

/// `socketpair(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn socketpair(domain: c_int, kind: c_int, protocol: c_int, pair: *mut c_int) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
    let answer = unsafe { real::SOCKETPAIR.get()(domain, kind, protocol, pair) };
    if answer == 0 {
        for at in 0..2 {
            // SAFETY: the call has written two descriptors.
            fd_table::made(unsafe { pair.add(at).read() });
        }
    }
    answer
}

/// `eventfd(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) extern "C" fn eventfd(count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { real::EVENTFD.get()(count, flags) };
    fd_table::made(fd);
    fd
}

/// `timerfd_create(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) extern "C" fn timerfd_create(clock: c_int, flags: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { real::TIMERFD_CREATE.get()(clock, flags) };
    fd_table::made(fd);
    fd
}
