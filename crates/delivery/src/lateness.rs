//! How late timed sleeps end, and by how much a thread therefore shortens them.
//!
//! The kernel's NAPI timers are hardware timers that fire within a microsecond or two of their time. In user space a timer
//! is the end of a thread's sleep. Between the timer and the thread lie an interrupt, perhaps the exit from an idle state
//! or from a virtual machine's halt, and the scheduler: 14 us on the machine this was written on, where a deferral of 20 us
//! then takes 34 us. So a thread shortens each sleep by the lateness of its recent sleeps, and spins over the rest if it
//! wakes early.
//!
//! The estimate is a low quantile rather than the mean. A few very late sleeps would raise a mean until the thread mostly
//! spins. The estimate rises by one step after a sleep that was later than it, and falls by three steps otherwise, so it
//! converges to the first quartile. A step is a 64th of the estimate, which follows a change of the machine within a few
//! hundred sleeps.

use crate::Nanos;

/// The smallest step of the estimate, in nanoseconds.
const MIN_STEP: u64 = 25;

/// The largest estimate, in nanoseconds. A sleep that is later than this lost its CPU to another thread.
const MAX_ESTIMATE: u64 = 50_000;

/// Returns by how much to shorten a sleep of `span` if sleeps end `late`: by that, but at most by a third of the span.
///
/// A timer so near that the thread hardly falls asleep costs more CPU than it saves time. In a deferral of 20 us at 70,000
/// requests a second, 6 us took a fifth more CPU and a fifth off the median latency, 9 us a quarter of both, 13 us twice
/// the CPU.
#[inline]
pub fn lead(late: Nanos, span: Nanos) -> Nanos {
    late.min(Nanos::from_nanos(span.as_nanos() / 3))
}

/// An estimate of how late a thread's sleeps end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Nanoseconds.
    estimate: u64,
}

impl Lateness {
    /// Returns by how much to shorten a sleep of `span` ([`lead`]).
    #[inline]
    pub fn lead(self, span: Nanos) -> Nanos {
        lead(Nanos::from_nanos(self.estimate), span)
    }

    /// Records that a sleep ended `late` after the time it was set to.
    #[inline]
    pub fn observe(&mut self, late: Nanos) {
        let step = (self.estimate / 64).max(MIN_STEP);
        self.estimate = if late.as_nanos() > self.estimate {
            (self.estimate + step).min(MAX_ESTIMATE)
        } else {
            self.estimate.saturating_sub(3 * step)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lead_after(sleeps: impl Iterator<Item = u64>) -> u64 {
        let mut lateness = Lateness::default();
        for late in sleeps {
            lateness.observe(Nanos::from_nanos(late));
        }
        lateness.lead(Nanos::from_millis(1)).as_nanos()
    }

    #[test]
    fn the_estimate_converges_ignores_outliers_and_follows_changes() {
        let lead = lead_after((0..2000).map(|at| if at % 50 == 0 { 2_000_000 } else { 13_500 + at % 7 * 100 }));
        assert!((12_000..14_500).contains(&lead), "{lead}");
        assert!(lead_after((0..2000).map(|at| if at < 1000 { 30_000 } else { 3_000 })) < 4_000, "follows");
        assert_eq!(lead_after(std::iter::repeat_n(u64::MAX, 5000)), MAX_ESTIMATE);
    }

    #[test]
    fn a_sleep_is_shortened_by_at_most_a_third() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.lead(Nanos::from_micros(20)), Nanos::ZERO);
        for _ in 0..5000 {
            lateness.observe(Nanos::from_micros(40));
        }
        assert_eq!(lateness.lead(Nanos::from_micros(21)), Nanos::from_micros(7));
        assert_eq!(lateness.lead(Nanos::ZERO), Nanos::ZERO);
    }
}
