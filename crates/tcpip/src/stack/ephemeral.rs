//! Choice of ephemeral ports (RFC 6056).

use core::hash::Hash;

use crate::{config::EPHEMERAL_LAST, flow::Secret};

/// Ephemeral ports by algorithm 3 of RFC 6056: the search starts at a keyed hash plus a counter.
#[derive(Debug)]
pub(super) struct EphemeralPorts {
    secret: Secret,
    first: u16,
    counter: u32,
}

impl EphemeralPorts {
    pub(super) const fn new(secret: Secret, first: u16) -> Self {
        Self { secret, first, counter: 0 }
    }

    /// Returns all ephemeral ports, in the order in which a socket with this `key` tries them.
    pub(super) fn candidates<K: Hash>(&self, key: K) -> impl Iterator<Item = u16> + use<K> {
        let first = self.first;
        let count = u32::from(EPHEMERAL_LAST - first) + 1;
        let start = (self.secret.hash(key) as u32).wrapping_add(self.counter);
        (0..count).map(move |step| first + (start.wrapping_add(step) % count) as u16)
    }

    /// Moves the start of later searches by `steps`.
    pub(super) fn advance(&mut self, steps: u32) {
        self.counter = self.counter.wrapping_add(steps);
    }
}
