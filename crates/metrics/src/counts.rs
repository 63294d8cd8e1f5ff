//! Counters of one NAPI instance, the same for instances of the kernel and of a datapath.

/// An event that an instance counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Polls in softirq that the deferral timer did not cause: after an interrupt, a resume or a poll that used its budget.
    SoftirqPolls,
    /// Polls in softirq because the deferral timer expired.
    TimerPolls,
    /// Polls by a process from within a system call.
    BusyPolls,
    /// Polls by the instance's thread or by a worker of the pool.
    ThreadPolls,
    /// Polls, in any context, that found no packet.
    EmptyPolls,
    /// Packets received.
    Packets,
    /// Packets received by busy polls.
    BusyPollPackets,
    /// Times that interrupts were suspended, or stayed suspended, because an application took events.
    Suspensions,
    /// Times that an application found no event and resumed interrupt delivery (datapath only).
    Resumes,
    /// Expiries of the deferral timer.
    Timers,
    /// Interrupts.
    Interrupts,
    /// CPU time in softirq up to the end of its polls, in nanoseconds.
    SoftirqNanos,
    /// CPU time of the thread that polls the instance, in nanoseconds.
    ThreadNanos,
}

const COUNTERS: usize = Counter::ThreadNanos as usize + 1;

/// The number of buckets of a batch histogram.
pub const BATCH_BUCKETS: usize = 9;

/// Upper bounds of the buckets, in packets per poll. The last bucket holds polls that used the usual budget of 64.
pub const BATCH_BOUNDS: [f64; BATCH_BUCKETS] = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 63.0, f64::INFINITY];

/// Counts of one instance. A counter that cannot be read is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    counters: [Option<u64>; COUNTERS],
    /// Polls by the number of packets received; see [`BATCH_BOUNDS`].
    pub batches: Option<[u64; BATCH_BUCKETS]>,
}

impl Counts {
    /// Returns a count, or `None` if it is absent.
    #[must_use]
    pub fn get(&self, counter: Counter) -> Option<u64> {
        self.counters[counter as usize]
    }

    /// Sets a count.
    pub fn set(&mut self, counter: Counter, count: u64) {
        self.counters[counter as usize] = Some(count);
    }

    /// Returns the sum of several counters; `None` if all of them are absent.
    #[must_use]
    pub fn sum(&self, counters: &[Counter]) -> Option<u64> {
        let counted = counters.iter().filter_map(|counter| self.get(*counter));
        counted.fold(None, |sum, count| Some(sum.unwrap_or(0) + count))
    }

    /// Returns the number of polls in any context.
    #[must_use]
    pub fn polls(&self) -> Option<u64> {
        self.sum(&[Counter::SoftirqPolls, Counter::TimerPolls, Counter::BusyPolls, Counter::ThreadPolls])
    }

    /// Returns the mean number of packets of the polls that found any.
    #[must_use]
    pub fn mean_batch(&self) -> Option<f64> {
        let with_work = self.polls()?.checked_sub(self.get(Counter::EmptyPolls)?)?;
        (with_work > 0).then_some(self.get(Counter::Packets)? as f64 / with_work as f64)
    }

    /// Returns the difference to an earlier reading. A counter below its earlier value was reset, and counts in full.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let grown = |now: u64, then: u64| if now < then { now } else { now - then };
        let mut difference = *self;
        for (now, then) in difference.counters.iter_mut().zip(earlier.counters) {
            *now = now.map(|now| grown(now, then.unwrap_or(0)));
        }
        if let (Some(now), Some(then)) = (&mut difference.batches, earlier.batches) {
            for (now, then) in now.iter_mut().zip(then) {
                *now = grown(*now, then);
            }
        }
        difference
    }

    /// Adds other counts. A counter that is absent on one side takes the value of the other side.
    pub fn add(&mut self, other: &Self) {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        for (one, other) in self.counters.iter_mut().zip(other.counters) {
            *one = sum(*one, other);
        }
        self.batches = match (self.batches, other.batches) {
            (Some(one), Some(other)) => Some(std::array::from_fn(|at| one[at] + other[at])),
            (one, other) => one.or(other),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(packets: u64, busy: u64, empty: u64) -> Counts {
        let mut counts = Counts::default();
        counts.set(Counter::Packets, packets);
        counts.set(Counter::BusyPolls, busy);
        counts.set(Counter::EmptyPolls, empty);
        counts
    }

    #[test]
    fn since_subtracts_and_counts_in_full_after_a_reset() {
        let grown = counts(30, 12, 2).since(&counts(10, 2, 2));
        assert_eq!(grown, counts(20, 10, 0));
        assert_eq!((grown.polls(), grown.mean_batch(), grown.get(Counter::Timers)), (Some(10), Some(2.0), None));
        assert_eq!(counts(3, 1, 0).since(&counts(10, 2, 2)), counts(3, 1, 0));
        assert_eq!(counts(3, 0, 0).mean_batch(), None);
    }

    #[test]
    fn add_keeps_counters_that_only_one_side_has() {
        let mut sum = counts(1, 2, 3);
        let mut other = counts(10, 20, 30);
        other.set(Counter::Suspensions, 5);
        other.batches = Some([1; BATCH_BUCKETS]);
        sum.add(&other);
        assert_eq!((sum.get(Counter::Packets), sum.get(Counter::Suspensions)), (Some(11), Some(5)));
        assert_eq!(sum.batches, Some([1; BATCH_BUCKETS]));
        sum.add(&other);
        assert_eq!(sum.batches, Some([2; BATCH_BUCKETS]));
    }
}
