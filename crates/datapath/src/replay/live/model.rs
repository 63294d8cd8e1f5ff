//! The events that must be reported, given the datagrams that arrived and those that were read.

use crate::Interest;

/// The number of sockets.
pub(super) const PORTS: usize = 3;

/// Returns the number of a socket's port.
pub(super) fn number(socket: usize) -> u8 {
    7 + socket as u8
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Socket {
    /// Its interest in the epolls; `None` if it is in none.
    pub(super) interest: Option<Interest>,
    pub(super) arrived: u32,
    pub(super) read: u32,
    /// How many datagrams had left the rings when it was last reported or re-armed.
    pub(super) reported: u32,
    /// It was one-shot, and was reported.
    pub(super) spent: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) sockets: [Socket; PORTS],
}

impl Socket {
    pub(super) fn has(&self, what: Interest) -> bool {
        self.interest.is_some_and(|interest| interest.contains(what))
    }

    /// Adds or re-arms it: all of its datagrams count as new.
    pub(super) fn set(&mut self, interest: Option<Interest>) {
        (self.interest, self.spent, self.reported) = (interest, false, self.read);
    }

    /// Records an event for it. Returns whether an event is allowed.
    pub(super) fn report(&mut self, taken: u32) -> bool {
        let is_right = self.interest.is_some() && !self.spent;
        self.reported = taken;
        self.spent = self.has(Interest::ONESHOT);
        is_right
    }

    /// Returns whether a wait that begins now must report it without a poll.
    pub(super) fn must_be_reported(&self, taken: u32) -> bool {
        let has_news = !self.has(Interest::EDGE) || taken > self.reported;
        self.interest.is_some() && !self.spent && taken > self.read && has_news
    }
}

impl Model {
    /// Returns a socket in an epoll that is armed and has unread datagrams.
    pub(super) fn unreported(&self) -> Option<usize> {
        let is_waited_for = |socket: &Socket| socket.interest.is_some() && !socket.spent;
        self.sockets.iter().position(|socket| is_waited_for(socket) && socket.arrived > socket.read)
    }
}
