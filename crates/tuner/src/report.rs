//! The tuner's output: a row and a line for each decision, and a summary.

use abey_delivery::{ModeSettings, Nanos, describe};
use abey_tune::{Goal, Latency, Sample};
use serde::Serialize;

use crate::name::TargetName;
use crate::tuner::Decision;

/// One decision, as a row of the JSON document.
#[derive(Clone, Debug, Serialize)]
pub struct TuneRow {
    /// Seconds since the start.
    at_s: f64,
    /// The device, or the NIC of a datapath.
    device: String,
    /// The receive queues that are tuned together: a list, or `all`.
    queues: String,
    /// The IDs of their NAPI instances.
    napis: Vec<u32>,
    #[serde(skip)]
    name: String,
    /// The settings during the interval.
    before: String,
    /// The settings from now on; in a dry run, those that would be applied.
    settings: String,
    gro_flush_timeout_ns: u64,
    irq_suspend_timeout_ns: u64,
    defer_hard_irqs: u32,
    /// Whether the settings change; in a dry run, whether they would.
    changed: bool,
    reason: String,
    /// Whether the interval held the goal; `null` where that was not measured.
    within_goal: Option<bool>,
    packets_per_s: Option<f64>,
    polls_per_s: Option<f64>,
    empty_polls_percent: Option<f64>,
    /// Percent of one CPU.
    cpu_percent: Option<f64>,
    /// Requests whose latency was measured.
    requests: Option<u64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

impl TuneRow {
    /// Creates the row of a decision.
    pub fn new(name: &TargetName, decision: &Decision, goal: Goal) -> Self {
        let sample = decision.sample.as_ref();
        let per_second = |count: u64, sample: &Sample| finite(count as f64 / seconds(sample.interval));
        let us = |time: Nanos| time.as_nanos() as f64 / 1e3;
        let latency = sample.and_then(measured);
        let napi = decision.settings.napi;
        // Polls are counted only where a group needs them.
        let polled = sample.filter(|sample| sample.polls > 0);
        Self {
            at_s: (seconds(decision.at) * 1e3).round() / 1e3,
            device: name.device.clone(),
            queues: name.queues(),
            napis: name.napis.clone(),
            name: name.to_string(),
            before: describe(&decision.before),
            settings: describe(&decision.settings),
            gro_flush_timeout_ns: napi.gro_flush_timeout.as_nanos(),
            irq_suspend_timeout_ns: napi.irq_suspend_timeout.as_nanos(),
            defer_hard_irqs: napi.defer_hard_irqs,
            changed: decision.changes(),
            reason: decision.reason.clone(),
            within_goal: sample.and_then(|sample| within(sample, goal)),
            packets_per_s: sample.and_then(|sample| per_second(sample.packets, sample)),
            polls_per_s: polled.and_then(|sample| per_second(sample.polls, sample)),
            empty_polls_percent: polled.map(|sample| 100.0 * sample.empty_polls as f64 / sample.polls as f64),
            cpu_percent: sample.map(|sample| 100.0 * sample.cpu),
            requests: latency.map(|latency| latency.count),
            p50_us: latency.map(|latency| us(latency.p50)),
            p99_us: latency.map(|latency| us(latency.p99)),
        }
    }

    /// Returns the line of the decision, with the figures of the interval that led to it.
    pub fn line(&self, dry: bool) -> String {
        let change = match (self.changed, dry) {
            (false, _) => self.settings.clone(),
            (true, false) => format!("{} -> {}", self.before, self.settings),
            (true, true) => format!("{}, would be {}", self.before, self.settings),
        };
        let figures = [
            self.packets_per_s.map(|rate| format!("{:.1}k packets/s", rate / 1e3)),
            self.p99_us.zip(self.requests).map(|(p99, count)| format!("p99 {p99:.0} us of {count}")),
            self.cpu_percent.map(|cpu| format!("CPU {cpu:.1} %")),
        ];
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        let shown = if figures.is_empty() { String::new() } else { format!(" ({})", figures.join(", ")) };
        format!("{:>8.1} s  {}: {change}: {}{shown}", self.at_s, self.name, self.reason)
    }
}

/// Returns the latencies of an interval with requests.
fn measured(sample: &Sample) -> Option<Latency> {
    sample.latency.filter(|latency| latency.count > 0)
}

/// Returns whether an interval held the goal; `None` without latencies.
fn within(sample: &Sample, goal: Goal) -> Option<bool> {
    match goal {
        Goal::P99(limit) => measured(sample).map(|latency| latency.p99 <= limit),
        Goal::Cpu(share) => Some(sample.cpu <= share),
    }
}

/// Totals of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    changes: u64,
    judged: u64,
    held: u64,
    cpu_s: f64,
    seconds: f64,
}

