//! Conversions between the datapath's readiness and the event bits of `epoll_ctl(2)` and `poll(2)`.

use abey_datapath::{Interest, Readiness};
use libc::c_short;

/// Converts the event bits of an `epoll_ctl` to an interest.
pub(super) fn interest_of(events: u32) -> Interest {
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

/// Converts an interest to the event bits of an `epoll_ctl`.
pub(super) fn bits_of(interest: Interest) -> u32 {
    let pairs = [
        (libc::EPOLLIN, Interest::IN),
        (libc::EPOLLOUT, Interest::OUT),
        (libc::EPOLLRDHUP, Interest::RDHUP),
        (libc::EPOLLET, Interest::EDGE),
        (libc::EPOLLONESHOT, Interest::ONESHOT),
        (libc::EPOLLEXCLUSIVE, Interest::EXCLUSIVE),
    ];
    let asked = pairs.into_iter().filter(|(_, one)| interest.contains(*one));
    asked.fold(0, |all, (bit, _)| all | bit as u32)
}

/// Converts a readiness to the event bits that `epoll_wait` reports.
pub(super) fn epoll_events(readiness: Readiness) -> u32 {
    let pairs = [
        (Readiness::READABLE, libc::EPOLLIN),
        (Readiness::WRITABLE, libc::EPOLLOUT),
        (Readiness::READ_CLOSED, libc::EPOLLRDHUP),
        (Readiness::HANG_UP, libc::EPOLLHUP),
        (Readiness::ERROR, libc::EPOLLERR),
    ];
    let reported = pairs.into_iter().filter(|(condition, _)| readiness.contains(*condition));
    reported.fold(0, |all, (_, bit)| all | bit as u32)
}

const POLL: [(Readiness, c_short); 5] = [
    (Readiness::READABLE, libc::POLLIN | libc::POLLRDNORM),
    (Readiness::WRITABLE, libc::POLLOUT | libc::POLLWRNORM),
    (Readiness::READ_CLOSED, libc::POLLRDHUP),
    (Readiness::HANG_UP, libc::POLLHUP),
    (Readiness::ERROR, libc::POLLERR),
];

/// Converts the `events` of a `pollfd` to the readiness that is waited for.
pub(super) fn poll_readiness(events: c_short) -> Readiness {
    let asked = POLL.into_iter().filter(|(_, bits)| events & bits != 0);
    asked.fold(Readiness::NONE, |all, (one, _)| all | one)
}

/// Returns the `revents` of a `pollfd`: the requested conditions, errors and hang-ups.
pub(super) fn poll_revents(readiness: Readiness, events: c_short) -> c_short {
    let so = POLL.into_iter().filter(|(condition, _)| readiness.contains(*condition));
    so.fold(0, |all, (_, bits)| all | bits) & (events | libc::POLLHUP | libc::POLLERR)
}
