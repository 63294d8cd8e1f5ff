//! `abey bench --steps`: fixed modes and the tuner, over a load that steps.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use abey_bench::datapath::{Preloaded, Wire};
use abey_bench::linux::Linux;
use abey_bench::steps::{Contender, Judged, StepBed, StepGoal, StepRun, Steps, judge, measure_steps};
use abey_bench::{App, BenchError, ClientKind, Conditions, Cpus, Load, Takers, TestBed};
use abey_delivery::{Mode, Nanos};
use abey_linux::cpu::CpuList;
use abey_linux::library::find_library;
use serde::Serialize;

use super::{Args, WorldChoice, command_line, failure, program, progress_bar, unwritable};
use crate::failure::Failure;
use crate::linux_world::Wanted;
use crate::output::{print_document, print_text};
use crate::table::{aligned, new_table};

/// A load that steps.
#[derive(clap::Args)]
#[command(next_help_heading = "A load that steps")]
pub(super) struct StepArgs {
    /// In place of single loads: one after the other, under each mode and under `abey tune`; in the linux world, or with
    /// --world datapath the same program on the datapath, over a shared-memory NIC
    #[arg(long, value_name = "LOAD,..", value_delimiter = ',', requires = "goal", conflicts_with_all = ["loads", "compare"])]
    pub(super) steps: Vec<Load>,
    /// What the tuner is to hold at as little CPU as that takes: the latency that 50, 90, 95 or 99 % of the requests stay within
    #[arg(long, value_name = "p99=TIME", requires = "steps")]
    goal: Option<StepGoal>,
    /// How long each step is
    #[arg(long, value_name = "TIME", default_value = "8s", requires = "steps")]
    step_time: Nanos,
    /// Latency is judged, and told to the tuner, in slices of this length
    #[arg(long, value_name = "TIME", default_value = "250ms", requires = "steps")]
    slice: Nanos,
    /// More arguments for `abey tune`, such as its bounds
    #[arg(long, value_name = "ARGS", requires = "steps", allow_hyphen_values = true)]
    tune: Option<String>,
}

/// What the tuner is held against when it is not said.
const MODES: [&str; 5] = ["base", "defer50", "defer200", "suspend50", "suspend200"];

#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    judged: &'a Judged,
    goal: StepGoal,
    command: String,
    seed: u64,
    runs: &'a [StepRun],
}

pub(super) fn run(args: &Args, conditions: &Conditions) -> Result<ExitCode, Failure> {
    let exe = std::env::current_exe().map_err(|error| Failure::lacks(format!("cannot find my own file: {error}")))?;
    let steps = steps(args, &exe)?;
    let contenders = contenders(args)?;
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::lacks("a load that steps needs root, for its network and for the CPU time of the server"));
    }
    let bed = bed(args, program::app(args, &exe)?, &exe)?;
    eprintln!("abey: seed {}", conditions.seed);
    let bar = progress_bar();
    let measured = measure_steps(&*bed, &contenders, &steps, conditions, &mut |contender, done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        bar.set_message(contender.to_string());
    });
    bar.finish_and_clear();
    let runs = match measured {
        Err(BenchError::Stopped) if conditions.stop.load(Ordering::Relaxed) => {
            eprintln!("abey: stopped; nothing was written, and nothing is left behind");
            return Ok(ExitCode::from(130));
        }
        other => other.map_err(failure)?,
    };
    let judged = judge(&runs, &steps);
    let document =
        Document { judged: &judged, goal: steps.goal, command: command_line(), seed: conditions.seed, runs: &runs };
    let text = serde_json::to_string_pretty(&document).expect("the document has only JSON's own types");
    std::fs::write(&args.out, text + "\n").map_err(|error| unwritable(&args.out, &error))?;
    if args.json {
        return print_document(&document);
    }
    print_text(&format!("{}\n{}\nwritten: {}\n", table(&judged), judged.verdict, args.out.display()))
}

fn steps(args: &Args, exe: &Path) -> Result<Steps, Failure> {
    let goal = args.steps.goal.ok_or_else(|| Failure::usage("--steps needs a --goal, such as p99=250us"))?;
    let rate = |load: &Load| load.rate().ok_or_else(|| Failure::usage("a step is a rate: `max` is none"));
    let loads = args.steps.steps.iter().map(rate).collect::<Result<Vec<_>, _>>()?;
    let (each, slice) = (Duration::from(args.steps.step_time), Duration::from(args.steps.slice));
    if slice < Duration::from_millis(100) || each < 4 * slice {
        return Err(Failure::usage("a slice takes 100ms at the least, and a step four slices"));
    }
    let more = args.steps.tune.as_deref().unwrap_or_default();
    let arguments =
        shlex::split(more).ok_or_else(|| Failure::usage(format!("--tune `{more}` has a quote that does not end")))?;
    Ok(Steps { loads, each, slice, goal, abey: exe.to_owned(), arguments })
}

fn contenders(args: &Args) -> Result<Vec<Contender>, Failure> {
    let named: Vec<Mode> = if args.modes.is_empty() {
        MODES.iter().map(|name| name.parse().expect("a name of our own")).collect()
    } else {
        args.modes.clone()
    };
    if args.world != Some(WorldChoice::Datapath) {
        named.iter().try_for_each(|mode| Wanted::mode(*mode).map(drop))?;
    }
    Ok(named.into_iter().map(Contender::Mode).chain([Contender::Tuned]).collect())
}

fn bed(args: &Args, app: App, exe: &Path) -> Result<Box<dyn StepBed>, Failure> {
    let library = find_library(exe).map_err(Failure::lacks)?;
    let online = CpuList::online().map_err(|error| failure(error.into()))?;
    let cpus = Cpus::choose(&online, args.server_cpu).map_err(failure)?;
    Ok(match args.world {
        None | Some(WorldChoice::Linux) => {
            let bed = Arc::new(TestBed::new(cpus, Takers::Kernel).map_err(failure)?);
            Box::new(Linux::new(bed, app, library, ClientKind::Kernel).map_err(failure)?)
        }
        Some(WorldChoice::Datapath) => Box::new(Preloaded::new(Wire::Memory(cpus), app, library).map_err(failure)?),
        Some(_) => return Err(Failure::usage("a load that steps is for one world: say --world linux or datapath")),
    })
}

fn table(judged: &Judged) -> String {
    let mut table =
        new_table(["contender", "CPU %", "range", "tuner %", "load", "CPU %", "latency us", "held %", "settled s"]);
    for row in &judged.rows {
        for (at, step) in row.steps.iter().enumerate() {
            let first = |text: String| if at == 0 { text } else { String::new() };
            let (low, high) = row.cpu_percent_range;
            let tuner = row.tuner_cpu_percent.map_or_else(String::new, |cpu| format!("{cpu:.1}"));
            table.add_row([
                first(row.contender.clone()),
                first(format!("{:.1}", row.cpu_percent)),
                first(format!("{low:.1}-{high:.1}")),
                first(tuner),
                step.load.to_string(),
                format!("{:.1}", step.cpu_percent),
                format!("{:.0}", step.latency_us),
                format!("{:.0}", step.held_percent),
                step.settled_s.map_or_else(|| "never".to_owned(), |time| format!("{time:.1}")),
            ]);
        }
    }
    let mut text = aligned(table, 1..) + "\n";
    for row in &judged.rows {
        for note in &row.notes {
            text += &format!("note: {}: {note}\n", row.contender);
        }
    }
    text
}
