//! `abey bench --steps`: fixed modes and the tuner under load steps.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abey_bench::datapath::{Preloaded, Wire};
use abey_bench::linux::Linux;
use abey_bench::plan::check_kernel_mode;
use abey_bench::steps::{Contender, StepDocument, StepGoal, StepTestBed, Steps, evaluate, measure_steps, table};
use abey_bench::{App, BUILD_PROFILE, BenchError, ClientKind, Conditions, Cpus, Load, Receivers, VethNetwork};
use abey_delivery::{Mode, Nanos};
use abey_linux::cpu::CpuList;
use abey_linux::library::find_library;

use super::{Args, WorldChoice, command_line, executable, program, progress_bar, unwritable};
use crate::failure::Failure;
use crate::output::{print_document, print_text};

/// Load steps.
#[derive(clap::Args)]
#[command(next_help_heading = "Load steps")]
pub(super) struct StepArgs {
    /// Run these loads one after the other, under each mode and under `abey tune`, in the linux world or, with --world
    /// datapath, with the same program over a shared-memory NIC
    #[arg(long, value_name = "LOAD,..", value_delimiter = ',', requires = "goal", conflicts_with_all = ["loads", "compare"])]
    pub(super) steps: Vec<Load>,
    /// Goal of the tuner: the limit of the 50th, 90th, 95th or 99th percentile of latency
    #[arg(long, value_name = "p99=TIME", requires = "steps")]
    goal: Option<StepGoal>,
    /// Duration of each step
    #[arg(long, value_name = "TIME", default_value = "8s", requires = "steps")]
    step_time: Nanos,
    /// Interval in which latency is evaluated and reported to the tuner
    #[arg(long, value_name = "TIME", default_value = "250ms", requires = "steps")]
    slice: Nanos,
    /// Additional arguments of `abey tune`, such as its bounds
    #[arg(long, value_name = "ARGS", requires = "steps", allow_hyphen_values = true)]
    tune: Option<String>,
}

/// The default modes to compare the tuner with.
const MODES: [&str; 5] = ["base", "defer50", "defer200", "suspend50", "suspend200"];

pub(super) fn run(args: &Args, conditions: &Conditions) -> Result<ExitCode, Failure> {
    let abey = executable()?;
    let steps = steps(args, &abey)?;
    let contenders = contenders(args)?;
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::lacks("--steps needs root, for its network and for the CPU time of the server"));
    }
    let test_bed = test_bed(args, program::app(args, &abey)?, &abey)?;
    eprintln!("abey: seed {}", conditions.seed);
    let bar = progress_bar();
    let measured = measure_steps(&*test_bed, &contenders, &steps, conditions, &mut |contender, done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(contender.to_string());
    });
    bar.finish_and_clear();
    let runs = match measured {
        Err(BenchError::Stopped) if conditions.stop.load(Ordering::Relaxed) => {
            eprintln!("abey: stopped; nothing was written, and nothing is left behind");
            return Ok(ExitCode::from(130));
        }
        other => other?,
    };
    let results = evaluate(&runs, &steps);
    let document = StepDocument {
        results: &results,
        goal: steps.goal,
        command: command_line(),
        seed: conditions.seed,
        profile: BUILD_PROFILE,
        runs: &runs,
    };
    let text = serde_json::to_string_pretty(&document).expect("the document can be serialized");
    std::fs::write(&args.out, text + "\n").map_err(|error| unwritable(&args.out, &error))?;
    if args.json {
        return print_document(&document);
    }
    print_text(&format!(
        "{}note: build profile {BUILD_PROFILE}\n\n{}\nwritten: {}\n",
        table(&results),
        results.verdict,
        args.out.display()
    ))
}

fn steps(args: &Args, abey: &Path) -> Result<Steps, Failure> {
    let goal = args.steps.goal.ok_or_else(|| Failure::usage("--steps needs a --goal, such as p99=250us"))?;
    let rate = |load: &Load| load.rate().ok_or_else(|| Failure::usage("--steps takes rates only: `max` is no rate"));
    let loads = args.steps.steps.iter().map(rate).collect::<Result<Vec<_>, _>>()?;
    let (each, slice) = (Duration::from(args.steps.step_time), Duration::from(args.steps.slice));
    if slice < Duration::from_millis(100) || each < 4 * slice {
        return Err(Failure::usage("--slice must be at least 100ms, and --step-time at least four slices"));
    }
    let text = args.steps.tune.as_deref().unwrap_or_default();
    let arguments =
        shlex::split(text).ok_or_else(|| Failure::usage(format!("--tune `{text}` has a quote that does not end")))?;
    Ok(Steps { loads, each, slice, goal, abey: abey.to_owned(), arguments })
}

fn contenders(args: &Args) -> Result<Vec<Contender>, Failure> {
    let modes: Vec<Mode> = if args.modes.is_empty() {
        MODES.iter().map(|name| name.parse().expect("a valid default")).collect()
    } else {
        args.modes.clone()
    };
    if args.world != Some(WorldChoice::Datapath) {
        modes.iter().try_for_each(|mode| check_kernel_mode(*mode))?;
    }
    Ok(modes.into_iter().map(Contender::Mode).chain([Contender::Tuned]).collect())
}

fn test_bed(args: &Args, app: App, abey: &Path) -> Result<Box<dyn StepTestBed>, Failure> {
    let library = find_library(abey).map_err(Failure::lacks)?;
    let online = CpuList::online().map_err(BenchError::from)?;
    let cpus = Cpus::choose(&online, args.server_cpu)?;
    Ok(match args.world {
        None | Some(WorldChoice::Linux) => {
            let network = Arc::new(VethNetwork::new(cpus, Receivers::KernelOnly)?);
            Box::new(Linux::new(network, app, library, ClientKind::Kernel)?)
        }
        Some(WorldChoice::Datapath) => Box::new(Preloaded::new(Wire::Memory(cpus), app, library)?),
        Some(_) => return Err(Failure::usage("--steps measures one world: use --world linux or --world datapath")),
    })
}
