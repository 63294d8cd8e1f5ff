//! Sockets' names and what is new about them.
//!
//! An epoll above the stack needs two things: the *level*, what a socket is ready for now ([`Readiness`]), and the *edge*,
//! that something happened since the last look ([`Event`]). As in the kernel, new data is an edge even if old data was not
//! read, and room to write is an edge only after a write was refused for want of it.

use core::ops::{BitOr, BitOrAssign};

slotmap::new_key_type! {
    /// The name of a socket: an index and a generation, so that the id of a socket that is gone never means another one.
    pub struct SocketId;
}

/// What a socket is ready for: a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readiness(u8);

impl Readiness {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Data, the end of the data, a connection to accept or an error can be taken (EPOLLIN).
    pub const READABLE: Self = Self(1);
    /// At least some bytes can be written, or the write would fail at once (EPOLLOUT). A connection that was just
    /// established becomes writable.
    pub const WRITABLE: Self = Self(2);
    /// The peer will send no more (EPOLLRDHUP).
    pub const READ_CLOSED: Self = Self(4);
    /// Both directions are over (EPOLLHUP).
    pub const HANG_UP: Self = Self(8);
    /// An error waits in `take_error` (EPOLLERR).
    pub const ERROR: Self = Self(16);

    /// Whether everything in `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether anything in `other` is in this set.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// This set if `condition` holds, else the empty one.
    #[must_use]
    pub const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }
}

impl BitOr for Readiness {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Readiness {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Something happened to a socket since the last event for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which socket.
    pub socket: SocketId,
    /// What became so, or became so again.
    pub edges: Readiness,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_a_set() {
        let both = Readiness::READABLE | Readiness::HANG_UP;
        assert!(both.contains(Readiness::READABLE) && !both.contains(Readiness::READABLE | Readiness::ERROR));
        assert!(both.intersects(Readiness::HANG_UP | Readiness::ERROR));
        assert!(Readiness::ERROR.when(false).is_empty());
    }
}
