//! Spans of time as the C library has them, and as the rest of this library has them.

use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use libc::{timespec, timeval};

const NANOS_PER_SECOND: u32 = 1_000_000_000;

/// The span that a `timespec` is; `None` if it is not a time (negative, or a second and more in nanoseconds).
pub(crate) fn of_timespec(time: &timespec) -> Option<Duration> {
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|nanos| *nanos < NANOS_PER_SECOND)?;
    Some(Duration::new(u64::try_from(time.tv_sec).ok()?, nanos))
}

/// The span that a `timeval` is, which may have more than a second in microseconds, as in `select(2)`; `None` if it is
/// negative.
pub(crate) fn of_timeval(time: &timeval) -> Option<Duration> {
    let micros = u64::try_from(time.tv_usec).ok()?;
    Some(Duration::from_secs(u64::try_from(time.tv_sec).ok()?).saturating_add(Duration::from_micros(micros)))
}

/// A span in nanoseconds; one of more than 584 years is that long.
pub(crate) fn nanos(span: Duration) -> Nanos {
    Nanos::from_nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

/// A span as a `timespec`.
pub(crate) fn timespec(span: Duration) -> timespec {
    timespec { tv_sec: seconds(span), tv_nsec: span.subsec_nanos().into() }
}

/// A span as a `timeval`, in whole microseconds.
pub(crate) fn timeval(span: Duration) -> timeval {
    timeval { tv_sec: seconds(span), tv_usec: span.subsec_micros().into() }
}

fn seconds(span: Duration) -> libc::time_t {
    libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX)
}

/// How long a call may take, from when this is made.
///
/// The clock is read only where the answer depends on it: never for a call that has no limit, or that must not wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    span: Option<Duration>,
    since: Option<Instant>,
}

impl Limit {
    /// `None`: none at all.
    pub(crate) fn new(span: Option<Duration>) -> Self {
        let since = span.filter(|span| !span.is_zero()).map(|_| Instant::now());
        Self { span, since }
    }

    /// What is left of it; `None` if it has no end.
    pub(crate) fn left(self) -> Option<Duration> {
        match self.since {
            Some(since) => self.span.map(|span| span.saturating_sub(since.elapsed())),
            None => self.span,
        }
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Whether it has an end.
    pub(crate) fn is_set(self) -> bool {
        self.span.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_time_is_none() {
        let time = |tv_sec, tv_nsec| of_timespec(&libc::timespec { tv_sec, tv_nsec });
        assert_eq!(time(2, 5), Some(Duration::new(2, 5)));
        assert_eq!(time(0, 999_999_999), Some(Duration::from_nanos(999_999_999)));
        for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
            assert_eq!(time(seconds, nanos), None, "{seconds} {nanos}");
        }
        let time = |tv_sec, tv_usec| of_timeval(&libc::timeval { tv_sec, tv_usec });
        assert_eq!(time(1, 1_500_000), Some(Duration::from_millis(2_500)));
        assert_eq!((time(-1, 0), time(0, -1)), (None, None));
    }

    #[test]
    fn spans_come_back_as_they_went() {
        let span = Duration::new(3, 250_001_000);
        assert_eq!(of_timespec(&timespec(span)), Some(span));
        assert_eq!(of_timeval(&timeval(span)), Some(span));
        assert_eq!(nanos(span), Nanos::from_nanos(3_250_001_000));
    }

    #[test]
    fn a_limit_passes_if_it_has_an_end() {
        assert_eq!((Limit::new(None).left(), Limit::new(None).is_over()), (None, false));
        assert!(Limit::new(Some(Duration::ZERO)).is_over());
        let hour = Duration::from_secs(3600);
        let limit = Limit::new(Some(hour));
        assert!(limit.is_set() && !limit.is_over() && limit.left() <= Some(hour));
        let past = Limit { span: Some(Duration::from_nanos(1)), since: Instant::now().checked_sub(hour) };
        assert!(past.is_over());
    }

    #[test]
    fn what_does_not_fit_is_the_longest() {
        assert_eq!(nanos(Duration::MAX), Nanos::from_nanos(u64::MAX));
        assert_eq!(timespec(Duration::MAX).tv_sec, libc::time_t::MAX);
    }
}
