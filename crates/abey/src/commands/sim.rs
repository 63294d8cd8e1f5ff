//! `abey sim`: scenarios in virtual time, the published tables beside what the simulator predicts, and fitting.

mod timeline;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use abey_sim::fit::{self, Options};
use abey_sim::reference::{
    ColumnError, Figure, IrqSuspension, LowLatencySockets, Order, PollHold, Row, Summary, ThreadedNapi, summarize,
    summarize_orders,
};
use abey_sim::{InputError, Outcome, Profile, Scenario, ScenarioFile, Trace, run_traced};
use clap::{Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{print_document, print_rows, print_text};
use crate::table::{aligned, new_table};

/// Simulate a server in virtual time: a scenario of your own, or the rows of a published table.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Sub>,
    /// A scenario, as a TOML file.
    #[arg(value_name = "FILE.toml", required_unless_present = "reference", conflicts_with = "reference")]
    scenario: Option<PathBuf>,
    /// Predict the rows of a published table and print them beside it.
    #[arg(long, value_name = "NAME")]
    reference: Option<Reference>,
    /// A shipped host profile, or the path of one.
    #[arg(long, value_name = "NAME|FILE.toml", requires = "reference")]
    profile: Option<String>,
    /// Answers to simulate for each row.
    #[arg(long, default_value_t = 150_000, value_parser = clap::value_parser!(u32).range(1_000..), requires = "reference")]
    requests: u32,
    /// The same seed gives the same bytes.
    #[arg(long, default_value_t = 1, requires = "reference")]
    seed: u64,
    /// Write a timeline of a scenario with one mode, to be opened at ui.perfetto.dev.
    #[arg(long, value_name = "FILE.json", conflicts_with = "reference")]
    trace: Option<PathBuf>,
    /// One JSON document on standard output.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Sub {
    Fit(FitArgs),
    Timeline(timeline::Args),
}

/// Fit the costs of a host profile to the rows of base, defer20 and fullbusy of the IRQ suspension study.
#[derive(clap::Args)]
struct FitArgs {
    /// The profile to start from; its notes are kept.
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "epyc-7662")]
    profile: String,
    /// Where to write the fitted profile; standard output unless given.
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
    /// How many candidates to try; a thousand take some minutes.
    #[arg(long, default_value_t = 1_500, value_parser = clap::value_parser!(u32).range(1..))]
    evaluations: u32,
    /// The same seed tries the same candidates.
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// How far the first candidates are from the profile, in percent of each figure; less to refine a fit.
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=100))]
    spread: u8,
}

#[derive(Clone, Copy, ValueEnum)]
enum Reference {
    /// IRQ suspension beside interrupts, deferral and busy polling: memcached, 11 modes, 6 loads.
    IrqSuspension,
    /// Busy polling from the socket: netperf's round trips.
    LowLatencySockets,
    /// Staying in poll mode: flood ping.
    PollHold,
    /// Polls in softirq, in threads or in a work pool: tcp_rr with 1000 flows.
    ThreadedNapi,
}

impl Reference {
    /// The profile that belongs to it.
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
struct Document<'a> {
    rows: &'a [Row],
    summary: &'a Summary,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match (&args.command, args.reference, &args.scenario) {
        (Some(Sub::Fit(fit)), ..) => run_fit(fit),
        (Some(Sub::Timeline(timeline)), ..) => timeline::run(timeline),
        (None, Some(reference), _) => run_reference(reference, &args),
        (None, None, Some(file)) => run_scenario(file, &args),
        (None, None, None) => Err(Failure::usage("name a scenario file, or --reference with a published table")),
    }
}

fn run_reference(reference: Reference, args: &Args) -> Result<ExitCode, Failure> {
    let profile = Profile::load(args.profile.as_deref().unwrap_or(reference.profile())).map_err(input)?;
    let rows = match reference {
        Reference::IrqSuspension => IrqSuspension::new().predict(&profile, f64::from(args.requests), args.seed),
        Reference::LowLatencySockets => LowLatencySockets.predict(&profile, args.seed),
        Reference::PollHold => PollHold.predict(&profile, args.seed),
        Reference::ThreadedNapi => ThreadedNapi.predict(&profile, args.seed),
    };
    let rows = rows.map_err(input)?;
    let summary = match reference {
        Reference::ThreadedNapi => summarize_orders(&rows, &ThreadedNapi::ORDERED),
        _ => summarize(&rows),
    };
    if args.json {
        return print_document(&Document { rows: &rows, summary: &summary });
    }
    print_text(&format!("{}\n{}", reference_table(&rows), summary_text(&summary)))
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
            scenarios.iter().zip(outcomes).map(|(scenario, outcome)| OwnRow::new(&file, scenario, outcome)).collect()
        }
    };
    if args.json { print_rows(&rows) } else { print_text(&format!("{}\n", own_table(&rows))) }
}

