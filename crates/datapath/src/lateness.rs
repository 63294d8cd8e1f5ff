//! How late a sleep ends, and how much earlier it must therefore be asked to end.
//!
//! The kernel's NAPI timers are hardware timers: they go off within a microsecond or two of their time. Ours are the end
//! of a thread's sleep, and between the timer and the thread lie an interrupt, perhaps the exit from an idle state or
//! from a virtual machine's halt, and the scheduler: 14 us on the machine this was written on, where a deferral of 20 us
//! then takes 34 us. So a thread asks for less than it wants, by what its sleeps were late lately, and spins over the rest
//! should it be early.
//!
//! What is kept is not the mean, which a few very late sleeps would pull up until the thread mostly spins, but a low
//! quantile: the estimate steps up when a sleep was later than it and down by three such steps when not, and so settles
//! where a quarter of the sleeps are less late. A step is a 64th of the estimate, so that it follows a machine that changes
//! within a few hundred sleeps.

use abey_delivery::Nanos;

/// The least step of the estimate.
const LEAST_STEP: u64 = 25;

/// Later than this is no property of the machine but somebody else's turn on the CPU.
const MOST: u64 = 50_000;

/// An estimate of how late a thread's sleeps end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lateness {
    /// Nanoseconds.
    estimate: u64,
}

impl Lateness {
    /// How much earlier than wanted a sleep of `span` should be asked to end: at most a third of it. A timer so near
    /// that the thread hardly falls asleep costs more CPU than it saves time: in a deferral of 20 us at 70,000 requests a
    /// second, 6 us took a fifth more CPU and a fifth off the median latency, 9 us a quarter of both, 13 us twice the CPU.
    pub(crate) fn lead(self, span: Nanos) -> Nanos {
        Nanos::from_nanos(self.estimate.min(span.as_nanos() / 3))
    }

    /// A sleep ended this much later than it was asked to.
    pub(crate) fn observe(&mut self, late: Nanos) {
        let step = (self.estimate / 64).max(LEAST_STEP);
        self.estimate = if late.as_nanos() > self.estimate {
            (self.estimate + step).min(MOST)
        } else {
            self.estimate.saturating_sub(3 * step)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(sleeps: impl Iterator<Item = u64>) -> u64 {
        let mut lateness = Lateness::default();
        for late in sleeps {
            lateness.observe(Nanos::from_nanos(late));
        }
        lateness.lead(Nanos::from_millis(1)).as_nanos()
    }

    #[test]
    fn settles_at_what_sleeps_are_late_by_and_forgets_the_odd_one() {
        let lead = after((0..2000).map(|at| if at % 50 == 0 { 2_000_000 } else { 13_500 + at % 7 * 100 }));
        assert!((12_000..14_500).contains(&lead), "{lead}");
        assert!(after((0..2000).map(|at| if at < 1000 { 30_000 } else { 3_000 })) < 4_000, "and follows");
        assert_eq!(after(std::iter::repeat_n(u64::MAX, 5000)), MOST);
    }

    #[test]
    fn some_of_every_sleep_is_slept() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.lead(Nanos::from_micros(20)), Nanos::ZERO);
        for _ in 0..5000 {
            lateness.observe(Nanos::from_micros(40));
        }
        assert_eq!(lateness.lead(Nanos::from_micros(21)), Nanos::from_micros(7));
        assert_eq!(lateness.lead(Nanos::ZERO), Nanos::ZERO);
    }
}
