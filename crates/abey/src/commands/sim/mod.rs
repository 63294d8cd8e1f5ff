//! `abey sim`: scenarios in virtual time, predictions beside published tables, and fitting.

mod timeline;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use abey_sim::fit::{self, Options};
use abey_sim::reference::{
    IrqSuspension, LowLatencySockets, PollHold, Row, Summary, ThreadedNapi, summarize, summarize_orders,
};
use abey_sim::report::scenario::ScenarioRow;
use abey_sim::report::{reference, scenario};
use abey_sim::{InputError, Profile, Scenario, ScenarioFile, Trace, run_traced};
use clap::{Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{print_document, print_rows, print_text};

/// Simulate a server in virtual time: a scenario file, or the rows of a published table
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<SimCommand>,
    /// Scenario file
    #[arg(value_name = "FILE.toml", required_unless_present = "reference", conflicts_with = "reference")]
    scenario: Option<PathBuf>,
    /// Predict the rows of a published table and print both
    #[arg(long, value_name = "NAME")]
    reference: Option<PublishedTable>,
    /// Shipped host profile, or the path of a profile [default: that of the table]
    #[arg(long, value_name = "NAME|FILE.toml", requires = "reference")]
    profile: Option<String>,
    /// Responses to simulate per row
    #[arg(long, default_value_t = 150_000, value_parser = clap::value_parser!(u32).range(1_000..), requires = "reference")]
    requests: u32,
    /// Seed; the same seed gives the same output
    #[arg(long, default_value_t = 1, requires = "reference")]
    seed: u64,
    /// Write a trace of a scenario with one mode, for ui.perfetto.dev
    #[arg(long, value_name = "FILE.json", conflicts_with = "reference")]
    trace: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum SimCommand {
    Fit(FitArgs),
    Timeline(timeline::Args),
}

/// Fit the costs of a host profile to the rows of base, defer20 and fullbusy of the IRQ suspension study
#[derive(clap::Args)]
struct FitArgs {
    /// Profile to start from; its comments are copied
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "epyc-7662")]
    profile: String,
    /// Write the fitted profile to this file [default: standard output]
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
    /// Number of candidates to try; a thousand take some minutes
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u32).range(1..))]
    evaluations: u32,
    /// Seed; the same seed tries the same candidates
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Distance of the first candidates from the profile, in percent of each figure; smaller to refine a fit
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=100))]
    spread: u8,
}

#[derive(Clone, Copy, ValueEnum)]
enum PublishedTable {
    /// IRQ suspension, interrupts, deferral and busy polling: memcached, 11 modes, 6 loads
    IrqSuspension,
    /// Busy polling from the socket: round trips of netperf
    LowLatencySockets,
    /// Staying in poll mode: flood ping
    PollHold,
    /// Polls in softirq, in threads or in a work pool: tcp_rr with 1000 flows
    ThreadedNapi,
}

impl PublishedTable {
    /// Returns the default profile of the table.
    const fn profile(self) -> &'static str {
        match self {
            Self::IrqSuspension => "epyc-7662",
            Self::LowLatencySockets => LowLatencySockets::PROFILE,
            Self::PollHold => PollHold::PROFILE,
            Self::ThreadedNapi => ThreadedNapi::PROFILE,
        }
    }
}

#[derive(Serialize)]
struct PredictionDocument<'a> {
    rows: &'a [Row],
    summary: &'a Summary,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match (&args.command, args.reference, &args.scenario) {
        (Some(SimCommand::Fit(fit)), ..) => run_fit(fit),
        (Some(SimCommand::Timeline(timeline)), ..) => timeline::run(timeline),
        (None, Some(table), _) => run_reference(table, &args),
        (None, None, Some(file)) => run_scenario(file, &args),
        (None, None, None) => Err(Failure::usage("name a scenario file, or --reference with a published table")),
    }
}

