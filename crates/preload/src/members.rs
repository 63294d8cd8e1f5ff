//! Which epoll instances watch connections, and so have a queue to busy poll.
//!
//! A server's accept loop has an epoll instance of its own, with a listening socket in it. Waking it every millisecond,
//! to poll a queue that its worker polls already, would only take the CPU from the worker. So an instance is waited for
//! in pieces from the first socket on that is not listening. One that this library did not see being made (inherited,
//! or duplicated) is taken to have some.

use std::sync::atomic::{AtomicU8, Ordering};

use libc::{c_int, epoll_event};

use crate::{face, real, state};

/// Descriptors that notes are kept of; those above are taken to watch connections.
const NOTED: usize = 4096;

const UNSEEN: u8 = 0;
const NO_CONNECTION: u8 = 1;
const CONNECTIONS: u8 = 2;

static NOTES: [AtomicU8; NOTED] = [const { AtomicU8::new(UNSEEN) }; NOTED];

fn note(epfd: c_int) -> Option<&'static AtomicU8> {
    NOTES.get(usize::try_from(epfd).ok()?)
}

/// Takes note of a new instance.
pub(crate) fn made(epfd: c_int) {
    if let Some(note) = note(epfd) {
        note.store(NO_CONNECTION, Ordering::Relaxed);
    }
}

/// Whether a wait for this instance can find packets by busy polling.
#[inline]
pub(crate) fn has_connections(epfd: c_int) -> bool {
    note(epfd).is_none_or(|note| note.load(Ordering::Relaxed) != NO_CONNECTION)
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the caller's promises are passed on.
    if let Some(answer) = unsafe { face::control(epfd, op, fd, event) } {
        return answer;
    }
    // SAFETY: the caller's promises are passed on.
    let answer = unsafe { real::EPOLL_CTL.get()(epfd, op, fd, event) };
    if answer == 0 {
        // SAFETY: as above.
        unsafe { face::changed(epfd, op, fd, event) };
    }
    if answer == 0
        && op == libc::EPOLL_CTL_ADD
        && state::get().max_wait.is_some()
        && let Some(note) = note(epfd)
        && note.load(Ordering::Relaxed) == NO_CONNECTION
        && is_connection(fd)
    {
        note.store(CONNECTIONS, Ordering::Relaxed);
    }
    answer
}

/// Whether packets for this descriptor can arrive through a device's queue: an internet socket that does not listen.
fn is_connection(fd: c_int) -> bool {
    let ask = |option| {
        let mut value: c_int = 0;
        let mut length = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the value and its length live through the call; a descriptor that is no socket is an error of it.
        let answer =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length) };
        (answer == 0).then_some(value)
    };
    state::keep_errno(|| {
        matches!(ask(libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6)) && ask(libc::SO_ACCEPTCONN) == Some(0)
    })
}
