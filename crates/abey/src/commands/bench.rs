//! `abey bench`: every mode on this machine, as a table, a JSON file and an HTML report.

mod parts;
mod program;
mod steps;

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use abey_bench::reference::ReferenceTable;
use abey_bench::{
    BenchError, Comparison, Conditions, Document, Load, Machine, Part, Progress, Run, Setup, measure, pairs, report,
    stats, table,
};
use abey_delivery::{Mode, Nanos};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::output::{print_document, print_text};

/// Measure every delivery mode on this machine
///
/// In the datapath world it runs the built-in `abey serve kv` on one CPU, over a shared-memory NIC and Abey's own TCP/IP,
/// through every mode at every load from another CPU; that needs no root. In the linux world the server is memcached (or,
/// where there is none, `abey serve kv`) behind a veth pair between two network namespaces; that needs root. `--world both`
/// runs one and the same installed program over one and the same veth pair in either world, from one client, so that the
/// worlds can be compared; that needs root. Runs are in random order, and counters prove each mode active before a row
/// counts. Nothing is left behind.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Who owns the NIC queue: the kernel, Abey's datapath, or both one beside the other [default: datapath, and linux
    /// beside it where this user and this kernel can]
    #[arg(long, value_enum)]
    world: Option<WorldChoice>,
    /// The modes to measure [default: base,defer50,napibusy,fullbusy,suspend20,threaded; in the datapath world also
    /// threaded-busy,workqueue,hold20; with --world both base,defer20,fullbusy,suspend20]
    #[arg(long, value_name = "MODE,..", value_delimiter = ',')]
    modes: Vec<Mode>,
    /// The loads, in requests per second, or `max` for a closed loop [default: 20k,50k; in the datapath world
    /// also max; with --world both 1k,50k,max]
    #[arg(long, value_name = "LOAD,..", value_delimiter = ',')]
    loads: Vec<Load>,
    /// Runs of each mode at each load, at least 3; with --steps over all of them, at least 1
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// How long one run is measured
    #[arg(long, value_name = "TIME", default_value = "1s")]
    duration: Nanos,
    /// How long each run goes on before it is measured
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    warmup: Nanos,
    /// Connections to the server
    #[arg(long, value_name = "N", default_value_t = 20)]
    connections: usize,
    /// The server: memcached, redis, kv (built into abey), or any other command line, in which {address} and {port} stand
    /// for where it is to listen [default: memcached if it is installed, otherwise kv]; over a shared-memory NIC without
    /// root it is always kv
    #[arg(long, value_name = "memcached|redis|kv|CMD")]
    app: Option<String>,
    /// The port that the CMD of --app listens on
    #[arg(long, value_name = "N", requires = "app", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// What the CMD of --app speaks; nothing else can be measured
    #[arg(long, value_enum, requires = "app")]
    protocol: Option<ProtocolChoice>,
    /// The CPU of the server; the load runs on another [default: the last one]
    #[arg(long, value_name = "N")]
    server_cpu: Option<u32>,
    /// With --world both: whose sockets the load has in both worlds; a datapath client leaves the server more to do
    #[arg(long, value_enum)]
    client: Option<ClientChoice>,
    /// With --world both: the same program over a shared-memory NIC as well, from a datapath client, as world `memory`
    #[arg(long)]
    with_memory: bool,
    #[command(flatten)]
    steps: steps::StepArgs,
    /// The seed of the order and of the arrivals [default: drawn, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Lay published figures beside the measured ones
    #[arg(long, value_enum, value_name = "WHAT")]
    compare: Option<CompareChoice>,
    /// Where to write the JSON file and, beside it as .html, the report
    #[arg(long, value_name = "FILE", default_value = "abey-bench.json")]
    out: PathBuf,
    /// One JSON document on standard output, in place of the table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum WorldChoice {
    /// The kernel's own NAPI
    Linux,
    /// Abey, in user space
    Datapath,
    /// Each on its own wire, with its own server
    All,
    /// One program on one wire, in either world
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ProtocolChoice {
    /// memcached's text protocol
    Memcached,
    /// RESP
    Redis,
    /// GET / over HTTP/1.1 connections that stay open
    Http,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ClientChoice {
    Kernel,
    Datapath,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CompareChoice {
    Reference,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    check_numbers(&args)?;
    let is_steps = !args.steps.steps.is_empty();
    let plan = (!is_steps).then(|| parts::Plan::new(&args)).transpose()?;
    check_writable(&args.out)?;
    let (stop, stopped_by) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    catch_signals(&stop, &stopped_by)?;
    let conditions = Conditions {
        repetitions: args.reps,
        duration: args.duration.into(),
        warmup: args.warmup.into(),
        connections: args.connections,
        seed: args.seed.unwrap_or_else(rand::random),
        stop,
    };
    let Some(plan) = plan else { return steps::run(&args, &conditions) };
    let mut notes = Vec::new();
    let plan_facts = plan.facts();
    let parts = plan.parts(&mut notes)?;
    eprintln!("abey: seed {}", conditions.seed);
    let bar = progress_bar();
    let measured = measure(&parts, &conditions, &mut |Progress { world, mode, done, all }| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        bar.set_message(format!("{mode} ({world})"));
    });
    bar.finish_and_clear();
    let runs = match measured {
        Err(BenchError::Stopped) => {
            eprintln!("abey: stopped; nothing was written, and nothing is left behind");
            return Ok(ExitCode::from(128 + stopped_by.load(Ordering::Relaxed) as u8));
        }
        other => other.map_err(failure)?,
    };
    let document = document(&conditions, &plan_facts, &parts, &runs, notes)?;
    let comparison =
        args.compare.map(|CompareChoice::Reference| Comparison::new(&document.rows, &ReferenceTable::memcached()));
    let written = write_files(&args.out, &document, comparison.as_ref())?;
    if args.json {
        return print_document(&document);
    }
    let mut text = if document.setup.side_by_side {
        table::side_by_side(&document)
    } else {
        table::terminal(&document.rows, &document.setup.beds)
    };
    if let Some(comparison) = &comparison {
        text += &format!("\n{}", table::comparison(comparison));
    }
    for note in &document.notes {
        text += &format!("note: {note}\n");
    }
    print_text(&format!("{text}\n{written}\n"))
}

/// What a second Ctrl-C finds is that the process ends at once; namespaces, shared memory and the server end with it.
pub(super) fn catch_signals(stop: &Arc<AtomicBool>, stopped_by: &Arc<AtomicUsize>) -> Result<(), Failure> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(stop))
            .and_then(|_| signal_hook::flag::register_usize(signal, Arc::clone(stopped_by), signal as usize))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
            .map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    }
    Ok(())
}

