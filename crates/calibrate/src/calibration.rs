//! A calibration of one world: costs, bench, fit, and validation.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abey_bench::datapath::Memory;
use abey_bench::linux::Linux;
use abey_bench::{
    App, BenchError, ClientKind, Conditions, Cpus, Load, Machine, Progress, Receivers, Suite, TestBed, VethNetwork,
};
use abey_linux::cpu::thread_affinity;
use abey_linux::library::find_library;
use abey_sim::profile::Delivery;
use abey_sim::{InputError, Profile};

use crate::costs::{self, CostError, Costs};
use crate::prediction::{self, Accuracy, Prediction};
use crate::template::{Subject, description, text};
use crate::{TrainingError, fit, training};

/// Estimated time of a candidate of the search.
pub const CANDIDATE_TIME: Duration = Duration::from_millis(30);
/// The search ends after this multiple of its estimated time, even if candidates are left.
pub const MAX_SEARCH_FACTOR: u32 = 2;

/// A finished calibration.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The world.
    pub world: Delivery,
    /// The file of the profile.
    pub path: PathBuf,
    /// The text of the profile.
    pub profile: String,
    /// The measured costs.
    pub costs: Costs,
    /// The misfit of the fitted rows before and after the search.
    pub misfit: (f64, f64),
    /// All rows with their predictions.
    pub predictions: Vec<Prediction>,
    /// The accuracy on the held-out rows.
    pub accuracy: Accuracy,
}

/// What a calibration is asked to do.
#[derive(Clone, Debug)]
pub struct CalibrationRequest<'a> {
    /// The world.
    pub world: Delivery,
    /// The file of the profile, which the caller writes.
    pub path: &'a Path,
    /// Path of the `abey` command.
    pub abey: &'a Path,
    /// The loads, in ascending order.
    pub loads: &'a [Load],
    /// Conditions of the bench.
    pub conditions: &'a Conditions,
    /// Duration of the bench.
    pub time: Duration,
    /// Number of candidate profiles.
    pub evaluations: usize,
    /// The date, for the description.
    pub date: String,
}

/// Progress of a calibration.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// The bench.
    Bench(Progress),
    /// The search: tried candidates and their total number.
    Fit(usize, usize),
}

/// An error of a calibration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The caller set the stop flag.
    #[error("stopped")]
    Stopped,
    /// A cost could not be measured.
    #[error(transparent)]
    Cost(Box<CostError>),
    /// The bench failed.
    #[error(transparent)]
    Bench(BenchError),
    /// The rates of the bench are too high.
    #[error(transparent)]
    Training(Box<TrainingError>),
    /// The profile is not valid.
    #[error(transparent)]
    Profile(Box<InputError>),
}

impl From<InputError> for CalibrationError {
    fn from(error: InputError) -> Self {
        Self::Profile(Box::new(error))
    }
}

impl From<BenchError> for CalibrationError {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Stopped => Self::Stopped,
            other => Self::Bench(other),
        }
    }
}

impl From<TrainingError> for CalibrationError {
    fn from(error: TrainingError) -> Self {
        match error {
            TrainingError::Bench(error) => error.into(),
            other => Self::Training(Box::new(other)),
        }
    }
}

impl From<CostError> for CalibrationError {
    fn from(error: CostError) -> Self {
        match error {
            CostError::Bench(error) => error.into(),
            other => Self::Cost(Box::new(other)),
        }
    }
}

impl Calibration {
    /// Measures the costs, benches the modes, fits the profile and predicts all rows.
    ///
    /// # Errors
    /// [`CalibrationError`]; nothing is left behind.
    pub fn run(request: &CalibrationRequest<'_>, progress: &mut dyn FnMut(Stage)) -> Result<Self, CalibrationError> {
        let (world, loads) = (request.world, request.loads);
        let allowed = thread_affinity(std::process::id()).map_err(BenchError::from)?;
        let cpus = Cpus::choose(&allowed, None)?;
        let mut costs = costs::of_machine(cpus, costs::Effort::default())?;
        if world == Delivery::Linux {
            costs.0.extend(costs::of_veth(cpus, costs::Effort::default())?.0);
        }
        let test_bed = test_bed(request, cpus)?;
        let rate = |load: Option<&Load>| load.and_then(|load| load.rate()).unwrap_or(0);
        let template = text(&Subject {
            world,
            costs: &costs,
            description: describe(&*test_bed, &request.date),
            connections: request.conditions.connections as u32,
            loads: (rate(loads.first()), rate(loads.last())),
        });
        let suite = Suite::new(test_bed, &training::modes(), loads, None)?;
        let mut on_progress = |bench| progress(Stage::Bench(bench));
        let rows = training::bench(world, &suite, loads, request.conditions, request.time, &mut on_progress)?;
        let fitted = search(request, &template, &rows, progress)?;
        let profile = Profile::parse(&request.path.display().to_string(), &fitted.text)?;
        let predictions = prediction::predict(world, &profile, rows)?;
        let accuracy = Accuracy::of(world, &predictions);
        let misfit = (fitted.before, fitted.after);
        let path = request.path.to_owned();
        Ok(Self { world, path, profile: fitted.text, costs, misfit, predictions, accuracy })
    }
}

fn test_bed(request: &CalibrationRequest<'_>, cpus: Cpus) -> Result<Box<dyn TestBed>, BenchError> {
    match request.world {
        Delivery::Datapath => Ok(Box::new(Memory::new(request.abey.to_owned())?)),
        Delivery::Linux => {
            let library = find_library(request.abey)?;
            let network = Arc::new(VethNetwork::new(cpus, Receivers::KernelOnly)?);
            Ok(Box::new(Linux::new(network, App::find(request.abey), library, ClientKind::Kernel)?))
        }
    }
}

/// Describes machine, server and wire.
fn describe(test_bed: &dyn TestBed, date: &str) -> String {
    let machine = Machine::read(false, date);
    let setup = test_bed.setup();
    let facts: Vec<String> = machine.facts().into_iter().map(|(name, text)| format!("{name} {text}")).collect();
    description(&facts.join(", "), &setup.server, &setup.wire)
}

fn search(
    request: &CalibrationRequest<'_>,
    template: &str,
    rows: &[training::BenchedRow],
    progress: &mut dyn FnMut(Stage),
) -> Result<abey_sim::fit::Fitted, CalibrationError> {
    let evaluations = request.evaluations;
    let effort = fit::Effort { evaluations, ..fit::Effort::default() };
    let (since, limit) = (Instant::now(), CANDIDATE_TIME * evaluations as u32 * MAX_SEARCH_FACTOR);
    let is_stopped = || request.conditions.stop.load(Ordering::Relaxed);
    let is_over = || is_stopped() || since.elapsed() > limit;
    progress(Stage::Fit(0, evaluations));
    let mut on_progress = |tried, _| progress(Stage::Fit(tried, evaluations));
    let fitted = fit::fit(request.world, template, rows, effort, &is_over, &mut on_progress);
    if is_stopped() {
        return Err(CalibrationError::Stopped);
    }
    Ok(fitted?)
}
