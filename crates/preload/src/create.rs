//! The calls that make epoll instances and sockets: what a mode asks for is set on each new one.

use std::os::fd::BorrowedFd;

use abey_linux::{epoll, steer};
use libc::c_int;

use crate::face::{self, table};
use crate::report::Topic;
use crate::{members, real, state};

/// `epoll_create(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: takes no pointers.
    new_epoll(unsafe { real::EPOLL_CREATE.get()(size) })
}

/// `epoll_create1(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: takes no pointers.
    new_epoll(unsafe { real::EPOLL_CREATE1.get()(flags) })
}

/// `socket(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: takes no pointers.
    let fd = unsafe { real::SOCKET.get()(domain, kind, protocol) };
    table::forget(fd);
    if let Some(span) = state::get().socket_busy_poll
        && let Some(socket) = borrow(fd)
        && matches!(domain, libc::AF_INET | libc::AF_INET6)
    {
        state::aside(Topic::Socket, || {
            epoll::set_socket_busy_poll(socket, span).map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => format!("setting SO_BUSY_POLL to {span} needs CAP_NET_ADMIN: run as root"),
                _ => format!("cannot set SO_BUSY_POLL to {span}: {error}"),
            })
        });
    }
    fd
}

/// `listen(2)`.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some(answer) = face::listen(fd, backlog) {
        return answer;
    }
    // SAFETY: takes no pointers.
    let answer = unsafe { real::LISTEN.get()(fd, backlog) };
    if answer == 0
        && let Some(steering) = state::get().steering
        && let Some(listener) = borrow(fd)
    {
        state::aside(Topic::Steering, || steer::steer(listener, steering.queues).map(|_| ()));
    }
    answer
}

fn new_epoll(fd: c_int) -> c_int {
    table::forget(fd);
    members::made(fd);
    face::epoll::made(fd);
    if let Some(busy_poll) = &state::get().epoll
        && let Some(instance) = borrow(fd)
    {
        state::aside(Topic::Epoll, || epoll::set(instance, busy_poll));
    }
    fd
}

/// The descriptor that a call returned, if it did not fail.
fn borrow(fd: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY: open, since it was made or used with success a moment ago; it is borrowed for the rest of this call only.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}
