//! What instances did between two samples, in a second.

use std::collections::BTreeMap;

use abey_delivery::Nanos;

use crate::counts::{Counter, Counts};
use crate::sample::{Instance, Key, Sample};

/// What one instance did between two samples.
#[derive(Clone, Debug)]
pub struct Rates {
    /// The instance as it is at the second sample.
    pub instance: Instance,
    /// What it did meanwhile; nothing is known of one that was not there before.
    pub counts: Option<Counts>,
    seconds: f64,
}

impl Rates {
    /// Of every instance that is there at the second sample.
    #[must_use]
    pub fn between(before: &Sample, after: &Sample) -> Vec<Self> {
        let then: BTreeMap<Key, &Counts> = before.instances.iter().map(|one| (one.key, &one.counts)).collect();
        let seconds = seconds(after.at.saturating_sub(before.at));
        let of = |one: &Instance| Self {
            instance: one.clone(),
            counts: then.get(&one.key).map(|then| one.counts.since(then)),
            seconds,
        };
        after.instances.iter().map(of).collect()
    }

    /// These counters together, in a second; `None` where they cannot be counted.
    #[must_use]
    pub fn per_second(&self, counters: &[Counter]) -> Option<f64> {
        Some(self.counts?.sum(counters)? as f64 / self.seconds)
    }

    /// The mean of packets of the polls that found any.
    #[must_use]
    pub fn batch(&self) -> Option<f64> {
        self.counts?.mean_batch()
    }

    /// CPU time in softirq and in the instance's thread, as a share of one CPU in percent.
    #[must_use]
    pub fn cpu_percent(&self) -> Option<f64> {
        Some(self.per_second(&[Counter::SoftirqNanos, Counter::ThreadNanos])? / 1e7)
    }
}

/// Never none, so that it can be divided by.
fn seconds(span: Nanos) -> f64 {
    span.as_nanos().max(1) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests_support::{instance, sample};

    #[test]
    fn rates_are_of_the_time_between() {
        let mut before = instance("eth0", 1);
        before.counts.set(Counter::Packets, 100);
        before.counts.set(Counter::ThreadNanos, 0);
        let mut after = before.clone();
        after.counts.set(Counter::Packets, 300);
        after.counts.set(Counter::ThreadNanos, 1_000_000_000);
        let first = sample(vec![before]);
        let mut second = sample(vec![after, instance("eth0", 2)]);
        second.at = Nanos::from_millis(2_000);
        let rates = Rates::between(&first, &second);
        assert_eq!(rates[0].per_second(&[Counter::Packets]), Some(100.0));
        assert_eq!((rates[0].cpu_percent(), rates[0].batch()), (Some(50.0), None));
        assert_eq!((rates[0].per_second(&[Counter::Timers]), rates[1].per_second(&[Counter::Packets])), (None, None));
    }
}
