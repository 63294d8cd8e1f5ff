//! The interposed `epoll_ctl(2)`, and which epoll instances contain connections.
//!
//! Only an instance that contains a connection has a queue to busy poll. A server's accept loop often has an epoll
//! instance of its own, which contains a listening socket only. To wake it every millisecond would poll a queue that the
//! worker polls already, and take the CPU from the worker. So an instance is waited for in slices from when the first
//! socket that does not listen is added. An instance that was inherited or duplicated, whose members this library did not
//! see being added, is treated as if it contained connections.

use std::sync::atomic::{AtomicU8, Ordering};

use libc::{c_int, epoll_event};

use crate::errno::preserve_errno;
use crate::{config, interpose, real};

/// Number of descriptors whose members are tracked. Higher ones are treated as if they contained connections.
const TRACKED: usize = 4096;

const UNKNOWN: u8 = 0;
const NO_CONNECTION: u8 = 1;
const CONNECTIONS: u8 = 2;

static MEMBERS: [AtomicU8; TRACKED] = [const { AtomicU8::new(UNKNOWN) }; TRACKED];

fn tracked(epfd: c_int) -> Option<&'static AtomicU8> {
    MEMBERS.get(usize::try_from(epfd).ok()?)
}

/// Records that `epfd` is a new instance, without members.
pub(crate) fn created(epfd: c_int) {
    if let Some(members) = tracked(epfd) {
        members.store(NO_CONNECTION, Ordering::Relaxed);
    }
}

/// Returns whether a wait for this instance can find packets by busy polling.
#[inline]
pub(crate) fn has_connections(epfd: c_int) -> bool {
    tracked(epfd).is_none_or(|members| members.load(Ordering::Relaxed) != NO_CONNECTION)
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's guarantees are passed on.
    if let Some(answer) = unsafe { interpose::ctl(epfd, op, fd, event) } {
        return answer;
    }
    // SAFETY: the caller's guarantees are passed on.
    let answer = unsafe { real::EPOLL_CTL.get()(epfd, op, fd, event) };
    if answer == 0 {
        // SAFETY: as above.
        unsafe { interpose::after_kernel_ctl(epfd, op, fd, event) };
    }
    if answer == 0
        && op == libc::EPOLL_CTL_ADD
        && config::get().max_wait.is_some()
        && let Some(members) = tracked(epfd)
        && members.load(Ordering::Relaxed) == NO_CONNECTION
        && is_connection(fd)
    {
        members.store(CONNECTIONS, Ordering::Relaxed);
    }
    answer
}

/// Returns whether `fd` is an IPv4 or IPv6 socket that does not listen, whose packets arrive through a device's queue.
fn is_connection(fd: c_int) -> bool {
    let ask = |option| {
        let mut value: c_int = 0;
        let mut length = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the value and its length live through the call, which fails for a descriptor that is not a socket.
        let answer =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length) };
        (answer == 0).then_some(value)
    };
    preserve_errno(|| {
        matches!(ask(libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6)) && ask(libc::SO_ACCEPTCONN) == Some(0)
    })
}