fn check_numbers(args: &Args) -> Result<(), Failure> {
    if args.duration < Nanos::from_millis(100) {
        return Err(Failure::usage(format!("--duration {} is too short: measure at least 100ms", args.duration)));
    }
    if args.reps < 3 && args.steps.steps.is_empty() {
        return Err(Failure::usage(format!(
            "--reps {} is too few for a median and a spread: it begins at 3",
            args.reps
        )));
    }
    if args.warmup < Nanos::from_millis(50) {
        return Err(Failure::usage(format!(
            "--warmup {} is too short: counters need at least 50ms to prove a mode active",
            args.warmup
        )));
    }
    if !(1..=4000).contains(&args.connections) {
        return Err(Failure::usage(format!(
            "--connections {} is out of range: it goes from 1 to 4000",
            args.connections
        )));
    }
    Ok(())
}

/// The command as it was given, so that the report can be repeated.
fn command_line() -> String {
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    format!("abey {}", arguments.join(" "))
}

fn document(
    conditions: &Conditions,
    facts: &parts::Facts,
    parts: &[Part],
    runs: &[Run],
    notes: Vec<String>,
) -> Result<Document, Failure> {
    let Conditions { connections, seed, repetitions, .. } = *conditions;
    let millis = |duration: Duration| duration.as_millis() as u64;
    let mut hardware_counters = false;
    for part in parts {
        hardware_counters |= part.bed().counts_cycles().map_err(failure)?;
    }
    let rows = stats::aggregate(runs);
    Ok(Document {
        pairs: if facts.side_by_side { pairs::pairs(&rows) } else { Vec::new() },
        rows,
        machine: Machine::read(hardware_counters, &date()),
        seed,
        setup: Setup {
            command: command_line(),
            beds: parts.iter().map(|part| part.bed().setup().clone()).collect(),
            side_by_side: facts.side_by_side,
            load: format!(
                "{}, {connections} connections, Poisson arrivals in an open loop; `max` is a closed loop",
                facts.request
            ),
            run_ms: millis(conditions.duration),
            warmup_ms: millis(conditions.warmup),
            repetitions,
            abey_version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        notes,
    })
}

/// Today, as `2026-11-20 13:28 UTC`.
pub(super) fn date() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// That the results can be written has to be known before a minute is spent on them.
fn check_writable(out: &Path) -> Result<(), Failure> {
    if out.with_extension("html") == out {
        return Err(Failure::usage(format!(
            "--out {} is where the report goes: name the JSON file, and the report is written beside it as .html",
            out.display()
        )));
    }
    for file in [out.to_owned(), out.with_extension("html")] {
        let existed = file.exists();
        let opened = fs::File::options().create(true).append(true).open(&file);
        opened.map_err(|error| unwritable(&file, &error))?;
        if !existed {
            let _ = fs::remove_file(&file);
        }
    }
    Ok(())
}

fn unwritable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot write {}: {error}; name another file with --out", file.display()))
}

/// Writes the JSON file and the report; says where.
fn write_files(out: &Path, document: &Document, comparison: Option<&Comparison>) -> Result<String, Failure> {
    let html = out.with_extension("html");
    let mut text = serde_json::to_string_pretty(document).expect("the document has only JSON's own types");
    text.push('\n');
    fs::write(out, text).map_err(|error| unwritable(out, &error))?;
    fs::write(&html, report::render(document, comparison)).map_err(|error| unwritable(&html, &error))?;
    Ok(format!("written: {} and {}", out.display(), html.display()))
}

/// On standard error, and only where somebody can see it move.
pub(super) fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {eta} left, {msg}").expect("a valid template");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
}

pub(super) fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Lacks { .. } | BenchError::Count(_) | BenchError::Cpu(_) => Failure::lacks(error),
        BenchError::Namespace(error) => error.into(),
        BenchError::Netlink(error) => error.into(),
        other => Failure::check(other),
    }
}
