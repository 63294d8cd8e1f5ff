//! `abey bench`: every mode on this machine, as a table, a JSON file and an HTML report.

mod program;
mod steps;

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use abey_bench::reference::ReferenceTable;
use abey_bench::{
    App, BenchError, BenchFacts, BenchRequest, ClientKind, Comparison, Conditions, Document, Load, Progress, Worlds,
    measure, report, table,
};
use abey_delivery::{Mode, Nanos};
use abey_supervise::signals::Signal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::output::{print_document, print_text};
use crate::signals;

/// Measure every delivery mode on this machine
///
/// In the datapath world the server is the built-in `abey serve kv` on one CPU, over a shared-memory NIC and Abey's own
/// TCP/IP, with the load on another CPU; this needs no root. In the linux world the server is memcached (or `abey serve kv` if
/// it is not installed) behind a veth pair between two network namespaces; this needs root. `--world both` measures one
/// installed program over one veth pair in both worlds, with one client, so that the worlds can be compared; this needs
/// root. Runs are in random order, and a row counts only if counters prove its mode active. Nothing is left behind.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// World to measure [default: datapath, and linux if this user and this kernel can]
    #[arg(long, value_enum)]
    world: Option<WorldChoice>,
    /// Modes to measure [default: base,defer50,napibusy,fullbusy,suspend20,threaded; in the datapath world also
    /// threaded-busy,workqueue,hold20; with --world both base,defer20,fullbusy,suspend20]
    #[arg(long, value_name = "MODE,..", value_delimiter = ',')]
    modes: Vec<Mode>,
    /// Loads in requests per second, or `max` for a closed loop [default: 20k,50k; in the datapath world also max; with
    /// --world both 1k,50k,max]
    #[arg(long, value_name = "LOAD,..", value_delimiter = ',')]
    loads: Vec<Load>,
    /// Runs of each mode at each load, at least 3; with --steps at least 1
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    reps: u32,
    /// Measured time of a run
    #[arg(long, value_name = "TIME", default_value = "1s")]
    duration: Nanos,
    /// Time before the measurement of each run
    #[arg(long, value_name = "TIME", default_value = "200ms")]
    warmup: Nanos,
    /// Connections to the server
    #[arg(long, value_name = "N", default_value_t = 20)]
    connections: usize,
    /// Server: memcached, redis, kv (built in), or a command line with {address} and {port} to listen on [default:
    /// memcached if installed, otherwise kv; over a shared-memory NIC without root always kv]
    #[arg(long, value_name = "memcached|redis|kv|CMD")]
    app: Option<String>,
    /// Port that the CMD of --app listens on
    #[arg(long, value_name = "N", requires = "app", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Protocol that the CMD of --app speaks
    #[arg(long, value_enum, requires = "app")]
    protocol: Option<ProtocolChoice>,
    /// CPU of the server; the load runs on another [default: the last one]
    #[arg(long, value_name = "N")]
    server_cpu: Option<u32>,
    /// Network stack of the load with --world both; a datapath client can saturate the server [default: kernel]
    #[arg(long, value_enum)]
    client: Option<ClientChoice>,
    /// With --world both, measure the program over a shared-memory NIC as well, as world `memory`
    #[arg(long)]
    with_memory: bool,
    #[command(flatten)]
    steps: steps::StepArgs,
    /// Seed of order and arrival times [default: random, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Compare with published figures
    #[arg(long, value_enum, value_name = "WHAT")]
    compare: Option<CompareChoice>,
    /// JSON file to write; the report is written to the same name with .html
    #[arg(long, value_name = "FILE", default_value = "abey-bench.json")]
    out: PathBuf,
    /// SVG file to write: CPU use against median latency
    #[arg(long, value_name = "FILE", conflicts_with = "steps")]
    svg: Option<PathBuf>,
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
    /// Repeat a run with twice the duration until it has this many responses, for tests on a slow machine
    #[arg(long, value_name = "N", default_value_t = 0, hide = true)]
    min_responses: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum WorldChoice {
    /// The kernel's NAPI
    Linux,
    /// Abey's datapath in user space
    Datapath,
    /// Both, each with its own server and wire
    All,
    /// Both, with one program over one wire
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ProtocolChoice {
    /// Text protocol of memcached
    Memcached,
    /// RESP
    Redis,
    /// GET / over persistent HTTP/1.1 connections
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
    let request = (!is_steps).then(|| request(&args)).transpose()?;
    check_writable(&args.out, args.svg.as_deref())?;

    let (stop, stopped_by) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    catch_signals(&stop, &stopped_by)?;
    let conditions = Conditions {
        repetitions: args.reps,
        duration: args.duration.into(),
        warmup: args.warmup.into(),
        connections: args.connections,
        seed: args.seed.unwrap_or_else(rand::random),
        min_responses: args.min_responses,
        stop,
    };
    let Some(request) = request else { return steps::run(&args, &conditions) };
    let mut notes = Vec::new();
    let suites = request.suites(&mut notes)?;
    eprintln!("abey: seed {}", conditions.seed);
    let bar = progress_bar();
    let measured = measure(&suites, &conditions, &mut |Progress { world, mode, done, total }| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(format!("{mode} ({world})"));
    });
    bar.finish_and_clear();
    let runs = match measured {
        Err(BenchError::Stopped) => {
            eprintln!("abey: stopped; nothing was written, and nothing is left behind");
            return Ok(ExitCode::from(128 + stopped_by.load(Ordering::Relaxed) as u8));
        }
        other => other?,
    };
    let facts = BenchFacts {
        command: command_line(),
        date: date(),
        request: request.app.protocol().request(),
        side_by_side: request.is_side_by_side(),
        notes,
    };
    let document = Document::new(facts, &conditions, &suites, &runs)?;
    let comparison =
        args.compare.map(|CompareChoice::Reference| Comparison::new(&document.rows, &ReferenceTable::memcached()));
    let mut written = write_files(&args.out, &document, comparison.as_ref())?;
    if let Some(svg) = &args.svg {
        fs::write(svg, report::render_svg(&document)).map_err(|error| unwritable(svg, &error))?;
        written += &format!(" and {}", svg.display());
    }
    if args.json {
        return print_document(&document);
    }
    let mut text = if document.setup.side_by_side {
        table::side_by_side(&document)
    } else {
        table::terminal(&document.rows, &document.setup.test_beds)
    };
    if let Some(comparison) = &comparison {
        text += &format!("\n{}", table::comparison(comparison));
    }
    for note in &document.notes {
        text += &format!("note: {note}\n");
    }
    print_text(&format!("{text}note: build profile {}\n\n{written}\n", document.profile))
}

