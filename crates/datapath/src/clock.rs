//! The runtime's clock: monotonic nanoseconds since the runtime was built, read without a system call (vDSO).

use std::cell::Cell;
use std::time::Duration;

use abey_delivery::Nanos;

use crate::environment::{Env, Environment};

/// A clock that starts at zero. Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// What the environment's monotonic clock showed at zero, in nanoseconds.
    start: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Env::monotonic() }
    }

    pub(crate) fn now(self) -> Nanos {
        Nanos::from_nanos(Env::monotonic().wrapping_sub(self.start))
    }

    /// Returns the point in time `span` from now.
    pub(crate) fn after(self, span: Duration) -> Nanos {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2);
        self.now() + Nanos::from_nanos(span)
    }
}

/// A clock that reads the time once and repeats it until [`CachedClock::invalidate`].
///
/// The steps between two points at which time passes share one reading. A reading in every step was a fifth of the cost of
/// a request.
#[derive(Debug)]
pub(crate) struct CachedClock {
    clock: Clock,
    time: Cell<Option<Nanos>>,
}

impl CachedClock {
    /// Creates a clock that shows `time`, a recent reading, or reads the time when it is first asked.
    pub(crate) fn new(clock: Clock, time: Option<Nanos>) -> Self {
        Self { clock, time: Cell::new(time) }
    }

    pub(crate) fn now(&self) -> Nanos {
        let now = self.time.get().unwrap_or_else(|| self.clock.now());
        self.time.set(Some(now));
        now
    }

    /// Makes the next call of [`Self::now`] read the time again.
    pub(crate) fn invalidate(&self) {
        self.time.set(None);
    }
}

/// Converts a time to the type of the TCP/IP stack.
pub(crate) fn stack_time(now: Nanos) -> abey_tcpip::Instant {
    abey_tcpip::Instant(now.as_nanos())
}
