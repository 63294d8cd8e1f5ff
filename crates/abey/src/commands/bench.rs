//! `abey bench`: every mode on this machine, as a table, a JSON file and an HTML report.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use abey_bench::linux::{App, BenchError, Matrix, Outcome, Progress, measure};
use abey_bench::reference::ReferenceTable;
use abey_bench::{Comparison, Document, Load, Machine, Setup, report, stats, table};
use abey_delivery::{Mode, Nanos};
use abey_linux::library::find_library;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::linux_world::{Wanted, World};
use crate::output::{print_document, print_text};

/// Measure every delivery mode on this machine, on a test network of its own
///
/// Makes two network namespaces joined by a veth pair, runs memcached (or, where there is none, the built-in `abey
/// serve kv`) on one CPU through every mode at every load from another CPU, in random order, and proves each mode
/// active by counters before a row counts. Nothing is left behind. Needs root.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    world: World,
    /// The modes to measure [default: base,defer50,napibusy,fullbusy,suspend20,threaded]
    #[arg(long, value_name = "MODE,..", value_delimiter = ',')]
    modes: Vec<Mode>,
    /// The loads, in requests per second, or `max` for a closed loop
    #[arg(long, value_name = "LOAD,..", value_delimiter = ',', default_value = "20k,50k")]
    loads: Vec<Load>,
    /// Runs of each mode at each load
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..))]
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
    /// The server to measure [default: memcached if it is installed, otherwise kv]
    #[arg(long, value_enum)]
    app: Option<AppChoice>,
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
enum AppChoice {
    Memcached,
    Kv,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum CompareChoice {
    Reference,
}

/// What `abey bench` measures when it is not told.
const DEFAULT_MODES: [&str; 6] = ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded"];

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let (matrix, command) = matrix(&args)?;
    check_writable(&args.out)?;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped_by = Arc::new(AtomicUsize::new(0));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second Ctrl-C ends the process at once; the namespaces and the server end with it.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register_usize(signal, Arc::clone(&stopped_by), signal as usize))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    }
    if let App::BuiltIn(_) = matrix.app
        && args.app.is_none()
    {
        eprintln!("abey: memcached is not installed: measuring the built-in `abey serve kv` instead");
    }
    eprintln!("abey: seed {}", matrix.seed);
    let bar = progress_bar();
    let measured = measure(&matrix, &stop, &mut |Progress { mode, done, all }| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        bar.set_message(mode.to_string());
    });
    bar.finish_and_clear();
    let outcome = match measured {
        Err(BenchError::Stopped) => {
            eprintln!("abey: stopped; nothing was written, and nothing is left behind");
            return Ok(ExitCode::from(128 + stopped_by.load(Ordering::Relaxed) as u8));
        }
        other => other.map_err(failure)?,
    };
    let document = document(&args, &matrix, outcome, command);
    let comparison =
        args.compare.map(|CompareChoice::Reference| Comparison::new(&document.rows, &ReferenceTable::memcached()));
    let written = write_files(&args.out, &document, comparison.as_ref())?;
    if args.json {
        return print_document(&document);
    }
    let mut text = table::terminal(&document.rows);
    if let Some(comparison) = &comparison {
        text += &format!("\n{}", table::comparison(comparison));
    }
    for note in &document.notes {
        text += &format!("note: {note}\n");
    }
    print_text(&format!("{text}\n{written}\n"))
}

fn matrix(args: &Args) -> Result<(Matrix, String), Failure> {
    args.world.only_linux()?;
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::lacks(
            "abey bench needs root, to make its network namespaces: run it with sudo, for example `sudo -E cargo run \
             --release -- bench`",
        ));
    }
    let modes = if args.modes.is_empty() {
        DEFAULT_MODES.iter().map(|name| name.parse().expect("a mode's name")).collect()
    } else {
        args.modes.clone()
    };
    for (at, mode) in modes.iter().enumerate() {
        Wanted::mode(*mode)?;
        if matches!(mode, Mode::SockBusy(_)) {
            return Err(Failure::usage(format!(
                "mode `{mode}` is for blocking receives, and the measured servers wait in epoll: leave it out"
            )));
        }
        if modes[..at].contains(mode) {
            return Err(Failure::usage(format!("mode `{mode}` is named twice: name it once")));
        }
    }
    let mut loads = args.loads.clone();
    loads.sort_unstable();
    loads.dedup();
    if args.duration < Nanos::from_millis(100) {
        return Err(Failure::usage(format!("--duration {} is too short: measure at least 100ms", args.duration)));
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
    let exe = std::env::current_exe().map_err(|error| Failure::lacks(format!("cannot find my own file: {error}")))?;
    let app = app(args.app, &exe)?;
    let matrix = Matrix {
        modes,
        loads,
        repetitions: args.reps,
        duration: args.duration.into(),
        warmup: args.warmup.into(),
        connections: args.connections,
        seed: args.seed.unwrap_or_else(rand::random),
        app,
        library: find_library(&exe).map_err(Failure::lacks)?,
        skip_impossible: args.modes.is_empty(),
    };
    Ok((matrix, command_line()))
}

fn app(choice: Option<AppChoice>, exe: &Path) -> Result<App, Failure> {
    match (choice, App::find(exe)) {
        (Some(AppChoice::Kv), _) => Ok(App::BuiltIn(exe.to_owned())),
        (Some(AppChoice::Memcached), App::BuiltIn(_)) => {
            Err(Failure::lacks("memcached is not installed: install it, or use --app kv"))
        }
        (_, found) => Ok(found),
    }
}

/// The command as it was given, so that the report can be repeated.
fn command_line() -> String {
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    format!("abey {}", arguments.join(" "))
}

fn document(args: &Args, matrix: &Matrix, outcome: Outcome, command: String) -> Document {
    let Outcome { runs, notes, testbed, server_cpu, client_cpu, hardware_counters } = outcome;
    let Matrix { connections, seed, repetitions, .. } = *matrix;
    let millis = |duration: Duration| duration.as_millis() as u64;
    Document {
        rows: stats::aggregate(&runs),
        machine: Machine::read(testbed, hardware_counters, &date()),
        seed,
        setup: Setup {
            command,
            server: format!("{}, 1 worker thread, on CPU {server_cpu}", matrix.app.description()),
            client: format!("GET, {connections} connections, Poisson arrivals, open loop, from CPU {client_cpu}"),
            run_ms: millis(args.duration.into()),
            warmup_ms: millis(args.warmup.into()),
            repetitions,
            abey_version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        notes,
    }
}

/// Today, as `2026-11-20 13:28 UTC`.
fn date() -> String {
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
fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {eta} left, {msg}").expect("a valid template");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()).with_style(style)
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Lacks { .. } | BenchError::Count(_) | BenchError::Cpu(_) => Failure::lacks(error),
        BenchError::Namespace(error) => error.into(),
        BenchError::Netlink(error) => error.into(),
        other => Failure::check(other),
    }
}
