//! The conditions for which a socket is in an epoll, and the events that a wait reports.

use std::ops::BitOr;

use abey_tcpip::Readiness;

/// A set of conditions and flags, those of `epoll_ctl(2)`. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interest(u8);

impl Interest {
    /// Only errors and hang-ups.
    pub const NONE: Self = Self(0);
    /// Data, the end of the data, or a connection to accept (EPOLLIN).
    pub const IN: Self = Self(1);
    /// Room to write, or a connection that is established (EPOLLOUT).
    pub const OUT: Self = Self(2);
    /// The peer has shut down its sending direction (EPOLLRDHUP).
    pub const RDHUP: Self = Self(4);
    /// Edge-triggered (EPOLLET): reports changes of the conditions.
    pub const EDGE: Self = Self(8);
    /// One-shot (EPOLLONESHOT): reports one event, then none until the entry is modified.
    pub const ONESHOT: Self = Self(16);
    /// Of the epolls with a thread that sleeps in a wait for this socket, wakes one (EPOLLEXCLUSIVE).
    pub const EXCLUSIVE: Self = Self(32);

    /// Returns whether this set contains everything in `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the conditions as the stack's type.
    pub(crate) fn conditions(self) -> Readiness {
        Readiness::READABLE.when(self.contains(Self::IN))
            | Readiness::WRITABLE.when(self.contains(Self::OUT))
            | Readiness::READ_CLOSED.when(self.contains(Self::RDHUP))
            | Readiness::ERROR
            | Readiness::HANG_UP
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// An event of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The token under which the socket was added.
    pub token: u64,
    /// Which of the requested conditions hold, and errors and hang-ups.
    pub readiness: Readiness,
}

impl Event {
    /// EPOLLIN.
    pub const fn is_readable(&self) -> bool {
        self.readiness.contains(Readiness::READABLE)
    }

    /// EPOLLOUT.
    pub const fn is_writable(&self) -> bool {
        self.readiness.contains(Readiness::WRITABLE)
    }

    /// EPOLLRDHUP.
    pub const fn is_read_closed(&self) -> bool {
        self.readiness.contains(Readiness::READ_CLOSED)
    }

    /// EPOLLHUP.
    pub const fn is_hung_up(&self) -> bool {
        self.readiness.contains(Readiness::HANG_UP)
    }

    /// EPOLLERR.
    pub const fn is_error(&self) -> bool {
        self.readiness.contains(Readiness::ERROR)
    }
}
