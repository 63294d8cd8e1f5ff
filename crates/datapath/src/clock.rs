//! One clock for the whole runtime: nanoseconds since it was built, monotonic, read without a system call (vDSO).

use std::cell::Cell;
use std::time::Duration;

use abey_delivery::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// The clock, by what the system's showed when it began; a copy is the same clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(u64);

/// Not by the standard library's instants, whose arithmetic takes longer than reading the clock.
fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither is negative, and the 585th year may be wrong.
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self(monotonic())
    }

    pub(crate) fn now(self) -> Nanos {
        #[cfg(test)]
        if let Some(now) = crate::replay::now() {
            return now;
        }
        Nanos::from_nanos(monotonic().wrapping_sub(self.0))
    }

    /// The point in time `span` from now.
    pub(crate) fn after(self, span: Duration) -> Nanos {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2);
        self.now() + Nanos::from_nanos(span)
    }
}

/// A clock that is read once for what happens between two points at which time passes: reading it for every step was a
/// fifth of what a request costs.
#[derive(Debug)]
pub(crate) struct ReadOnce {
    clock: Clock,
    time: Cell<Option<Nanos>>,
}

impl ReadOnce {
    /// `time`: what it showed a moment ago, if that is known.
    pub(crate) fn new(clock: Clock, time: Option<Nanos>) -> Self {
        Self { clock, time: Cell::new(time) }
    }

    pub(crate) fn now(&self) -> Nanos {
        let now = self.time.get().unwrap_or_else(|| self.clock.now());
        self.time.set(Some(now));
        now
    }

    /// Time passes: it is read anew.
    pub(crate) fn forget(&self) {
        self.time.set(None);
    }
}

/// As the stack's kind of time.
pub(crate) fn stack_time(now: Nanos) -> abey_tcpip::Instant {
    abey_tcpip::Instant(now.as_nanos())
}
