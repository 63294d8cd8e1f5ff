//! What is counted of one instance, in either world.

/// Something an instance counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Polls in softirq that the deferral timer did not cause: after an interrupt, a resume, a budget that was spent.
    SoftirqPolls,
    /// Polls in softirq because the deferral timer went off.
    TimerPolls,
    /// Polls by a process from within a call of its own.
    BusyPolls,
    /// Polls by a thread of the instance, or by a worker of a pool.
    ThreadPolls,
    /// Polls, of all these, that found nothing.
    EmptyPolls,
    /// Packets that were received.
    Packets,
    /// Those of them that busy polls received.
    BusyPollPackets,
    /// Times interrupts were suspended, or stayed so, because an application took events.
    Suspensions,
    /// Times an application that found nothing gave the instance back (datapath).
    Resumes,
    /// Times the deferral timer went off.
    Timers,
    /// Interrupts.
    Interrupts,
    /// CPU time in softirq up to the end of its polls, in nanoseconds.
    SoftirqNanos,
    /// CPU time of the thread that polls the instance, in nanoseconds.
    ThreadNanos,
}

const COUNTERS: usize = Counter::ThreadNanos as usize + 1;

/// How many buckets a histogram of batches has.
pub const BATCHES: usize = 9;

/// The most packets of a poll in each bucket; the last has the polls that used up the usual budget of 64.
pub const BATCH_BOUNDS: [f64; BATCHES] = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 63.0, f64::INFINITY];

/// Counts of one instance; what cannot be counted is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    counters: [Option<u64>; COUNTERS],
    /// Polls by how many packets they received; see [`BATCH_BOUNDS`].
    pub batches: Option<[u64; BATCHES]>,
}

impl Counts {
    /// What was counted, if it can be.
    #[must_use]
    pub fn get(&self, counter: Counter) -> Option<u64> {
        self.counters[counter as usize]
    }

    /// Sets a count.
    pub fn set(&mut self, counter: Counter, count: u64) {
        self.counters[counter as usize] = Some(count);
    }

    /// Several counters together; `None` if none of them is counted.
    #[must_use]
    pub fn sum(&self, counters: &[Counter]) -> Option<u64> {
        let counted = counters.iter().filter_map(|counter| self.get(*counter));
        counted.fold(None, |sum, count| Some(sum.unwrap_or(0) + count))
    }

    /// Polls in any context.
    #[must_use]
    pub fn polls(&self) -> Option<u64> {
        self.sum(&[Counter::SoftirqPolls, Counter::TimerPolls, Counter::BusyPolls, Counter::ThreadPolls])
    }

    /// The mean of packets of the polls that found any.
    #[must_use]
    pub fn mean_batch(&self) -> Option<f64> {
        let with_work = self.polls()?.checked_sub(self.get(Counter::EmptyPolls)?)?;
        (with_work > 0).then_some(self.get(Counter::Packets)? as f64 / with_work as f64)
    }

    /// What was counted since `earlier`. What went back began anew: all of it is since.
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

    /// Takes in what others are the counts of; what either counts is counted.
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
    fn a_difference_has_what_was_counted_and_what_began_anew() {
        let grown = counts(30, 12, 2).since(&counts(10, 2, 2));
        assert_eq!(grown, counts(20, 10, 0));
        assert_eq!((grown.polls(), grown.mean_batch(), grown.get(Counter::Timers)), (Some(10), Some(2.0), None));
        assert_eq!(counts(3, 1, 0).since(&counts(10, 2, 2)), counts(3, 1, 0));
        assert_eq!(counts(3, 0, 0).mean_batch(), None);
    }

    #[test]
    fn sums_keep_what_only_one_side_counts() {
        let mut sum = counts(1, 2, 3);
        let mut other = counts(10, 20, 30);
        other.set(Counter::Suspensions, 5);
        other.batches = Some([1; BATCHES]);
        sum.add(&other);
        assert_eq!((sum.get(Counter::Packets), sum.get(Counter::Suspensions)), (Some(11), Some(5)));
        assert_eq!(sum.batches, Some([1; BATCHES]));
        sum.add(&other);
        assert_eq!(sum.batches, Some([2; BATCHES]));
    }
}
