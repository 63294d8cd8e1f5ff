//! `abey calibrate`: this machine's costs, measured and fitted, as a host profile, and how well that predicts.

mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use abey_bench::datapath::Memory;
use abey_bench::linux::Linux;
use abey_bench::{App, Bed, BenchError, ClientKind, Conditions, Cpus, Load, Machine, Part, Progress, Takers, TestBed};
use abey_calibrate::template::{Subject, description, text};
use abey_calibrate::{Accuracy, CostError, Costs, Prediction, TrainingError, World, costs, fit, prediction, training};
use abey_delivery::Nanos;
use abey_linux::cpu::thread_affinity;
use abey_linux::library::find_library;
use abey_sim::Profile;
use indicatif::ProgressBar;

use super::bench;
use crate::failure::Failure;
use crate::output::{print_document, print_text};

/// Measure what this machine costs, into a host profile that `abey plan --profile` and `abey sim` take
///
/// System calls, wake-ups, timers, polls and packets are measured one by one; what cannot be isolated is fitted to a short
/// bench of five modes at the lowest and the highest of the loads. The other modes and loads of that bench are not fitted:
/// they are predicted, and the table shows both. In the datapath world the built-in server is benched over a shared-memory
/// NIC; in the linux world memcached (or the built-in server) over a veth pair between two network namespaces, which needs
/// root. Nothing is left behind but the profile.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which world to calibrate for [default: both; without root the datapath alone]
    #[arg(long, value_enum)]
    world: Option<Choice>,
    /// Where to write the profile; without a single --world each world gets a file of its own, with its name before the end
    #[arg(long, value_name = "FILE.toml", default_value = "calibrated.toml")]
    output: PathBuf,
    /// The loads to bench, three or more; the lowest and the highest are fitted, those between are held out. Below 20k
    /// fullbusy is slow here for reasons that the simulator does not have
    #[arg(long, value_name = "RATE,..", value_delimiter = ',', default_value = "20k,30k,40k")]
    loads: Vec<Load>,
    /// How long one run is measured
    #[arg(long, value_name = "TIME", default_value = "60ms")]
    duration: Nanos,
    /// Runs of each mode at each load; then more where runs differ, for as long as --time says
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
    /// How long to bench each world; fewer runs than --reps if they take longer
    #[arg(long, value_name = "TIME", default_value = "70s")]
    time: Nanos,
    /// Connections to the server
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=4000))]
    connections: u32,
    /// Candidate profiles that the search tries for each world
    #[arg(long, value_name = "N", default_value_t = 700, value_parser = clap::value_parser!(u32).range(10..))]
    evaluations: u32,
    /// Write the profile whatever its predictions are worth, and exit 0
    #[arg(long)]
    no_check: bool,
    /// The seed of the order and of the arrivals [default: drawn, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    /// The kernel's NAPI
    Linux,
    /// Abey, in user space
    Datapath,
    /// Each with a profile of its own
    Both,
}

/// A world that was calibrated.
struct Calibrated {
    world: World,
    path: PathBuf,
    costs: Costs,
    /// Of the search, before and after.
    fit: (f64, f64),
    predictions: Vec<Prediction>,
    accuracy: Accuracy,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let loads = checked_loads(&args)?;
    let worlds = worlds(&args)?;
    let files: Vec<(World, PathBuf)> = worlds.iter().map(|world| (*world, file_of(&args, *world))).collect();
    for (_, path) in &files {
        check_writable(path)?;
    }
    let (stop, stopped_by) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    bench::catch_signals(&stop, &stopped_by)?;
    let conditions = Conditions {
        repetitions: args.reps,
        duration: args.duration.into(),
        warmup: WARMUP,
        connections: args.connections as usize,
        seed: args.seed.unwrap_or_else(rand::random),
        stop: Arc::clone(&stop),
    };
    announce(&args, &worlds, conditions.seed);
    let mut done = Vec::new();
    for (world, path) in files {
        match calibrate(world, path, &loads, &conditions, &args) {
            Ok(calibrated) => done.push(calibrated),
            Err(Ended::Stopped) => {
                eprintln!("abey: stopped; nothing is left behind");
                return Ok(ExitCode::from(128 + stopped_by.load(Ordering::Relaxed) as u8));
            }
            Err(Ended::Failed(failure)) => return Err(failure),
        }
    }
    let printed = if args.json { print_document(&report::document(&done)) } else { print_text(&report::text(&done)) }?;
    match done.iter().find(|one| !one.accuracy.holds()) {
        Some(bad) if !args.no_check => Err(Failure::check(report::verdict(bad))),
        _ => Ok(printed),
    }
}

