//! Load steps: fixed modes and `abey tune` over the same sequence of loads, in random order.
//!
//! [`measure`](crate::measure()) measures a mode at a constant load. This module measures the CPU use under a changing load: with
//! each fixed mode, and with the tuner, which may change the mode at each step. The tuner is the `abey` command in a process of
//! its own on the client's CPU; its CPU time is reported separately.

mod driver;
mod evaluate;
mod table;
mod tuner;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abey_delivery::{Mode, Nanos};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

pub(crate) use driver::{StepDriver, StepMeasurements};
pub use evaluate::{StepFigures, StepResults, StepRow, evaluate};
pub use table::{StepDocument, table};
pub(crate) use tuner::Tuner;

use crate::{BenchError, Conditions, World};

/// A goal: a percentile of latency and its limit. Text form: `p99=250us`, `p95=150us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub struct StepGoal {
    /// The percentile: 50, 90, 95 or 99.
    pub percentile: u8,
    /// The limit.
    pub limit: Nanos,
}

/// An error for a text that is no goal.
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

/// A contender: a fixed mode or the tuner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A fixed mode.
    Mode(Mode),
    /// `abey tune`.
    Tuned,
}

impl Contender {
    /// Returns the mode at the beginning; the tuner begins with the defaults of the kernel.
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

/// A sequence of loads with a goal.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Requests per second of each step.
    pub loads: Vec<u64>,
    /// Duration of a step.
    pub each: Duration,
    /// Duration of a slice, the unit in which latency is evaluated and reported to the tuner.
    pub slice: Duration,
    /// The goal.
    pub goal: StepGoal,
    /// Path of the `abey` command, for the tuner.
    pub abey: PathBuf,
    /// Additional arguments of `abey tune`.
    pub arguments: Vec<String>,
}

impl Steps {
    /// Returns the time after the beginning of a step in which the goal may be missed: two seconds, or half of a shorter step.
    pub fn settle_time(&self) -> Duration {
        Duration::from_secs(2).min(self.each / 2)
    }
}

/// Latencies of one slice.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Slice {
    /// Number of its step, from 0.
    pub step: usize,
    /// Its beginning, in seconds from the beginning of its step.
    pub at_s: f64,
    /// Number of responses.
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
    /// Returns a percentile in microseconds.
    pub fn at(&self, percentile: u8) -> f64 {
        match percentile {
            50 => self.p50_us,
            90 => self.p90_us,
            95 => self.p95_us,
            _ => self.p99_us,
        }
    }
}

/// One run of a contender over all steps.
#[derive(Clone, Debug, Serialize)]
pub struct StepRun {
    /// The world.
    pub world: World,
    /// Name of the contender.
    pub contender: String,
    /// Latencies by slice.
    pub slices: Vec<Slice>,
    /// CPU use of the server in each step, in percent of its CPU.
    pub cpu_percent: Vec<f64>,
    /// CPU use of the tuner, in percent of one CPU.
    pub tuner_cpu_percent: Option<f64>,
    /// The tuner's own report, a row for each interval.
    pub tuner: Vec<serde_json::Value>,
    /// Notes on the run.
    pub notes: Vec<String>,
}

/// A test bed for load steps.
pub trait StepTestBed {
    /// Returns the world.
    fn world(&self) -> World;

    /// Starts a server, runs all steps, and stops it.
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

/// Runs every contender over all steps, once per repetition, in random order.
///
/// # Errors
/// [`BenchError`]; [`BenchError::Stopped`] once the stop flag is true.
pub fn measure_steps(
    test_bed: &dyn StepTestBed,
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
            runs.push(test_bed.measure_steps(contender, steps, random.random(), conditions)?);
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_round_trip() {
        for text in ["p99=250us", "p95=1ms", "p90=200us", "p50=20us"] {
            assert_eq!(text.parse::<StepGoal>().map(|goal| goal.to_string()).as_deref(), Ok(text));
        }
        for wrong in ["", "p99", "p99=", "p75=1ms", "cpu=50%", "p99=0us", "p99=fast"] {
            assert!(wrong.parse::<StepGoal>().is_err(), "{wrong}");
        }
    }
}