/// Builds the request for the library, and checks it.
fn request(args: &Args) -> Result<BenchRequest, Failure> {
    let abey = executable()?;
    let app = program::app(args, &abey)?;
    let request = BenchRequest {
        worlds: worlds(args)?,
        app,
        is_app_named: args.app.is_some(),
        server_cpu: args.server_cpu,
        abey,
        modes: args.modes.clone(),
        loads: args.loads.clone(),
    };
    request.validate()?;
    if !request.is_app_named && request.requires_linux() && matches!(request.app, App::BuiltIn(_)) {
        eprintln!("abey: memcached is not installed: measuring the built-in `abey serve kv` instead");
    }
    Ok(request)
}

fn worlds(args: &Args) -> Result<Worlds, Failure> {
    let only_both = [(args.client.is_some(), "--client"), (args.with_memory, "--with-memory")];
    if args.world != Some(WorldChoice::Both)
        && let Some((_, option)) = only_both.into_iter().find(|(is_given, _)| *is_given)
    {
        return Err(Failure::usage(format!("{option} is for one program in both worlds: add --world both")));
    }
    Ok(match args.world {
        None => Worlds::Default,
        Some(WorldChoice::Linux) => Worlds::Linux,
        Some(WorldChoice::Datapath) => Worlds::Datapath,
        Some(WorldChoice::All) => Worlds::All,
        Some(WorldChoice::Both) => Worlds::SideBySide {
            client: match args.client {
                Some(ClientChoice::Datapath) => ClientKind::Datapath,
                Some(ClientChoice::Kernel) | None => ClientKind::Kernel,
            },
            memory: args.with_memory,
        },
    })
}

