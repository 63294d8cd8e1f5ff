//! Samples of a simulated host.

use abey_delivery::Nanos;
use abey_sim::Outcome;
use abey_tune::{Latency, Sample};

/// Returns the sample of an interval with this outcome.
pub(crate) fn sample(outcome: &Outcome, interval: Nanos) -> Sample {
    let answers = outcome.qps * interval.as_nanos() as f64 / 1e9;
    let polls = outcome.polls_per_query * answers;
    let nanos = |micros: f64| Nanos::from_nanos((micros * 1e3) as u64);
    Sample {
        interval,
        packets: (outcome.packets_per_poll * polls).round() as u64,
        polls: polls.round() as u64,
        empty_polls: (outcome.empty_polls_percent / 100.0 * polls).round() as u64,
        cpu: outcome.cpu_percent / 100.0,
        latency: Some(Latency { count: answers as u64, p50: nanos(outcome.p50_us), p99: nanos(outcome.p99_us) }),
    }
}
