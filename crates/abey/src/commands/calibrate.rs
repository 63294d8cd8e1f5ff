//! `abey calibrate`: a host profile of this machine, measured, fitted and validated.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use abey_bench::{Conditions, Load, Progress};
use abey_calibrate::{
    CANDIDATE_TIME, Calibration, CalibrationError, CalibrationRequest, MAX_SEARCH_FACTOR, Stage, report,
};
use abey_delivery::Nanos;
use abey_sim::profile::Delivery;

use super::bench;
use crate::failure::Failure;
use crate::output::{print_document, print_text};

/// Measure the costs of this machine and write a host profile for `abey plan --profile` and `abey sim`
///
/// System calls, wake-ups, timers, polls and packets are measured in isolation. The other costs are fitted to a short bench of
/// five modes at the lowest and the highest load. The remaining modes and loads of the bench are held out: the profile is
/// validated on them, and the table shows measured and predicted figures. In the datapath world the built-in server is
/// measured over a shared-memory NIC; in the linux world memcached (or the built-in server) over a veth pair between two
/// network namespaces, which needs root. Nothing is left behind but the profile.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// World to calibrate [default: both; without root datapath]
    #[arg(long, value_enum)]
    world: Option<WorldChoice>,
    /// File of the profile; with several worlds each gets a file with its name before the extension
    #[arg(long, value_name = "FILE.toml", default_value = "calibrated.toml")]
    output: PathBuf,
    /// Loads of the bench, three or more: the lowest and the highest are fitted, the others held out. Below 20k fullbusy is
    /// slow for reasons that the simulator lacks
    #[arg(long, value_name = "RATE,..", value_delimiter = ',', default_value = "20k,30k,40k")]
    loads: Vec<Load>,
    /// Measured time of a run
    #[arg(long, value_name = "TIME", default_value = "60ms")]
    duration: Nanos,
    /// Runs of each mode at each load; unsteady rows get more runs until --time is over
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    reps: u32,
    /// Time of the bench of each world; if it is over there are fewer runs than --reps
    #[arg(long, value_name = "TIME", default_value = "70s")]
    time: Nanos,
    /// Connections to the server
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=4000))]
    connections: u32,
    /// Candidate profiles to try for each world
    #[arg(long, value_name = "N", default_value_t = 700, value_parser = clap::value_parser!(u32).range(10..))]
    evaluations: u32,
    /// Exit with status 0 even if the predictions are wrong
    #[arg(long)]
    no_check: bool,
    /// Seed of order and arrival times [default: random, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum WorldChoice {
    /// The kernel's NAPI
    Linux,
    /// Abey's datapath in user space
    Datapath,
    /// Both, each with its own profile
    Both,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let loads = checked_loads(&args)?;
    let worlds = worlds(&args)?;
    let abey = bench::executable()?;
    let files: Vec<(Delivery, PathBuf)> = worlds.iter().map(|world| (*world, profile_file(&args, *world))).collect();
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
        min_responses: 0,
        stop,
    };
    announce(&args, &worlds, conditions.seed);
    let mut done = Vec::new();
    for (world, path) in files {
        match calibrate(world, (&abey, &path), &loads, &conditions, &args) {
            Ok(calibration) => done.push(calibration),
            Err(CalibrationError::Stopped) => {
                eprintln!("abey: stopped; nothing is left behind");
                return Ok(ExitCode::from(128 + stopped_by.load(Ordering::Relaxed) as u8));
            }
            Err(error) => return Err(error.into()),
        }
        write(&path, &done[done.len() - 1].profile)?;
    }
    let status = if args.json { print_document(&report::document(&done)) } else { print_text(&report::text(&done)) }?;
    match done.iter().find(|one| !one.accuracy.holds()) {
        Some(bad) if !args.no_check => Err(Failure::check(report::failure(bad))),
        _ => Ok(status),
    }
}

/// Time before the measurement of each run, in which its mode is proved active.
const WARMUP: Duration = Duration::from_millis(30);
/// Estimated time of the costs and the predictions of a world.
const FIXED_TIME: Duration = Duration::from_secs(8);

