//! Every mode at every load, several times, interleaved in random order: in one world or in several.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abey_delivery::Mode;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::{BedSetup, BenchError, Load, Run, World};

/// Where a world's modes are measured: a server, a load, and a wire between them.
pub trait Bed {
    /// The bed in words.
    fn setup(&self) -> &BedSetup;

    /// Why this bed cannot measure a mode; `None` if it can.
    fn lacks(&self, mode: Mode) -> Option<&'static str>;

    /// Starts a server under `mode`, measures it at each load in turn, and ends it.
    ///
    /// # Errors
    /// [`BenchError`]; in particular a mode that counters do not prove active is an error, never a run.
    fn measure(&self, mode: Mode, loads: &[Load], seed: u64, conditions: &Conditions) -> Result<Vec<Run>, BenchError>;

    /// Whether cycles and instructions can be counted on the server's CPU.
    ///
    /// # Errors
    /// When that CPU is not there any more.
    fn counts_cycles(&self) -> Result<bool, BenchError>;
}

/// What is the same for every run.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Runs of each mode at each load.
    pub repetitions: u32,
    /// How long one run is measured.
    pub duration: Duration,
    /// How long each run goes on before it is measured.
    pub warmup: Duration,
    /// Connections to the server.
    pub connections: usize,
    /// The seed of the order and of the arrivals.
    pub seed: u64,
    /// Ends the bench early once it is true.
    pub stop: Arc<AtomicBool>,
}

/// What is to be measured in one world.
pub struct Part {
    bed: Box<dyn Bed>,
    modes: Vec<Mode>,
    loads: Vec<Load>,
}

impl Part {
    /// The modes and loads, each of which is named once. Modes that the bed cannot measure are an error; or, with
    /// `left_out`, they are left out with a note there.
    ///
    /// # Errors
    /// [`BenchError::Lacks`] for a mode that is not possible.
    pub fn new(
        bed: Box<dyn Bed>,
        modes: &[Mode],
        loads: &[Load],
        mut left_out: Option<&mut Vec<String>>,
    ) -> Result<Self, BenchError> {
        let world = bed.setup().world;
        let mut possible = Vec::new();
        for &mode in modes {
            match (bed.lacks(mode), &mut left_out) {
                (None, _) => possible.push(mode),
                (Some(why), Some(notes)) => notes.push(format!("{world}: {mode} is left out: {why}")),
                (Some(why), None) => {
                    let what = format!("{mode} cannot be measured in the {world} world: {why}");
                    return Err(BenchError::Lacks { what, advice: "leave the mode out, or use another kernel" });
                }
            }
        }
        Ok(Self { bed, modes: possible, loads: loads.to_vec() })
    }

    /// Whether no mode is left.
    pub fn is_empty(&self) -> bool {
        self.modes.is_empty()
    }

    /// The bed.
    pub fn bed(&self) -> &dyn Bed {
        &*self.bed
    }
}

/// How far a bench has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The world of the mode that is measured next.
    pub world: World,
    /// The mode that is measured next.
    pub mode: Mode,
    /// Runs done.
    pub done: usize,
    /// Runs in all.
    pub all: usize,
}

/// Measures all parts: one run for each repetition of each mode at each load. Returns early with
/// [`BenchError::Stopped`] once the stop flag is true.
///
/// Each round takes every mode of every world once, in an order drawn from the seed, with a server of its own that meets
/// every load in an order of its own: what disturbs the machine for a while then disturbs all modes and worlds alike.
///
/// # Errors
/// [`BenchError`]; in particular a mode that counters do not prove active is an error, never a row.
pub fn measure(
    parts: &[Part],
    conditions: &Conditions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Run>, BenchError> {
    let mut random = StdRng::seed_from_u64(conditions.seed);
    let servers: Vec<(&Part, Mode)> =
        parts.iter().flat_map(|part| part.modes.iter().map(move |mode| (part, *mode))).collect();
    let a_round: usize = servers.iter().map(|(part, _)| part.loads.len()).sum();
    let all = a_round * conditions.repetitions as usize;
    let mut runs = Vec::with_capacity(all);
    for _ in 0..conditions.repetitions {
        let mut round = servers.clone();
        round.shuffle(&mut random);
        for (part, mode) in round {
            if conditions.stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            progress(Progress { world: part.bed.setup().world, mode, done: runs.len(), all });
            let mut loads = part.loads.clone();
            loads.shuffle(&mut random);
            runs.extend(part.bed.measure(mode, &loads, random.random(), conditions)?);
        }
    }
    Ok(runs)
}