/// How long each run goes on before it is measured, and is watched to prove its mode.
const WARMUP: Duration = Duration::from_millis(30);
/// What is measured alone, before the bench; and predicting every row, after the search.
const AROUND: Duration = Duration::from_secs(8);
/// A candidate of the search.
const CANDIDATE: Duration = Duration::from_millis(30);
/// The search ends after this, however many candidates there were to be, for each that takes [`CANDIDATE`].
const SEARCH_PATIENCE: u32 = 2;

fn checked_loads(args: &Args) -> Result<Vec<Load>, Failure> {
    let mut loads = args.loads.clone();
    loads.sort_unstable();
    loads.dedup();
    if loads.iter().any(|load| load.rate().is_none()) {
        return Err(Failure::usage("--loads max is no rate to calibrate at: name requests per second, such as 40k"));
    }
    if loads.len() < 3 {
        return Err(Failure::usage(
            "--loads needs three or more different rates: the lowest and the highest are fitted, those between are predicted",
        ));
    }
    if args.duration < Nanos::from_millis(50) || args.duration > Nanos::from_millis(10_000) {
        return Err(Failure::usage(format!("--duration {} is out of range: it goes from 50ms to 10s", args.duration)));
    }
    if args.time < Nanos::from_millis(1_000) || args.time > Nanos::from_millis(3_600_000) {
        return Err(Failure::usage(format!("--time {} is out of range: it goes from 1s to 1h", args.time)));
    }
    Ok(loads)
}

fn worlds(args: &Args) -> Result<Vec<World>, Failure> {
    let root = nix::unistd::geteuid().is_root();
    let needs = "the linux world needs root, to make its network namespaces: run it with sudo";
    match args.world {
        Some(Choice::Datapath) => Ok(vec![World::Datapath]),
        Some(_) if !root => Err(Failure::lacks(format!("{needs}; or say --world datapath"))),
        Some(Choice::Linux) => Ok(vec![World::Linux]),
        Some(Choice::Both) => Ok(vec![World::Linux, World::Datapath]),
        None if root => Ok(vec![World::Linux, World::Datapath]),
        None => {
            eprintln!("abey: calibrating the datapath alone: {needs}");
            Ok(vec![World::Datapath])
        }
    }
}

/// The file itself if one world was named, and otherwise one with the world's name in it.
fn file_of(args: &Args, world: World) -> PathBuf {
    if matches!(args.world, Some(Choice::Linux | Choice::Datapath)) {
        return args.output.clone();
    }
    let stem = args.output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    args.output.with_file_name(format!("{stem}-{world}.toml"))
}

