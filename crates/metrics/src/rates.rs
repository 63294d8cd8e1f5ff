//! Rates: what instances did between two samples, per second.

use std::collections::BTreeMap;

use abey_delivery::Nanos;

use crate::counts::{Counter, Counts};
use crate::sample::{Instance, InstanceKey, Sample};

/// What one instance did between two samples.
#[derive(Clone, Debug)]
pub struct Rates {
    /// The instance in the second sample.
    pub instance: Instance,
    /// The difference of its counts; `None` if the first sample does not have the instance.
    pub counts: Option<Counts>,
    seconds: f64,
}

impl Rates {
    /// Returns the rates of every instance of the second sample.
    #[must_use]
    pub fn between(before: &Sample, after: &Sample) -> Vec<Self> {
        let then: BTreeMap<InstanceKey, &Counts> = before.instances.iter().map(|one| (one.key, &one.counts)).collect();
        let seconds = seconds(after.at.saturating_sub(before.at));
        let rates = |one: &Instance| Self {
            instance: one.clone(),
            counts: then.get(&one.key).map(|then| one.counts.since(then)),
            seconds,
        };
        after.instances.iter().map(rates).collect()
    }

    /// Returns the sum of these counters per second; `None` if they are absent.
    #[must_use]
    pub fn per_second(&self, counters: &[Counter]) -> Option<f64> {
        Some(self.counts?.sum(counters)? as f64 / self.seconds)
    }

    /// Returns the mean number of packets of the polls that found any.
    #[must_use]
    pub fn batch(&self) -> Option<f64> {
        self.counts?.mean_batch()
    }

    /// Returns the CPU time in softirq and in the instance's thread, in percent of one CPU.
    #[must_use]
    pub fn cpu_percent(&self) -> Option<f64> {
        Some(self.per_second(&[Counter::SoftirqNanos, Counter::ThreadNanos])? / 1e7)
    }
}

/// Converts to seconds, at least one nanosecond, so that the result can be a divisor.
fn seconds(span: Nanos) -> f64 {
    span.as_nanos().max(1) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::tests_support::{instance, sample};

    #[test]
    fn rates_are_differences_over_the_time_between_two_samples() {
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
