//! `abey plan`: the settings that meet a goal, found by simulation.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use abey_bench::Load;
use abey_delivery::Nanos;
use abey_sim::Profile;
use abey_sim::plan::{Bound, Effort, Goal, LoadRange, Progress, Requirements};
use abey_sim::profile::Delivery;
use abey_sim::report::PlanReport;
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;
use crate::output::{print_document, print_text};

/// Find the settings that meet a goal by simulation: least CPU for a latency, or lowest latency for a CPU use
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("goal").required(true).args(["p99", "cpu"]))]
pub(crate) struct Args {
    /// Shipped host profile, or the path of a profile
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "epyc-7662")]
    profile: String,
    /// Requests per second, such as 400k, or a range in which the goal must hold, such as 100k..600k
    #[arg(long, value_name = "RATE|A..B", value_parser = load_range)]
    load: LoadRange,
    /// Goal: this 99th percentile of latency at most (such as 250us), with the least CPU
    #[arg(long, value_name = "TIME")]
    p99: Option<Nanos>,
    /// Goal: this share of the server's CPUs at most (such as 50%), with the lowest 99th percentile
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    cpu: Option<f64>,
    /// CPU time of the application per request, such as 8us [default: the profile's]
    #[arg(long, value_name = "TIME")]
    service: Option<Nanos>,
    /// Receive queues, each with a CPU and a server thread [default: those of a calibrated profile, or 8]
    #[arg(long, value_name = "N")]
    queues: Option<u32>,
    /// Connections [default: those of a calibrated profile per queue, or 560 per queue]
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Plan the modes that Linux has, or also hold and workqueue (datapath, sim) [default: that of a calibrated profile, or
    /// linux]
    #[arg(long, value_enum)]
    world: Option<PlanWorld>,
    /// Write the recommended settings to this file, for abey run, set and sim
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
    /// Write a picture of the frontier to this file
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Responses to simulate per run of a finalist; half as many while searching
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1_000..))]
    requests: u32,
    /// Seed; the same seed gives the same plan
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PlanWorld {
    Linux,
    Datapath,
    Sim,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let profile = Profile::load(&args.profile).map_err(Failure::usage)?;
    let requirements = requirements(&args, &profile);
    for path in args.output.iter().chain(&args.svg) {
        check_directory(path)?;
    }
    let began = Instant::now();
    let mut shown = ShownProgress::new(began);
    let plan = abey_sim::plan::plan(&profile, &requirements, &mut |progress| shown.update(progress))
        .map_err(Failure::usage)?;
    shown.bar.finish_and_clear();
    let report = PlanReport {
        profile: &args.profile,
        requirements: &requirements,
        plan: &plan,
        bound: Bound::of(&profile, &plan.nearest.settings, requirements.linux),
        output: args.output.as_deref(),
    };
    write_files(&args, &report)?;
    let status = if args.json { print_document(&report.document()) } else { print_text(&report.text()) }?;
    if plan.recommended.is_none() {
        return Err(Failure::check(report.why_none()));
    }
    eprintln!("abey: {} simulations in {:.1} s", plan.simulations, began.elapsed().as_secs_f64());
    Ok(status)
}

fn requirements(args: &Args, profile: &Profile) -> Requirements {
    let goal = match (args.p99, args.cpu) {
        (Some(p99), _) => Goal::P99AtMost(p99),
        (None, cpu) => Goal::CpuAtMost(cpu.expect("clap requires one of them")),
    };
    let calibrated = profile.calibrated;
    let queues = args.queues.or(calibrated.map(|with| with.queues)).unwrap_or(8);
    let each = calibrated.map_or(560, |with| with.connections.div_ceil(with.queues.max(1)));
    let connections = args.connections.unwrap_or(queues.saturating_mul(each));
    let linux = match (args.world, calibrated) {
        (Some(world), _) => world == PlanWorld::Linux,
        (None, with) => with.is_none_or(|with| with.world == Delivery::Linux),
    };
    let requests = f64::from(args.requests);
    let effort = Effort { screening_requests: requests / 2.0, confirming_requests: requests, ..Effort::default() };
    Requirements {
        queues,
        connections,
        service: args.service,
        linux,
        seed: args.seed,
        effort,
        ..Requirements::new(args.load, goal)
    }
}

/// Checks before the search that a file can be written there.
fn check_directory(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if parent.is_dir() && !path.is_dir() {
        return Ok(());
    }
    Err(Failure::usage(format!("cannot write {}: name a file in an existing directory", path.display())))
}

/// Time after which one line is printed where there is no terminal for a bar.
const LINE_AFTER: Duration = Duration::from_secs(10);

/// The progress on standard error: a bar on a terminal, otherwise one line if it takes long.
struct ShownProgress {
    bar: ProgressBar,
    began: Instant,
    is_line_due: bool,
}

impl ShownProgress {
    fn new(began: Instant) -> Self {
        let template = "planning [{bar:40}] {pos} of {len} simulations, {eta} left";
        let style = ProgressStyle::with_template(template).expect("a valid template").progress_chars("=> ");
        Self { bar: ProgressBar::new(0).with_style(style), began, is_line_due: !std::io::stderr().is_terminal() }
    }

    fn update(&mut self, Progress { done, known }: Progress) {
        self.bar.set_length(known as u64);
        self.bar.set_position(done as u64);
        let elapsed = self.began.elapsed();
        if self.is_line_due && elapsed > LINE_AFTER && done > 0 {
            self.is_line_due = false;
            let left = elapsed.as_secs_f64() / done as f64 * known.saturating_sub(done) as f64;
            eprintln!("abey: {done} of at least {known} simulations are done, at least {left:.0} s are left");
        }
    }
}

fn load_range(text: &str) -> Result<LoadRange, String> {
    let rate = |text: &str| {
        let load = text.parse::<Load>().map_err(|error| error.to_string())?;
        let allowed = || format!("`{text}` is no rate: write requests per second, such as 400k");
        load.rate().map(|rate| rate as f64).ok_or_else(allowed)
    };
    let (low, high) = match text.split_once("..") {
        Some((low, high)) => (rate(low)?, rate(high)?),
        None => (rate(text)?, rate(text)?),
    };
    if low > high {
        return Err(format!("`{text}` is reversed: write the lower load first"));
    }
    Ok(LoadRange { low, high })
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let value = number.parse::<f64>().ok().filter(|value| plain && *value > 0.0 && *value <= 100.0);
    value.ok_or_else(|| format!("`{text}` is no CPU use: write a share above 0% and up to 100%, such as 50%"))
}

fn write_files(args: &Args, report: &PlanReport<'_>) -> Result<(), Failure> {
    let write = |path: &Path, text: String| {
        fs::write(path, text).map_err(|error| Failure::lacks(format!("cannot write {}: {error}", path.display())))
    };
    if let Some(path) = &args.svg {
        write(path, report.svg())?;
    }
    if let (Some(path), Some(text)) = (&args.output, report.settings_file()) {
        write(path, text)?;
    }
    Ok(())
}
