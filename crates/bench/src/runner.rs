//! The runner: every mode at every load, several times, interleaved in random order, in one or more worlds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abey_delivery::Mode;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::{BenchError, Load, Run, TestBedSetup, World};

/// A server, a load and a wire between them, on which the modes of one world are measured.
pub trait TestBed {
    /// Returns the description of the test bed.
    fn setup(&self) -> &TestBedSetup;

    /// Returns why the test bed cannot measure a mode; `None` if it can.
    fn lacks(&self, mode: Mode) -> Option<&'static str>;

    /// Starts a server under `mode`, measures it at each load in turn, and stops it.
    ///
    /// # Errors
    /// [`BenchError`], in particular [`BenchError::NotActive`] for a mode that counters do not prove active.
    fn measure(&self, mode: Mode, loads: &[Load], seed: u64, conditions: &Conditions) -> Result<Vec<Run>, BenchError>;

    /// Returns whether cycles and instructions can be counted on the server's CPU.
    ///
    /// # Errors
    /// [`BenchError::Count`] if that CPU has gone offline.
    fn counts_cycles(&self) -> Result<bool, BenchError>;
}

/// Conditions that are the same for every run.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Runs of each mode at each load.
    pub repetitions: u32,
    /// Measured time of a run.
    pub duration: Duration,
    /// Time before the measurement of each run.
    pub warmup: Duration,
    /// Connections to the server.
    pub connections: usize,
    /// The seed of order and arrival times.
    pub seed: u64,
    /// Responses that a run must have: a run with fewer is repeated with twice the duration, up to a limit that only a hang
    /// reaches. 0 for a benchmark; tests that must not depend on the speed of the machine set it.
    pub min_responses: u64,
    /// Stops the bench early once it is true.
    pub stop: Arc<AtomicBool>,
}

/// The modes and loads to measure on one test bed.
pub struct Suite {
    test_bed: Box<dyn TestBed>,
    modes: Vec<Mode>,
    loads: Vec<Load>,
}

impl Suite {
    /// Creates a suite. A mode that the test bed cannot measure is left out with a note in `left_out`, or is an error without
    /// `left_out`.
    ///
    /// # Errors
    /// [`BenchError::Lacks`] for a mode that cannot be measured.
    pub fn new(
        test_bed: Box<dyn TestBed>,
        modes: &[Mode],
        loads: &[Load],
        mut left_out: Option<&mut Vec<String>>,
    ) -> Result<Self, BenchError> {
        let world = test_bed.setup().world;
        let mut possible = Vec::new();
        for &mode in modes {
            match (test_bed.lacks(mode), &mut left_out) {
                (None, _) => possible.push(mode),
                (Some(why), Some(notes)) => notes.push(format!("{world}: {mode} is left out: {why}")),
                (Some(why), None) => {
                    let what = format!("{mode} cannot be measured in the {world} world: {why}");
                    return Err(BenchError::Lacks { what, advice: "leave the mode out, or use another kernel" });
                }
            }
        }
        Ok(Self { test_bed, modes: possible, loads: loads.to_vec() })
    }

    /// Returns whether the suite has no modes.
    pub fn is_empty(&self) -> bool {
        self.modes.is_empty()
    }

    /// Returns the test bed.
    pub fn test_bed(&self) -> &dyn TestBed {
        &*self.test_bed
    }
}

/// Progress of a bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The world of the next run.
    pub world: World,
    /// The mode of the next run.
    pub mode: Mode,
    /// Completed runs.
    pub done: usize,
    /// Total runs.
    pub total: usize,
}

/// Measures all suites: each mode at each load, once per repetition.
///
/// A repetition takes every mode of every suite once, in random order, each with a new server that runs its loads in random
/// order. So a temporary disturbance of the machine affects all modes and worlds alike.
///
/// # Errors
/// [`BenchError`]: [`BenchError::Stopped`] once the stop flag is true, [`BenchError::NotActive`] for a mode that counters do not
/// prove active.
pub fn measure(
    suites: &[Suite],
    conditions: &Conditions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Run>, BenchError> {
    let mut random = StdRng::seed_from_u64(conditions.seed);
    let servers: Vec<(&Suite, Mode)> =
        suites.iter().flat_map(|suite| suite.modes.iter().map(move |mode| (suite, *mode))).collect();
    let runs_per_repetition: usize = servers.iter().map(|(suite, _)| suite.loads.len()).sum();
    let total = runs_per_repetition * conditions.repetitions as usize;
    let mut runs = Vec::with_capacity(total);
    for _ in 0..conditions.repetitions {
        let mut round = servers.clone();
        round.shuffle(&mut random);
        for (suite, mode) in round {
            if conditions.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            progress(Progress { world: suite.test_bed.setup().world, mode, done: runs.len(), total });
            let mut loads = suite.loads.clone();
            loads.shuffle(&mut random);
            runs.extend(suite.test_bed.measure(mode, &loads, random.random(), conditions)?);
        }
    }
    Ok(runs)
}