/// That the profile can be written and read again has to be known before minutes are spent on it.
fn check_writable(path: &Path) -> Result<(), Failure> {
    if path.extension().is_none_or(|extension| extension != "toml") {
        return Err(Failure::usage(format!(
            "--output {} does not end in .toml, by which a profile's file is known: name FILE.toml",
            path.display()
        )));
    }
    let existed = path.exists();
    let opened = fs::File::options().create(true).append(true).open(path);
    opened.map_err(|error| unwritable(path, &error))?;
    if !existed {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot write {}: {error}; name another file with --output", path.display()))
}

/// Says how long it is going to take.
fn announce(args: &Args, worlds: &[World], seed: u64) {
    let search = CANDIDATE * args.evaluations;
    let each = Duration::from(args.time) + search + AROUND;
    let names: Vec<String> = worlds.iter().map(World::to_string).collect();
    let tens = |span: Duration| (span * worlds.len() as u32).as_secs().div_ceil(10) * 10;
    eprintln!(
        "abey: calibrating {}, about {} s, and up to {} s if other programs run meanwhile; seed {seed}",
        names.join(" and "),
        tens(each),
        tens(each + search * (SEARCH_PATIENCE - 1))
    );
}

/// Why a calibration did not come to its end.
enum Ended {
    Stopped,
    Failed(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<BenchError> for Ended {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Stopped => Self::Stopped,
            other => Self::Failed(bench::failure(other)),
        }
    }
}

impl From<TrainingError> for Ended {
    fn from(error: TrainingError) -> Self {
        match error {
            TrainingError::Bench(error) => error.into(),
            other => Self::Failed(Failure::check(other)),
        }
    }
}

impl From<CostError> for Ended {
    fn from(error: CostError) -> Self {
        match error {
            CostError::Bed(error) => error.into(),
            other => Self::Failed(Failure::lacks(other)),
        }
    }
}

fn calibrate(
    world: World,
    path: PathBuf,
    loads: &[Load],
    conditions: &Conditions,
    args: &Args,
) -> Result<Calibrated, Ended> {
    let allowed = thread_affinity(std::process::id()).map_err(Failure::lacks)?;
    let cpus = Cpus::choose(&allowed, None)?;
    let mut costs = costs::of_machine(cpus, costs::Effort::default())?;
    if world == World::Linux {
        costs.0.extend(costs::of_veth(cpus, costs::Effort::default())?.0);
    }
    let bed = bed(world, cpus)?;
    let subject = Subject {
        world,
        costs: &costs,
        description: described(&*bed),
        connections: args.connections,
        loads: (rate(loads.first()), rate(loads.last())),
    };
    let text = text(&subject);
    let bar = bench::progress_bar();
    let part = Part::new(bed, &training::modes(), loads, None)?;
    let rows = training::bench(
        world,
        &part,
        loads,
        conditions,
        args.time.into(),
        &mut |Progress { mode, done, all, .. }| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(format!("{mode} ({world})"));
        },
    );
    bar.finish_and_clear();
    let fitted = search(world, &text, &rows?, conditions, args)?;
    write(&path, &fitted.0.text)?;
    let profile = Profile::parse(&path.display().to_string(), &fitted.0.text).map_err(Failure::check)?;
    let predictions = prediction::predict(world, &profile, fitted.1).map_err(Failure::check)?;
    let accuracy = Accuracy::of(world, &predictions);
    Ok(Calibrated { world, path, costs, fit: (fitted.0.before, fitted.0.after), predictions, accuracy })
}

fn bed(world: World, cpus: Cpus) -> Result<Box<dyn Bed>, Ended> {
    let exe = std::env::current_exe().map_err(|error| Failure::lacks(format!("cannot find my own file: {error}")))?;
    match world {
        World::Datapath => Ok(Box::new(Memory::new(exe)?)),
        World::Linux => {
            let library = find_library(&exe).map_err(Failure::lacks)?;
            let network = Arc::new(TestBed::new(cpus, Takers::Kernel)?);
            Ok(Box::new(Linux::new(network, App::find(&exe), library, ClientKind::Kernel)?))
        }
    }
}

fn described(bed: &dyn Bed) -> String {
    let machine = Machine::read(false, &bench::date());
    let setup = bed.setup();
    let facts: Vec<String> = machine.facts().into_iter().map(|(name, text)| format!("{name} {text}")).collect();
    description(&facts.join(", "), &setup.server, &setup.wire)
}

fn rate(load: Option<&Load>) -> u64 {
    load.and_then(|load| load.rate()).unwrap_or(0)
}

type Searched = (abey_sim::fit::Fitted, Vec<training::Trained>);

fn search(
    world: World,
    text: &str,
    rows: &[training::Trained],
    conditions: &Conditions,
    args: &Args,
) -> Result<Searched, Ended> {
    let bar: ProgressBar = bench::progress_bar();
    bar.set_length(args.evaluations.into());
    bar.set_message(format!("fitting ({world})"));
    let effort = fit::Effort { evaluations: args.evaluations as usize, ..fit::Effort::default() };
    let (since, most) = (Instant::now(), CANDIDATE * args.evaluations * SEARCH_PATIENCE);
    let stop = || conditions.stop.load(Ordering::Relaxed);
    let is_over = || stop() || since.elapsed() > most;
    let fitted = fit::fit(world, text, rows, effort, &is_over, &mut |done, _| bar.set_position(done as u64));
    bar.finish_and_clear();
    if stop() {
        return Err(Ended::Stopped);
    }
    Ok((fitted.map_err(Failure::check)?, rows.to_vec()))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| unwritable(path, &error))
}
