//! Requirements of a plan: load, server, goal and effort.

use abey_delivery::{Family, ModeSettings, Nanos, nearest_mode};

use crate::distribution::Delay;
use crate::profile::{InputError, Profile};
use crate::scenario::{Load, Scenario};

/// Range of loads at which the goal must be met, in requests per second, inclusive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadRange {
    /// Lowest load.
    pub low: f64,
    /// Highest load; equal to `low` for a single load.
    pub high: f64,
}

impl LoadRange {
    /// Returns `count` equidistant loads, or a single one.
    pub(super) fn spread(self, count: u32) -> Vec<f64> {
        if self.low == self.high {
            return vec![self.low];
        }
        let step = (self.high - self.low) / f64::from(count - 1);
        (0..count).map(|at| (self.low + step * f64::from(at)).round()).collect()
    }
}

/// Goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Upper limit of the 99th percentile of latency, with the least CPU use.
    P99AtMost(Nanos),
    /// Upper limit of CPU use in percent of the server's CPUs, with the least 99th percentile.
    CpuAtMost(f64),
}

/// Margin of the simulated 99th percentile: the median error of the predicted rows of the published IRQ suspension
/// table (`abey sim --reference irq-suspension`). A plan stays this far below its goal.
pub const P99_MARGIN: f64 = 0.07;

/// Margin of the simulated CPU use, in points.
pub const CPU_MARGIN: f64 = 1.5;

/// Simulation effort.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Answers per run during the search.
    pub screening_requests: f64,
    /// Answers per run of a finalist.
    pub confirming_requests: f64,
    /// Runs of a finalist at each load, with different seeds.
    pub confirming_runs: u32,
    /// Number of times that the search examines the neighbours of the best candidates.
    pub rounds: u32,
    /// Longest run of settings that spin, however low the load; other runs may be ten times as long.
    pub longest: Nanos,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            screening_requests: 20_000.0,
            confirming_requests: 40_000.0,
            confirming_runs: 3,
            rounds: 4,
            longest: Nanos::from_millis(400),
        }
    }
}

/// Requirements of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirements {
    /// Loads.
    pub load: LoadRange,
    /// Goal at all loads.
    pub goal: Goal,
    /// Receive queues, each with its CPU and server thread.
    pub queues: u32,
    /// Connections.
    pub connections: u32,
    /// Processor time of a request in the application; the profile's `server.request` by default.
    pub service: Option<Nanos>,
    /// Whether to use only what Linux can do, with its behaviour, or also what only Abey's own worlds have.
    pub linux: bool,
    /// Seed; the same seed gives the same plan.
    pub seed: u64,
    /// Simulation effort.
    pub effort: Effort,
}

/// Shortest run: moderation and stalls need some time to show.
const SHORTEST: Nanos = Nanos::from_millis(25);

/// Lowest load; at a lower one no run would have enough requests.
const LEAST_LOAD: f64 = 100.0;

impl Requirements {
    /// Creates requirements with 8 queues of 560 connections, as in the published study, Linux, and seed 1.
    pub fn new(load: LoadRange, goal: Goal) -> Self {
        Self {
            load,
            goal,
            queues: 8,
            connections: 4_480,
            service: None,
            linux: true,
            seed: 1,
            effort: Effort::default(),
        }
    }

    /// Returns the scenario of one run.
    pub fn scenario(&self, settings: &ModeSettings, load: f64, requests: f64, seed: u64) -> Scenario {
        let spins = matches!(Family::of(settings), Family::NapiBusy | Family::FullBusy | Family::ThreadedBusy);
        let longest = self.effort.longest.as_nanos() as f64 * if spins { 1.0 } else { 10.0 };
        let counted = (requests / load * 1e9).min(longest).max(SHORTEST.as_nanos() as f64);
        Scenario {
            settings: *settings,
            queues: self.queues,
            connections: self.connections,
            service: self.service.map(Delay::Constant),
            warmup: Nanos::from_millis(20),
            duration: Nanos::from_nanos(counted as u64),
            seed,
            linux: self.linux,
            ..Scenario::new(nearest_mode(settings), Load::Open(load))
        }
    }

    /// Checks the requirements.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn validate(&self, profile: &Profile) -> Result<(), InputError> {
        let wrong = |key, value: String, allowed| Err(InputError::Value { key, value, allowed });
        let LoadRange { low, high } = self.load;
        if low > high {
            return wrong("load", format!("{low}..{high}"), "a range goes from the lower load to the higher");
        }
        if low < LEAST_LOAD {
            let allowed = "plan for 100 requests per second or more: fewer say little about a 99th percentile";
            return wrong("load", low.to_string(), allowed);
        }
        match self.goal {
            Goal::CpuAtMost(percent) if !(percent > 0.0 && percent <= 100.0) => {
                return wrong("cpu", percent.to_string(), "CPU use is above 0 and at most 100 percent");
            }
            Goal::P99AtMost(span) if span.is_zero() => {
                return wrong("p99", span.to_string(), "a latency is above 0");
            }
            _ => {}
        }
        for load in [low, high] {
            self.scenario(&ModeSettings::default(), load, 1.0, self.seed).validate(profile)?;
        }
        Ok(())
    }
}
