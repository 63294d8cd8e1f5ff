//! Interposed calls that create epoll instances and listeners: `epoll_create(2)`, `epoll_create1(2)`, `socket(2)` and
//! `listen(2)`.
//!
//! Each calls the C library first and then applies the mode's parameters to the new descriptor. The call's result and
//! errno are the C library's, whether or not the parameters could be applied.

use std::os::fd::BorrowedFd;

use abey_linux::{epoll, steer};
use libc::c_int;

use crate::interpose::{self, fd_table};
use crate::report::Topic;
use crate::{config, epoll_ctl, real};

/// `epoll_create(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    new_epoll(unsafe { real::EPOLL_CREATE.get()(size) })
}

/// `epoll_create1(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    new_epoll(unsafe { real::EPOLL_CREATE1.get()(flags) })
}

/// `socket(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { real::SOCKET.get()(domain, kind, protocol) };
    fd_table::made(fd);
    if let Some(span) = config::get().socket_busy_poll
        && let Some(socket) = borrow(fd)
        && matches!(domain, libc::AF_INET | libc::AF_INET6)
    {
        config::apply(Topic::Socket, || {
            epoll::set_socket_busy_poll(socket, span).map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => {
                    format!("cannot set SO_BUSY_POLL to {span}: permission denied; run as root or with CAP_NET_ADMIN")
                }
                _ => format!("cannot set SO_BUSY_POLL to {span}: {error}"),
            })
        });
    }
    fd
}

/// `listen(2)`.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some(answer) = interpose::listen(fd, backlog) {
        return answer;
    }
    // SAFETY: the call takes no pointers.
    let answer = unsafe { real::LISTEN.get()(fd, backlog) };
    if answer == 0
        && let Some(steering) = config::get().steering
        && let Some(listener) = borrow(fd)
    {
        config::apply(Topic::Steering, || steer::steer(listener, steering.queues).map(|_| ()));
    }
    answer
}

fn new_epoll(fd: c_int) -> c_int {
    fd_table::made(fd);
    epoll_ctl::created(fd);
    interpose::epoll_set::created(fd);
    if let Some(busy_poll) = &config::get().epoll
        && let Some(instance) = borrow(fd)
    {
        config::apply(Topic::Epoll, || epoll::set(instance, busy_poll));
    }
    fd
}

/// Borrows the descriptor that a call returned, unless the call failed.
fn borrow(fd: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY: open, since the call that just succeeded made or used it; borrowed for the rest of this call only.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}
