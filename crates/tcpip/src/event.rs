//! Socket identifiers, readiness and events.
//!
//! An epoll above the stack needs two things: the *level*, which is what a socket is ready for now ([`Readiness`]),
//! and the *edge*, which is a change since the last event ([`Event`]). As in the kernel, new data is an edge even if
//! earlier data was not read. Room in the send buffer is an edge only after a write was refused for lack of room.

use core::ops::{BitOr, BitOrAssign};

slotmap::new_key_type! {
    /// Identifier of a socket: an index and a generation. An id stays invalid after its socket was removed.
    pub struct SocketId;
}

/// Set of conditions that a socket is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Readiness(u8);

impl Readiness {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Every condition.
    pub const ALL: Self = Self(31);
    /// A read or an accept would not block: there is data, the end of the stream, a connection or an error (EPOLLIN).
    pub const READABLE: Self = Self(1);
    /// A write would not block: there is room, or the write would fail at once (EPOLLOUT). A connection becomes
    /// writable when it is established.
    pub const WRITABLE: Self = Self(2);
    /// The peer has finished sending (EPOLLRDHUP).
    pub const READ_CLOSED: Self = Self(4);
    /// Both directions are closed (EPOLLHUP).
    pub const HANG_UP: Self = Self(8);
    /// `take_error` returns an error (EPOLLERR).
    pub const ERROR: Self = Self(16);
    /// The connection has nothing left to send: its FIN was acknowledged, or it is closed. Used by a `close` that waits
    /// (SO_LINGER).
    pub const DRAINED: Self = Self(32);

    /// Returns whether everything in `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether anything in `other` is in this set.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns this set if `condition` holds, else the empty one.
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

/// Changes of one socket since its previous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The socket.
    pub socket: SocketId,
    /// Conditions that became true, or true again.
    pub edges: Readiness,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_a_set() {
        let both = Readiness::READABLE | Readiness::HANG_UP;
        assert!(both.contains(Readiness::READABLE) && !both.contains(Readiness::READABLE | Readiness::ERROR));
        assert!(both.intersects(Readiness::HANG_UP | Readiness::ERROR));
        assert!(Readiness::ERROR.when(false).is_empty());
    }
}
