//! Time as nanoseconds since an epoch that the caller chooses.
//!
//! The stack has no clock. Every call that depends on time takes an [`Instant`], so that tests and simulations run
//! hours in milliseconds and are repeatable.

use core::{ops::Add, time::Duration};

/// Nanoseconds in a millisecond, the tick of TCP's timestamp clock.
pub(crate) const MILLISECOND: u64 = 1_000_000;

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// Point in time: nanoseconds since an arbitrary epoch. 64 bits last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The epoch.
    pub const ZERO: Self = Self(0);

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }

    pub(crate) const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    pub(crate) const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        self.plus(nanos(span))
    }
}

/// Converts a duration to nanoseconds. A duration that exceeds 64 bits becomes 584 years.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the earlier of two optional deadlines.
pub(crate) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_never_negative_and_a_sum_never_wraps() {
        assert_eq!(Instant(5).since(Instant(9)), Duration::ZERO);
        assert_eq!(Instant(9).since(Instant(5)), Duration::from_nanos(4));
        assert_eq!(Instant(u64::MAX) + Duration::MAX, Instant(u64::MAX));
    }

    #[test]
    fn the_earliest_deadline_ignores_missing_ones() {
        assert_eq!(earliest(None, None), None);
        assert_eq!(earliest(Some(Instant(3)), None), Some(Instant(3)));
        assert_eq!(earliest(Some(Instant(3)), Some(Instant(2))), Some(Instant(2)));
    }
}
