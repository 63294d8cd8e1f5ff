//! Histogram of waiting times, with buckets no wider than a sixteenth of their value.
//!
//! It counts every packet, so an update must be cheap: an index and an addition. (`hdrhistogram`, which is used
//! elsewhere, took 5 % of a run.)

/// Times below this have one bucket each; from there on every doubling has half as many buckets.
const STEPS: u64 = 32;

/// Longest time, 2^42 ns (73 minutes); longer ones are counted as this.
const LONGEST: u64 = (1 << 42) - 1;

const BUCKETS: usize = bucket(LONGEST) + 1;

#[derive(Clone, Debug)]
pub(crate) struct Waits {
    counts: Box<[u64; BUCKETS]>,
    longest: u64,
}

#[inline]
const fn bucket(nanos: u64) -> usize {
    let shift = (nanos | (STEPS - 1)).ilog2() - (STEPS.ilog2() - 1);
    (shift as u64 * STEPS / 2 + (nanos >> shift)) as usize
}

/// Returns the longest time of a bucket.
fn longest_of(index: usize) -> u64 {
    let half = STEPS / 2;
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let shift = index / half - 1;
    ((index - shift * half + 1) << shift) - 1
}

impl Default for Waits {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), longest: 0 }
    }
}

impl Waits {
    #[inline]
    pub(crate) fn record(&mut self, nanos: u64) {
        self.counts[bucket(nanos.min(LONGEST))] += 1;
        self.longest = self.longest.max(nanos);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts.iter()).for_each(|(count, more)| *count += more);
        self.longest = self.longest.max(other.longest);
    }

    /// Returns the longest wait in nanoseconds, exact; 0 if there was none.
    pub(crate) const fn longest(&self) -> u64 {
        self.longest
    }

    /// Returns a percentile in nanoseconds, rounded up by at most a sixteenth.
    pub(crate) fn percentile(&self, percent: u64) -> u64 {
        let total: u64 = self.counts.iter().sum();
        let mut left = (total * percent).div_ceil(100);
        for (index, count) in self.counts.iter().enumerate() {
            if left <= *count {
                return longest_of(index).min(self.longest);
            }
            left -= count;
        }
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_a_bucket_that_is_not_much_longer() {
        let mut last = 0;
        for nanos in (0..10_000).chain((14..42).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 12_345])) {
            let index = bucket(nanos);
            assert!(index >= last && index < BUCKETS, "{nanos}: {index} after {last}");
            last = index;
            let longest = longest_of(index);
            assert!(longest >= nanos && longest <= nanos + nanos / 16, "{nanos}: {longest}");
            assert!(index == 0 || longest_of(index - 1) < nanos, "{nanos} is in the first bucket that has it");
        }
    }

    #[test]
    fn percentiles_are_those_of_what_was_recorded() {
        let mut waits = Waits::default();
        assert_eq!((waits.percentile(99), waits.longest()), (0, 0));
        (1..=1_000).for_each(|n| waits.record(n * 1_000));
        let p99 = waits.percentile(99);
        assert!((990_000..=990_000 * 17 / 16).contains(&p99), "{p99}");
        let mut other = Waits::default();
        other.record(u64::MAX);
        waits.add(&other);
        assert_eq!(waits.longest(), u64::MAX);
        assert!(waits.percentile(50) < 540_000);
    }
}