fn checked_loads(args: &Args) -> Result<Vec<Load>, Failure> {
    let mut loads = args.loads.clone();
    loads.sort_unstable();
    loads.dedup();
    if loads.iter().any(|load| load.rate().is_none()) {
        return Err(Failure::usage("--loads max is no rate: name requests per second, such as 40k"));
    }
    if loads.len() < 3 {
        return Err(Failure::usage(
            "--loads needs three or more rates: the lowest and the highest are fitted, the others are held out",
        ));
    }
    if args.duration < Nanos::from_millis(50) || args.duration > Nanos::from_millis(10_000) {
        return Err(Failure::usage(format!("--duration {} is out of range: use 50ms to 10s", args.duration)));
    }
    if args.time < Nanos::from_millis(1_000) || args.time > Nanos::from_millis(3_600_000) {
        return Err(Failure::usage(format!("--time {} is out of range: use 1s to 1h", args.time)));
    }
    Ok(loads)
}

fn worlds(args: &Args) -> Result<Vec<Delivery>, Failure> {
    let is_root = nix::unistd::geteuid().is_root();
    let needs_root = "the linux world needs root for its network namespaces: run it with sudo";
    match args.world {
        Some(WorldChoice::Datapath) => Ok(vec![Delivery::Datapath]),
        Some(_) if !is_root => Err(Failure::lacks(format!("{needs_root}, or use --world datapath"))),
        Some(WorldChoice::Linux) => Ok(vec![Delivery::Linux]),
        Some(WorldChoice::Both) => Ok(vec![Delivery::Linux, Delivery::Datapath]),
        None if is_root => Ok(vec![Delivery::Linux, Delivery::Datapath]),
        None => {
            eprintln!("abey: calibrating the datapath alone: {needs_root}");
            Ok(vec![Delivery::Datapath])
        }
    }
}

/// Returns the file of a world's profile: `--output` itself if one world was named.
fn profile_file(args: &Args, world: Delivery) -> PathBuf {
    if matches!(args.world, Some(WorldChoice::Linux | WorldChoice::Datapath)) {
        return args.output.clone();
    }
    let stem = args.output.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    args.output.with_file_name(format!("{stem}-{world}.toml"))
}

/// Checks before the measurement that the profile can be written and read again.
fn check_writable(path: &Path) -> Result<(), Failure> {
    if path.extension().is_none_or(|extension| extension != "toml") {
        return Err(Failure::usage(format!(
            "--output {} does not end in .toml, as the file of a profile must: name FILE.toml",
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

/// Prints the estimated time.
fn announce(args: &Args, worlds: &[Delivery], seed: u64) {
    let search = CANDIDATE_TIME * args.evaluations;
    let each = Duration::from(args.time) + search + FIXED_TIME;
    let names: Vec<String> = worlds.iter().map(Delivery::to_string).collect();
    let tens = |span: Duration| (span * worlds.len() as u32).as_secs().div_ceil(10) * 10;
    eprintln!(
        "abey: calibrating {}, about {} s, and up to {} s if other programs run meanwhile; seed {seed}",
        names.join(" and "),
        tens(each),
        tens(each + search * (MAX_SEARCH_FACTOR - 1))
    );
}

fn calibrate(
    world: Delivery,
    (abey, path): (&Path, &Path),
    loads: &[Load],
    conditions: &Conditions,
    args: &Args,
) -> Result<Calibration, CalibrationError> {
    let request = CalibrationRequest {
        world,
        path,
        abey,
        loads,
        conditions,
        time: args.time.into(),
        evaluations: args.evaluations as usize,
        date: bench::date(),
    };
    let bar = bench::progress_bar();
    let calibration = Calibration::run(&request, &mut |stage| match stage {
        Stage::Bench(Progress { mode, done, total, .. }) => {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            bar.set_message(format!("{mode} ({world})"));
        }
        Stage::Fit(tried, total) => {
            bar.set_length(total as u64);
            bar.set_position(tried as u64);
            bar.set_message(format!("fitting ({world})"));
        }
    });
    bar.finish_and_clear();
    calibration
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| unwritable(path, &error))
}

impl From<CalibrationError> for Failure {
    fn from(error: CalibrationError) -> Self {
        match error {
            CalibrationError::Bench(error) => error.into(),
            CalibrationError::Cost(error) => Self::lacks(error),
            other => Self::check(other),
        }
    }
}
