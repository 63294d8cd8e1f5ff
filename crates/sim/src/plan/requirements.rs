//! What a plan is made for: the load, the server, the goal, and how much work to spend on it.

use abey_delivery::{Family, ModeSettings, Nanos, nearest_mode};

use crate::distribution::Delay;
use crate::profile::{InputError, Profile};
use crate::scenario::{Load, Scenario};

/// The loads that the goal must hold at, in requests per second, both included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadRange {
    /// The lowest.
    pub low: f64,
    /// The highest; the lowest again for a single load.
    pub high: f64,
}

impl LoadRange {
    /// One load, or `count` of them at equal distances.
    pub(super) fn spread(self, count: u32) -> Vec<f64> {
        if self.low == self.high {
            return vec![self.low];
        }
        let step = (self.high - self.low) / f64::from(count - 1);
        (0..count).map(|at| (self.low + step * f64::from(at)).round()).collect()
    }
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// A 99th percentile of latency of at most this, for the least CPU.
    P99AtMost(Nanos),
    /// At most this CPU use, in percent of the server's CPUs, with the least 99th percentile.
    CpuAtMost(f64),
}

/// How far the simulator's 99th percentile is off: the median error of the predicted rows of the published IRQ suspension
/// table (`abey sim --reference irq-suspension`). A plan keeps so far away from its goal.
pub const P99_MARGIN: f64 = 0.07;

/// The same for CPU use, in points.
pub const CPU_MARGIN: f64 = 1.5;

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Answers per run while searching.
    pub screening_requests: f64,
    /// Answers per run of a finalist.
    pub confirming_requests: f64,
    /// Runs of a finalist at each load, each with a seed of its own.
    pub confirming_runs: u32,
    /// How often the search looks around the best so far.
    pub rounds: u32,
    /// No run of settings that spin counts for longer than this, however low the load; one of others ten times as long.
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

/// What a plan is made for.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirements {
    /// The loads.
    pub load: LoadRange,
    /// What is wanted at all of them.
    pub goal: Goal,
    /// Receive queues, each with its CPU and its server thread.
    pub queues: u32,
    /// Connections.
    pub connections: u32,
    /// The processor time that the application takes for a request; the profile's `server.request` unless given.
    pub service: Option<Nanos>,
    /// Only what Linux can do, as Linux does it; otherwise also what only Abey's own worlds have.
    pub linux: bool,
    /// The same seed gives the same plan.
    pub seed: u64,
    /// How much is simulated.
    pub effort: Effort,
}

/// No run counts for less: moderation and stalls need some time to show.
const SHORTEST: Nanos = Nanos::from_millis(25);

/// No run would have enough requests.
const LEAST_LOAD: f64 = 100.0;

impl Requirements {
    /// A goal at a load: 8 queues with 560 connections each, as the published study has them; Linux; seed 1.
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

    /// One run of some settings.
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

    /// Checks that the requirements can be.
    ///
    /// # Errors
    /// The first thing that cannot.
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
