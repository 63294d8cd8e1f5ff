//! A load that steps: fixed modes and `abey tune` over the same curve of loads, one after the other in random order.
//!
//! [`measure`](crate::measure()) asks what a mode gives at a load. This asks what a load that changes costs: in the mode that
//! was best for all of it, and under the tuner, which may take another mode for each part. The tuner is the command itself,
//! in a process of its own on the client's CPU; what it costs there is told beside the server's CPU time.

mod drive;
mod judge;
mod tuner;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abey_delivery::{Mode, Nanos};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

pub(crate) use drive::{Course, Driven};
pub use judge::{Judged, StepFigures, StepRow, judge};
pub(crate) use tuner::Tuner;

use crate::{BenchError, Conditions, World};

/// A latency that a share of the requests stays within. Text form: `p99=250us`, `p95=150us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct StepGoal {
    /// The share of requests, in percent: 50, 90, 95 or 99.
    pub percentile: u8,
    /// What they stay within.
    pub limit: Nanos,
}

/// A text that is no goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no goal: write p50, p90, p95 or p99, an equals sign and a time, such as p99=250us")]
pub struct ParseStepGoalError(String);

impl std::str::FromStr for StepGoal {
    type Err = ParseStepGoalError;

    fn from_str(text: &str) -> Result<Self, ParseStepGoalError> {
        let wrong = || ParseStepGoalError(text.to_owned());
        let (name, limit) = text.split_once('=').ok_or_else(wrong)?;
        let percentile = match name {
            "p50" => 50,
            "p90" => 90,
            "p95" => 95,
            "p99" => 99,
            _ => return Err(wrong()),
        };
        let limit: Nanos = limit.parse().map_err(|_| wrong())?;
        if limit.is_zero() { Err(wrong()) } else { Ok(Self { percentile, limit }) }
    }
}

impl std::fmt::Display for StepGoal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p{}={}", self.percentile, self.limit)
    }
}

impl From<StepGoal> for String {
    fn from(goal: StepGoal) -> Self {
        goal.to_string()
    }
}

/// What goes over the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// One mode all the time.
    Mode(Mode),
    /// `abey tune`.
    Tuned,
}

impl Contender {
    /// The mode that it begins in: the tuner does where an untouched machine is.
    pub(crate) fn first_mode(self) -> Mode {
        match self {
            Self::Mode(mode) => mode,
            Self::Tuned => Mode::Base,
        }
    }
}

impl std::fmt::Display for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mode(mode) => mode.fmt(f),
            Self::Tuned => f.pad("tuned"),
        }
    }
}

/// The curve of loads, and what is wanted on it.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Requests per second, one step after the other.
    pub loads: Vec<u64>,
    /// How long each is.
    pub each: Duration,
    /// Latency is judged, and told to the tuner, in slices of this length.
    pub slice: Duration,
    /// The goal.
    pub goal: StepGoal,
    /// The `abey` command, for the tuner.
    pub abey: PathBuf,
    /// More arguments for `abey tune`.
    pub arguments: Vec<String>,
}

impl Steps {
    /// How long the goal has after a step to hold again: two seconds, or half of a shorter step.
    pub fn settle(&self) -> Duration {
        Duration::from_secs(2).min(self.each / 2)
    }
}

/// Latency in one slice.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Slice {
    /// The step it belongs to, from 0.
    pub step: usize,
    /// When it began, in seconds from the beginning of its step.
    pub at_s: f64,
    /// Requests.
    pub count: u64,
    /// Latency in microseconds.
    pub p50_us: f64,
    /// Latency in microseconds.
    pub p90_us: f64,
    /// Latency in microseconds.
    pub p95_us: f64,
    /// Latency in microseconds.
    pub p99_us: f64,
}

impl Slice {
    /// The percentile that a goal is about.
    pub fn at(&self, percentile: u8) -> f64 {
        match percentile {
            50 => self.p50_us,
            90 => self.p90_us,
            95 => self.p95_us,
            _ => self.p99_us,
        }
    }
}

/// One contender's way over all the steps.
#[derive(Clone, Debug, Serialize)]
pub struct StepRun {
    /// Its world.
    pub world: World,
    /// Whose it is, by name.
    pub contender: String,
    /// Latencies.
    pub slices: Vec<Slice>,
    /// CPU time of the server in each step, percent of its CPU.
    pub cpu_percent: Vec<f64>,
    /// CPU time of the tuner, percent of one CPU.
    pub tuner_cpu_percent: Option<f64>,
    /// What the tuner said, a row for each interval.
    pub tuner: Vec<serde_json::Value>,
    /// What has to be known about the run.
    pub notes: Vec<String>,
}

/// Where steps are measured.
pub trait StepBed {
    /// Its world.
    fn world(&self) -> World;

    /// Starts a server, takes it over all the steps, and ends it.
    ///
    /// # Errors
    /// [`BenchError`].
    fn measure_steps(
        &self,
        contender: Contender,
        steps: &Steps,
        seed: u64,
        conditions: &Conditions,
    ) -> Result<StepRun, BenchError>;
}

/// Takes every contender over the steps, as often as the conditions say, each time in another order.
///
/// # Errors
/// [`BenchError`]; [`BenchError::Stopped`] once the stop flag is true.
pub fn measure_steps(
    bed: &dyn StepBed,
    contenders: &[Contender],
    steps: &Steps,
    conditions: &Conditions,
    progress: &mut dyn FnMut(Contender, usize, usize),
) -> Result<Vec<StepRun>, BenchError> {
    let mut random = StdRng::seed_from_u64(conditions.seed);
    let all = contenders.len() * conditions.repetitions as usize;
    let mut runs = Vec::with_capacity(all);
    for _ in 0..conditions.repetitions {
        let mut round = contenders.to_vec();
        round.shuffle(&mut random);
        for contender in round {
            if conditions.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            progress(contender, runs.len(), all);
            runs.push(bed.measure_steps(contender, steps, random.random(), conditions)?);
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read_and_shown() {
        for text in ["p99=250us", "p95=1ms", "p90=200us", "p50=20us"] {
            assert_eq!(text.parse::<StepGoal>().map(|goal| goal.to_string()).as_deref(), Ok(text));
        }
        for wrong in ["", "p99", "p99=", "p75=1ms", "cpu=50%", "p99=0us", "p99=fast"] {
            assert!(wrong.parse::<StepGoal>().is_err(), "{wrong}");
        }
    }
}