/// Returns the path of this command, which also runs the built-in server.
pub(super) fn executable() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::lacks(format!("cannot find the path of this program: {error}")))
}

/// Sets `stop` and `stopped_by` on SIGINT and SIGTERM. A second signal ends the process at once; namespaces, shared memory and
/// the server end with it.
pub(super) fn catch_signals(stop: &Arc<AtomicBool>, stopped_by: &Arc<AtomicUsize>) -> Result<(), Failure> {
    let (stop, stopped_by) = (Arc::clone(stop), Arc::clone(stopped_by));
    let first = move |signal: Signal| {
        stopped_by.store(signal as usize, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
    };
    signals::handle_first(first, |signal| 128 + signal as i32)
}

fn check_numbers(args: &Args) -> Result<(), Failure> {
    if args.duration < Nanos::from_millis(100) {
        return Err(Failure::usage(format!("--duration {} is too short: use at least 100ms", args.duration)));
    }
    if args.reps < 3 && args.steps.steps.is_empty() {
        return Err(Failure::usage(format!(
            "--reps {} is too few for a median and a spread: use at least 3",
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
        return Err(Failure::usage(format!("--connections {} is out of range: use 1 to 4000", args.connections)));
    }
    Ok(())
}

/// Returns the command line, with which the bench can be repeated.
fn command_line() -> String {
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    format!("abey {}", arguments.join(" "))
}

/// Returns the current time, such as `2026-11-20 13:28 UTC`.
pub(super) fn date() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// Checks before the measurement that the results can be written.
fn check_writable(out: &Path, svg: Option<&Path>) -> Result<(), Failure> {
    if out.with_extension("html") == out {
        return Err(Failure::usage(format!(
            "--out {} is the file of the report: name the JSON file, and the report is written beside it as .html",
            out.display()
        )));
    }
    let files = [out.to_owned(), out.with_extension("html")];
    files.iter().map(PathBuf::as_path).chain(svg).try_for_each(|file| {
        let existed = file.exists();
        let opened = fs::File::options().create(true).append(true).open(file);
        opened.map_err(|error| unwritable(file, &error))?;
        if !existed {
            let _ = fs::remove_file(file);
        }
        Ok(())
    })
}

fn unwritable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot write {}: {error}; name another file with --out or --svg", file.display()))
}

/// Writes the JSON file and the report. Returns a line with their paths.
fn write_files(out: &Path, document: &Document, comparison: Option<&Comparison>) -> Result<String, Failure> {
    let html = out.with_extension("html");
    let mut text = serde_json::to_string_pretty(document).expect("the document can be serialized");
    text.push('\n');
    fs::write(out, text).map_err(|error| unwritable(out, &error))?;
    fs::write(&html, report::render(document, comparison)).map_err(|error| unwritable(&html, &error))?;
    Ok(format!("written: {} and {}", out.display(), html.display()))
}

/// Creates a progress bar on standard error, hidden unless that is a terminal.
pub(super) fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {eta} left, {msg}").expect("a valid template");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Request(_) => Self::usage(error),
            BenchError::Lacks { .. } | BenchError::Count(_) | BenchError::Cpu(_) | BenchError::Library(_) => {
                Self::lacks(error)
            }
            BenchError::Namespace(error) => error.into(),
            BenchError::Netlink(error) => error.into(),
            BenchError::Network(error) if error.is_denied() => Self::lacks(error),
            other => Self::check(other),
        }
    }
}
