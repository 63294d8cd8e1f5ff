//! Conversions between `Duration` and C's `timespec` and `timeval`, and the timeout of one call.

use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use libc::{timespec, timeval};

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// Converts a `timespec`. Returns `None` if it is invalid: negative, or with a second or more in `tv_nsec`.
pub(crate) fn duration_from_timespec(time: &timespec) -> Option<Duration> {
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|nanos| *nanos < NANOS_PER_SECOND)?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanos))
}

/// Converts a `timeval`, in which `tv_usec` may be more than a second, as in `select(2)`. Returns `None` if it is negative.
pub(crate) fn duration_from_timeval(time: &timeval) -> Option<Duration> {
    let micros = u64::try_from(time.tv_usec).ok()?;
    Some(Duration::from_secs(u64::try_from(time.tv_sec).ok()?).saturating_add(Duration::from_micros(micros)))
}

/// Converts to nanoseconds; saturates at 584 years.
pub(crate) fn to_nanos(duration: Duration) -> Nanos {
    Nanos::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Converts to a `timespec`; saturates.
pub(crate) fn to_timespec(duration: Duration) -> timespec {
    timespec { tv_sec: seconds(duration), tv_nsec: duration.subsec_nanos().into() }
}

/// Converts to a `timeval`, rounded down to microseconds; saturates.
pub(crate) fn to_timeval(duration: Duration) -> timeval {
    timeval { tv_sec: seconds(duration), tv_usec: duration.subsec_micros().into() }
}

fn seconds(duration: Duration) -> libc::time_t {
    libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX)
}

/// The timeout of one call, which starts when the value is made.
///
/// The clock is read only if the answer depends on it: not without a timeout, and not with a timeout of zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeout {
    duration: Option<Duration>,
    started: Option<Instant>,
}

impl Timeout {
    /// Starts a timeout; `None` never expires.
    pub(crate) fn new(duration: Option<Duration>) -> Self {
        let started = duration.filter(|duration| !duration.is_zero()).map(|_| Instant::now());
        Self { duration, started }
    }

    /// Returns the remaining time; `None` if it never expires.
    pub(crate) fn remaining(self) -> Option<Duration> {
        match self.started {
            Some(started) => self.duration.map(|duration| duration.saturating_sub(started.elapsed())),
            None => self.duration,
        }
    }

    /// Returns whether the time is over.
    pub(crate) fn has_expired(self) -> bool {
        self.remaining().is_some_and(|remaining| remaining.is_zero())
    }

    /// Returns whether it can expire.
    pub(crate) fn is_finite(self) -> bool {
        self.duration.is_some()
    }
}

// They run in tests/ordinary.rs, since the library has no tests of its own.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_c_times_are_rejected() {
        let convert = |tv_sec, tv_nsec| duration_from_timespec(&libc::timespec { tv_sec, tv_nsec });
        assert_eq!(convert(2, 5), Some(Duration::new(2, 5)));
        assert_eq!(convert(0, 999_999_999), Some(Duration::from_nanos(999_999_999)));
        for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            assert_eq!(convert(seconds, nanos), None, "{seconds} {nanos}");
        }
        let convert = |tv_sec, tv_usec| duration_from_timeval(&libc::timeval { tv_sec, tv_usec });
        assert_eq!(convert(1, 1_500_000), Some(Duration::from_millis(2_500)));
        assert_eq!((convert(-1, 0), convert(0, -1)), (None, None));
    }

    #[test]
    fn durations_survive_a_round_trip() {
        let duration = Duration::new(3, 250_001_000);
        assert_eq!(duration_from_timespec(&to_timespec(duration)), Some(duration));
        assert_eq!(duration_from_timeval(&to_timeval(duration)), Some(duration));
        assert_eq!(to_nanos(duration), Nanos::from_nanos(3_250_001_000));
    }

    #[test]
    fn a_finite_timeout_expires() {
        assert_eq!((Timeout::new(None).remaining(), Timeout::new(None).has_expired()), (None, false));
        assert!(Timeout::new(Some(Duration::ZERO)).has_expired());
        let hour = Duration::from_secs(3600);
        let timeout = Timeout::new(Some(hour));
        assert!(timeout.is_finite() && !timeout.has_expired() && timeout.remaining() <= Some(hour));
        let past = Timeout { duration: Some(Duration::from_nanos(1)), started: Instant::now().checked_sub(hour) };
        assert!(past.has_expired());
    }

    #[test]
    fn conversions_saturate() {
        assert_eq!(to_nanos(Duration::MAX), Nanos::from_nanos(u64::MAX));
        assert_eq!(to_timespec(Duration::MAX).tv_sec, libc::time_t::MAX);
    }
}