impl Summary {
    /// Adds a decision.
    pub fn add(&mut self, decision: &Decision, goal: Goal) {
        self.changes += u64::from(decision.changes() && decision.sample.is_some());
        let Some(sample) = &decision.sample else { return };
        if let Some(held) = within(sample, goal) {
            self.judged += 1;
            self.held += u64::from(held);
        }
        self.cpu_s += sample.cpu * seconds(sample.interval);
        self.seconds += seconds(sample.interval);
    }

    /// Returns the summary in a sentence; `present`: the settings at the end.
    pub fn line(&self, goal: Goal, present: &ModeSettings) -> String {
        let Self { changes, judged, held, cpu_s, seconds } = *self;
        let share = if judged == 0 {
            format!("{goal} was not measured")
        } else {
            format!("{goal} held in {held} of {judged} intervals")
        };
        let cpu = 100.0 * cpu_s / seconds.max(1e-9);
        let times = if changes == 1 { "change" } else { "changes" };
        format!("{share}, with {cpu:.1} % of a CPU, in {changes} {times}; last: {}", describe(present))
    }
}

fn seconds(time: Nanos) -> f64 {
    time.as_nanos() as f64 / 1e9
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::NO_REQUESTS;
    use abey_delivery::Mode;

    fn decision(sample: Option<Sample>) -> Decision {
        Decision {
            at: Nanos::from_millis(1_500),
            sample,
            before: Mode::Base.settings(),
            settings: Mode::Defer(Nanos::from_micros(50)).settings(),
            reason: "there is room".to_owned(),
            is_reported: false,
        }
    }

    #[test]
    fn a_line_says_what_why_and_what_was_seen() {
        let latency = Latency { count: 900, p50: Nanos::from_micros(30), p99: Nanos::from_micros(120) };
        let sample = Sample {
            interval: Nanos::from_millis(500),
            packets: 30_000,
            polls: 0,
            empty_polls: 0,
            cpu: 0.123,
            latency: Some(latency),
        };
        let goal = Goal::P99(Nanos::from_micros(100));
        let name = TargetName { device: "eth0".to_owned(), queues: Some([2].into()), napis: vec![259] };
        let row = TuneRow::new(&name, &decision(Some(sample)), goal);
        assert_eq!(
            row.line(false),
            "     1.5 s  eth0 queue 2 (NAPI 259): base -> defer50: there is room (60.0k packets/s, p99 120 us of 900, \
             CPU 12.3 %)"
        );
        assert!(row.line(true).contains("base, would be defer50"));
        assert_eq!((row.within_goal, row.polls_per_s, row.changed), (Some(false), None, true));
        let mut sum = Summary::default();
        sum.add(&decision(None), goal);
        sum.add(&decision(Some(sample)), goal);
        let line = sum.line(goal, &Mode::Base.settings());
        assert_eq!(line, "p99=100us held in 0 of 1 intervals, with 12.3 % of a CPU, in 1 change; last: base");
        assert_eq!(within(&Sample { latency: None, ..sample }, goal), None);
        assert_eq!(within(&Sample { latency: Some(NO_REQUESTS), ..sample }, goal), None, "no request");
        assert_eq!(within(&sample, Goal::Cpu(0.2)), Some(true));
    }
}
