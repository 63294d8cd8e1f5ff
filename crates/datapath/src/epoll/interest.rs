//! What an epoll is asked to tell about a socket, and what it tells.

use std::ops::BitOr;

use abey_tcpip::Readiness;

/// A set of conditions and flags, those of `epoll_ctl(2)`. Errors and hang-ups are always told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Interest(u8);

impl Interest {
    /// Nothing but errors and hang-ups.
    pub const NONE: Self = Self(0);
    /// Data, the end of the data, or a connection to accept (EPOLLIN).
    pub const IN: Self = Self(1);
    /// Room to write, or a connection that is established (EPOLLOUT).
    pub const OUT: Self = Self(2);
    /// The peer will send no more (EPOLLRDHUP).
    pub const RDHUP: Self = Self(4);
    /// Edge-triggered (EPOLLET): tell what happens, not what is.
    pub const EDGE: Self = Self(8);
    /// One-shot (EPOLLONESHOT): tell once, then be silent until modified.
    pub const ONESHOT: Self = Self(16);
    /// Of the epolls that sleep in a wait for this socket, wake one (EPOLLEXCLUSIVE).
    pub const EXCLUSIVE: Self = Self(32);

    /// Whether everything in `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The conditions, as the stack knows them.
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

/// What a wait tells of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The number the socket was added under.
    pub token: u64,
    /// What it is ready for, of what was asked, and errors and hang-ups.
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