fn traced(profile: &Profile, file: &ScenarioFile, scenarios: &[Scenario], path: &Path) -> Result<OwnRow, Failure> {
    let [scenario] = scenarios else {
        return Err(Failure::usage("--trace shows one mode: name exactly one in the scenario's `modes`"));
    };
    let (outcome, trace) = run_traced(profile, scenario).map_err(input)?;
    write_trace(path, &trace).map_err(|error| Failure::lacks(format!("cannot write {}: {error}", path.display())))?;
    Ok(OwnRow::new(file, scenario, outcome))
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
    let style =
        ProgressStyle::with_template("fitting [{bar:40}] {pos}/{len} cost {msg}").expect("a template that parses");
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

/// A row of a user's own scenario.
#[derive(Serialize)]
struct OwnRow {
    mode: String,
    load: String,
    #[serde(flatten)]
    outcome: Outcome,
}

impl OwnRow {
    /// Settings that are no mode's have the name of their file.
    fn new(file: &ScenarioFile, scenario: &Scenario, outcome: Outcome) -> Self {
        let mode = match &file.settings {
            Some(name) if scenario.settings != scenario.mode.settings() => name.clone(),
            _ => scenario.mode.to_string(),
        };
        Self { mode, load: scenario.load.to_string(), outcome }
    }
}

/// The tables' main columns; the others are in the JSON document and in the summary.
const SHOWN: [(&str, &str); 14] = [
    ("qps", "qps"),
    ("avg_us", "avg us"),
    ("p50_us", "p50 us"),
    ("p90_us", "p90 us"),
    ("p95_us", "p95 us"),
    ("p99_us", "p99 us"),
    ("p999_us", "p99.9 us"),
    ("tcp_rr_per_s", "TCP/s"),
    ("udp_rr_per_s", "UDP/s"),
    ("packets_sent_and_received", "packets"),
    ("cpu_percent", "cpu %"),
    ("interrupts", "interrupts"),
    ("cycles_per_query", "cycles/q"),
    ("instructions_per_query", "instr/q"),
];

fn reference_table(rows: &[Row]) -> String {
    let has = |column: &str| rows.iter().any(|row| row.figures.get(column).is_some());
    let shown: Vec<_> = SHOWN.into_iter().filter(|(column, _)| has(column)).collect();
    let mut table = new_table(["mode", "load", ""].into_iter().chain(shown.iter().map(|(_, title)| *title)));
    for row in rows {
        let fitted = if row.fitted { "fitted" } else { "" };
        let mut cells = vec![row.mode.clone(), row.load.clone(), fitted.to_owned()];
        cells.extend(shown.iter().map(|(column, _)| row.figures.get(column).map_or(String::new(), pair)));
        table.add_row(cells);
    }
    format!("published > predicted\n{}\n", aligned(table, 3..))
}

fn pair(figure: Figure) -> String {
    let published = figure.published.map_or("-".to_owned(), |published| format!("{published:.0}"));
    format!("{published} > {:.0}", figure.predicted)
}

fn summary_text(summary: &Summary) -> String {
    let mut table = new_table(["column", "rows", "median error", "largest", "fitted rows", "median error", "largest"]);
    for error in &summary.predicted {
        let fitted = summary.fitted.iter().find(|fitted| fitted.column == error.column);
        let size = |error: &ColumnError| {
            [error.rows.to_string(), with_unit(error.median, error.unit), with_unit(error.worst, error.unit)]
        };
        let fitted = fitted.map_or_else(|| [const { String::new() }; 3], size);
        table.add_row([error.column.to_owned()].into_iter().chain(size(error)).chain(fitted));
    }
    let mut text = format!("errors of the predicted rows, and of the fitted ones:\n{}\n", aligned(table, 1..));
    if let Some(error) = &summary.max_qps {
        text += &format!(
            "throughput at MAX, predicted rows: median error {:.1} %, largest {:.1} %\n",
            error.median, error.worst
        );
    }
    for order in summary.orders.iter().filter(|order| order.pairs > 0) {
        text += &order_text(order);
    }
    text
}

fn order_text(order: &Order) -> String {
    let share = 100.0 * order.right as f64 / order.pairs.max(1) as f64;
    let mut text = format!(
        "who is lower in {}, of two modes that differ by more than 10 % at one load: right in {} of {} pairs ({share:.1} %)\n",
        order.column, order.right, order.pairs
    );
    for (load, low, high) in &order.wrong {
        text += &format!("  wrong at {load}: published has {low} below {high}\n");
    }
    text
}

fn with_unit(value: f64, unit: &str) -> String {
    format!("{value:.1} {unit}")
}

fn own_table(rows: &[OwnRow]) -> String {
    let titles = [
        "mode", "load", "qps", "avg us", "p50 us", "p95 us", "p99 us", "p99.9 us", "cpu %", "cycles/q", "instr/q",
        "irq/q", "polls/q",
    ];
    let mut table = new_table(titles);
    for row in rows {
        let o = &row.outcome;
        let mut cells = vec![row.mode.clone(), row.load.clone()];
        let whole = [
            o.qps,
            o.avg_us,
            o.p50_us,
            o.p95_us,
            o.p99_us,
            o.p999_us,
            o.cpu_percent,
            o.cycles_per_query,
            o.instructions_per_query,
        ];
        cells.extend(whole.map(|value| format!("{value:.0}")));
        cells.extend([o.interrupts_per_query, o.polls_per_query].map(|value| format!("{value:.3}")));
        table.add_row(cells);
    }
    aligned(table, 2..)
}
