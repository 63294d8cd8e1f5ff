//! The clock of one load: nanoseconds since its connections were made.

use std::time::Instant;

/// A monotonic clock with its own origin; every thread of a load holds a copy of the same one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Returns the nanoseconds since the origin.
    pub(crate) fn now(self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }
}
