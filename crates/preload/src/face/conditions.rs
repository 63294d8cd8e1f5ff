//! Conditions of sockets, in the words of `epoll_ctl(2)`, of `poll(2)` and of the datapath.

use abey_datapath::{Interest, Readiness};
use libc::c_short;

/// What a member is asked to tell.
pub(super) fn interest(events: u32) -> Interest {
    let pairs = [
        (libc::EPOLLIN | libc::EPOLLRDNORM, Interest::IN),
        (libc::EPOLLOUT | libc::EPOLLWRNORM, Interest::OUT),
        (libc::EPOLLRDHUP, Interest::RDHUP),
        (libc::EPOLLET, Interest::EDGE),
        (libc::EPOLLONESHOT, Interest::ONESHOT),
        (libc::EPOLLEXCLUSIVE, Interest::EXCLUSIVE),
    ];
    let asked = pairs.into_iter().filter(|(bits, _)| events & *bits as u32 != 0);
    asked.fold(Interest::NONE, |all, (_, one)| all | one)
}

/// What an epoll tells.
pub(super) fn conditions(readiness: Readiness) -> u32 {
    let pairs = [
        (Readiness::READABLE, libc::EPOLLIN),
        (Readiness::WRITABLE, libc::EPOLLOUT),
        (Readiness::READ_CLOSED, libc::EPOLLRDHUP),
        (Readiness::HANG_UP, libc::EPOLLHUP),
        (Readiness::ERROR, libc::EPOLLERR),
    ];
    let told = pairs.into_iter().filter(|(condition, _)| readiness.contains(*condition));
    told.fold(0, |all, (_, bit)| all | bit as u32)
}

const POLL: [(Readiness, c_short); 5] = [
    (Readiness::READABLE, libc::POLLIN | libc::POLLRDNORM),
    (Readiness::WRITABLE, libc::POLLOUT | libc::POLLWRNORM),
    (Readiness::READ_CLOSED, libc::POLLRDHUP),
    (Readiness::HANG_UP, libc::POLLHUP),
    (Readiness::ERROR, libc::POLLERR),
];

/// What `events` of a `pollfd` asks for.
pub(super) fn wanted(events: c_short) -> Readiness {
    let asked = POLL.into_iter().filter(|(_, bits)| events & bits != 0);
    asked.fold(Readiness::NONE, |all, (one, _)| all | one)
}

/// `revents` of a `pollfd`: what was asked for, errors and hang-ups.
pub(super) fn revents(readiness: Readiness, events: c_short) -> c_short {
    let so = POLL.into_iter().filter(|(condition, _)| readiness.contains(*condition));
    so.fold(0, |all, (_, bits)| all | bits) & (events | libc::POLLHUP | libc::POLLERR)
}
