//! What must have been told, by what arrived and what was read.

use crate::Interest;

/// How many sockets there are.
pub(super) const PORTS: usize = 3;

/// The number of a socket's port.
pub(super) fn number(socket: usize) -> u8 {
    7 + socket as u8
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Socket {
    /// What it is in the epolls for, if it is in.
    pub(super) interest: Option<Interest>,
    pub(super) arrived: u32,
    pub(super) read: u32,
    /// How many had come out of the rings when it was told, or looked at anew.
    pub(super) told: u32,
    /// It was one-shot, and was told.
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

    /// It is in, or is so anew: what it has is news.
    pub(super) fn set(&mut self, interest: Option<Interest>) {
        (self.interest, self.spent, self.told) = (interest, false, self.read);
    }

    /// An event told of it; whether it may be told of at all.
    pub(super) fn tell(&mut self, taken: u32) -> bool {
        let is_right = self.interest.is_some() && !self.spent;
        self.told = taken;
        self.spent = self.has(Interest::ONESHOT);
        is_right
    }

    /// Whether a wait that begins now has to tell of it, without a poll.
    pub(super) fn must_be_told(&self, taken: u32) -> bool {
        let has_news = !self.has(Interest::EDGE) || taken > self.told;
        self.interest.is_some() && !self.spent && taken > self.read && has_news
    }
}

impl Model {
    /// A socket that is in, and not spent, and has what was not read.
    pub(super) fn untold(&self) -> Option<usize> {
        let is_waited_for = |socket: &Socket| socket.interest.is_some() && !socket.spent;
        self.sockets.iter().position(|socket| is_waited_for(socket) && socket.arrived > socket.read)
    }
}
