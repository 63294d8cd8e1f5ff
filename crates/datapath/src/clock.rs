//! One clock for the whole runtime: nanoseconds since it was built, monotonic, read without a system call (vDSO).

use std::time::{Duration, Instant};

use abey_delivery::Nanos;

/// The clock; a copy is the same clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> Nanos {
        #[cfg(test)]
        if let Some(now) = crate::replay::now() {
            return now;
        }
        // The 585th year may be wrong.
        Nanos::from_nanos(self.0.elapsed().as_nanos() as u64)
    }

    /// The point in time `span` from now.
    pub(crate) fn after(self, span: Duration) -> Nanos {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2);
        self.now() + Nanos::from_nanos(span)
    }
}

/// As the stack's kind of time.
pub(crate) fn stack_time(now: Nanos) -> abey_tcpip::Instant {
    abey_tcpip::Instant(now.as_nanos())
}
