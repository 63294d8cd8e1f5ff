//! What the tuner says: a line for each change with its reason, or rows.

use abey_delivery::{ModeSettings, Nanos, describe};
use abey_tune::{Goal, Latency, Sample};
use serde::Serialize;

use super::name::Name;
use super::tuner::Look;

/// One look of the tuner, as a row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Seconds since the beginning.
    at_s: f64,
    /// The device, or the NIC of a datapath.
    device: String,
    /// The receive queues that are steered together: a list, or `all`.
    queues: String,
    /// The IDs of their NAPI instances.
    napis: Vec<u32>,
    #[serde(skip)]
    name: String,
    /// The settings that were in force before.
    before: String,
    /// The settings from here on; in a dry run, those that would be.
    settings: String,
    gro_flush_timeout_ns: u64,
    irq_suspend_timeout_ns: u64,
    defer_hard_irqs: u32,
    /// Whether that is a change; in a dry run, whether it would be.
    changed: bool,
    reason: String,
    /// Whether the interval kept the goal; `null` where that could not be seen.
    within_goal: Option<bool>,
    packets_per_s: Option<f64>,
    polls_per_s: Option<f64>,
    empty_polls_percent: Option<f64>,
    /// Of one CPU.
    cpu_percent: Option<f64>,
    /// Requests whose latency was seen.
    requests: Option<u64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
}

impl Row {
    pub(crate) fn new(name: &Name, look: &Look, goal: Goal) -> Self {
        let sample = look.sample.as_ref();
        let per_second = |count: u64, sample: &Sample| finite(count as f64 / seconds(sample.interval));
        let us = |time: Nanos| time.as_nanos() as f64 / 1e3;
        let latency = sample.and_then(seen);
        let napi = look.settings.napi;
        // Where nobody counts polls there are none.
        let polled = sample.filter(|sample| sample.polls > 0);
        Self {
            at_s: (seconds(look.at) * 1e3).round() / 1e3,
            device: name.device.clone(),
            queues: name.queues(),
            napis: name.napis.clone(),
            name: name.to_string(),
            before: describe(&look.before),
            settings: describe(&look.settings),
            gro_flush_timeout_ns: napi.gro_flush_timeout.as_nanos(),
            irq_suspend_timeout_ns: napi.irq_suspend_timeout.as_nanos(),
            defer_hard_irqs: napi.defer_hard_irqs,
            changed: look.changes(),
            reason: look.reason.clone(),
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

    /// As a line. Its figures are of what led to it.
    pub(crate) fn line(&self, dry: bool) -> String {
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

/// The latencies of an interval, if there were requests.
fn seen(sample: &Sample) -> Option<Latency> {
    sample.latency.filter(|latency| latency.count > 0)
}

/// Whether an interval kept the goal.
fn within(sample: &Sample, goal: Goal) -> Option<bool> {
    match goal {
        Goal::P99(limit) => seen(sample).map(|latency| latency.p99 <= limit),
        Goal::Cpu(share) => Some(sample.cpu <= share),
    }
}

/// How it went, over all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    changes: u64,
    seen: u64,
    kept: u64,
    cpu_s: f64,
    seconds: f64,
}

impl Sum {
    pub(crate) fn add(&mut self, look: &Look, goal: Goal) {
        self.changes += u64::from(look.changes() && look.sample.is_some());
        let Some(sample) = &look.sample else { return };
        if let Some(kept) = within(sample, goal) {
            self.seen += 1;
            self.kept += u64::from(kept);
        }
        self.cpu_s += sample.cpu * seconds(sample.interval);
        self.seconds += seconds(sample.interval);
    }

    /// One sentence about the whole; `present` is what is in force at the end.
    pub(crate) fn line(&self, goal: Goal, present: &ModeSettings) -> String {
        let Self { changes, seen, kept, cpu_s, seconds } = *self;
        let share = if seen == 0 {
            format!("{goal} was not seen")
        } else {
            format!("{goal} held in {kept} of {seen} intervals")
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
    use crate::commands::tune::latency::UNSEEN;
    use abey_delivery::Mode;

    fn look(sample: Option<Sample>) -> Look {
        Look {
            at: Nanos::from_millis(1_500),
            sample,
            before: Mode::Base.settings(),
            settings: Mode::Defer(Nanos::from_micros(50)).settings(),
            reason: "there is room".to_owned(),
            is_news: false,
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
        let name = Name { device: "eth0".to_owned(), queues: Some([2].into()), napis: vec![259] };
        let row = Row::new(&name, &look(Some(sample)), goal);
        assert_eq!(
            row.line(false),
            "     1.5 s  eth0 queue 2 (NAPI 259): base -> defer50: there is room (60.0k packets/s, p99 120 us of 900, \
             CPU 12.3 %)"
        );
        assert!(row.line(true).contains("base, would be defer50"));
        assert_eq!((row.within_goal, row.polls_per_s, row.changed), (Some(false), None, true));
        let mut sum = Sum::default();
        sum.add(&look(None), goal);
        sum.add(&look(Some(sample)), goal);
        let said = sum.line(goal, &Mode::Base.settings());
        assert_eq!(said, "p99=100us held in 0 of 1 intervals, with 12.3 % of a CPU, in 1 change; last: base");
        assert_eq!(within(&Sample { latency: None, ..sample }, goal), None);
        assert_eq!(within(&Sample { latency: Some(UNSEEN), ..sample }, goal), None, "no request was seen");
        assert_eq!(within(&sample, Goal::Cpu(0.2)), Some(true));
    }
}