fn run_reference(table: PublishedTable, args: &Args) -> Result<ExitCode, Failure> {
    let profile = Profile::load(args.profile.as_deref().unwrap_or(table.profile())).map_err(input)?;
    let rows = match table {
        PublishedTable::IrqSuspension => IrqSuspension::new().predict(&profile, f64::from(args.requests), args.seed),
        PublishedTable::LowLatencySockets => LowLatencySockets.predict(&profile, args.seed),
        PublishedTable::PollHold => PollHold.predict(&profile, args.seed),
        PublishedTable::ThreadedNapi => ThreadedNapi.predict(&profile, args.seed),
    };
    let rows = rows.map_err(input)?;
    let summary = match table {
        PublishedTable::ThreadedNapi => summarize_orders(&rows, &ThreadedNapi::ORDERED),
        _ => summarize(&rows),
    };
    if args.json {
        return print_document(&PredictionDocument { rows: &rows, summary: &summary });
    }
    print_text(&reference::text(&rows, &summary))
}

fn run_scenario(path: &Path, args: &Args) -> Result<ExitCode, Failure> {
    let file = ScenarioFile::load(path).map_err(input)?;
    let profile = file.load_profile().map_err(input)?;
    file.validate(&profile).map_err(input)?;
    let scenarios = file.scenarios();
    let rows = match &args.trace {
        Some(trace) => vec![traced(&profile, &file, &scenarios, trace)?],
        None => {
            let outcomes = abey_sim::reference::run_all(&profile, &scenarios).map_err(input)?;
            scenarios
                .iter()
                .zip(outcomes)
                .map(|(scenario, outcome)| ScenarioRow::new(&file, scenario, outcome))
                .collect()
        }
    };
    if args.json { print_rows(&rows) } else { print_text(&format!("{}\n", scenario::text(&rows))) }
}

fn traced(profile: &Profile, file: &ScenarioFile, scenarios: &[Scenario], path: &Path) -> Result<ScenarioRow, Failure> {
    let [scenario] = scenarios else {
        return Err(Failure::usage("--trace needs a scenario with one mode: name exactly one in its `modes`"));
    };
    let (outcome, trace) = run_traced(profile, scenario).map_err(input)?;
    write_trace(path, &trace).map_err(|error| Failure::lacks(format!("cannot write {}: {error}", path.display())))?;
    Ok(ScenarioRow::new(file, scenario, outcome))
}

fn write_trace(path: &Path, trace: &Trace) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    trace.write_json(&mut out)?;
    out.flush()
}

fn run_fit(args: &FitArgs) -> Result<ExitCode, Failure> {
    let shipped = Profile::SHIPPED.into_iter().find(|(name, _)| *name == args.profile);
    let text = match shipped {
        Some((_, text)) => text.to_owned(),
        None => std::fs::read_to_string(&args.profile)
            .map_err(|error| Failure::usage(format!("cannot read the profile {}: {error}", args.profile)))?,
    };
    let bar = ProgressBar::new(u64::from(args.evaluations));
    let style = ProgressStyle::with_template("fitting [{bar:40}] {pos}/{len} cost {msg}").expect("a valid template");
    bar.set_style(style.progress_chars("=> "));
    let options = Options {
        evaluations: args.evaluations as usize,
        seed: args.seed,
        spread: f64::from(args.spread) / 100.0,
        ..Options::default()
    };
    let fitted = fit::fit(&text, &options, &mut |tried, best| {
        bar.set_position(tried as u64);
        bar.set_message(format!("{best:.1}"));
    })
    .map_err(input)?;
    bar.finish_and_clear();
    eprintln!("cost {:.1} before, {:.1} after {} candidates", fitted.before, fitted.after, args.evaluations);
    match &args.output {
        Some(path) => std::fs::write(path, fitted.text)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| Failure::lacks(format!("cannot write {}: {error}", path.display()))),
        None => print_text(&fitted.text),
    }
}

fn input(error: InputError) -> Failure {
    Failure::usage(error)
}
