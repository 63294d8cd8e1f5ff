//! `abey plan`: the settings that meet a goal, found by simulation.

mod document;
mod picture;
mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use abey_bench::Load;
use abey_delivery::Nanos;
use abey_sim::plan::{
    Bound, CPU_MARGIN, Candidate, Effort, Goal, LoadRange, P99_MARGIN, Plan, Progress, Requirements, describe,
};
use abey_sim::profile::Delivery;
use abey_sim::{Profile, SettingsFile};
use indicatif::{ProgressBar, ProgressStyle};

use crate::failure::Failure;
use crate::output::{print_document, print_text};

/// Find the settings that meet a goal, by simulation: the least CPU for a latency, or the least latency for a CPU use
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("goal").required(true).args(["p99", "cpu"]))]
pub(crate) struct Args {
    /// A shipped host profile, or the path of one
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "epyc-7662")]
    profile: String,
    /// Requests per second, such as 400k, or a range such as 100k..600k; the goal must hold at all of it
    #[arg(long, value_name = "RATE|A..B", value_parser = load_range)]
    load: LoadRange,
    /// The goal: a 99th percentile of latency of at most this (such as 250us), for the least CPU
    #[arg(long, value_name = "TIME")]
    p99: Option<Nanos>,
    /// The goal: at most this share of the server's CPUs (such as 50%), with the least 99th percentile
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    cpu: Option<f64>,
    /// The processor time of the application for a request (such as 8us); the profile's own unless given
    #[arg(long, value_name = "TIME")]
    service: Option<Nanos>,
    /// Receive queues, each with its CPU and its server thread [default: those of a calibrated profile, or 8]
    #[arg(long, value_name = "N")]
    queues: Option<u32>,
    /// Connections [default: those of a calibrated profile for each queue, or 560]
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Whose delivery to plan for: only what Linux has, or also hold and the work pool [default: what a calibrated profile
    /// was measured with, or linux]
    #[arg(long, value_enum)]
    world: Option<World>,
    /// Write the recommended settings to a file, for abey run, set and sim
    #[arg(long, value_name = "FILE.toml")]
    output: Option<PathBuf>,
    /// Write the frontier as a picture
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Answers to simulate in each run of a finalist, and half as many while searching
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1_000..))]
    requests: u32,
    /// The same seed gives the same plan
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum World {
    Linux,
    Datapath,
    Sim,
}

/// A plan with what is needed to tell about it.
struct Told<'a> {
    args: &'a Args,
    wanted: &'a Requirements,
    plan: &'a Plan,
    /// Of the recommended settings, or the nearest.
    bound: Bound,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let profile = Profile::load(&args.profile).map_err(Failure::usage)?;
    let wanted = requirements(&args, &profile);
    for path in args.output.iter().chain(&args.svg) {
        check_directory(path)?;
    }
    let since = Instant::now();
    let bar = progress_bar();
    let plan = abey_sim::plan::plan(&profile, &wanted, &mut |Progress { done, known }| {
        bar.set_length(known as u64);
        bar.set_position(done as u64);
    })
    .map_err(Failure::usage)?;
    bar.finish_and_clear();
    let bound = Bound::of(&profile, &plan.nearest.settings, wanted.linux);
    let told = Told { args: &args, wanted: &wanted, plan: &plan, bound };
    told.write_files()?;
    let done = if args.json { print_document(&document::of(&told)) } else { print_text(&report::of(&told)) }?;
    if plan.recommended.is_none() {
        return Err(Failure::check(told.why_none()));
    }
    eprintln!("abey: {} simulations in {:.1} s", plan.simulations, since.elapsed().as_secs_f64());
    Ok(done)
}

fn requirements(args: &Args, profile: &Profile) -> Requirements {
    let goal = match (args.p99, args.cpu) {
        (Some(p99), _) => Goal::P99AtMost(p99),
        (None, cpu) => Goal::CpuAtMost(cpu.expect("clap asks for one of them")),
    };
    let calibrated = profile.calibrated;
    let queues = args.queues.or(calibrated.map(|with| with.queues)).unwrap_or(8);
    let each = calibrated.map_or(560, |with| with.connections.div_ceil(with.queues.max(1)));
    let connections = args.connections.unwrap_or(queues.saturating_mul(each));
    let linux = match (args.world, calibrated) {
        (Some(world), _) => world == World::Linux,
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

/// A file that cannot be written is found out before the search.
fn check_directory(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if parent.is_dir() && !path.is_dir() {
        return Ok(());
    }
    Err(Failure::usage(format!("cannot write {}: name a file in a directory that there is", path.display())))
}

fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("planning [{bar:40}] {pos} of {len} simulations").expect("it parses");
    ProgressBar::new(0).with_style(style.progress_chars("=> "))
}

fn load_range(text: &str) -> Result<LoadRange, String> {
    let rate = |text: &str| {
        let load = text.parse::<Load>().map_err(|error| error.to_string())?;
        let allowed = || format!("`{text}` is no rate to plan for: write requests per second, such as 400k");
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

impl Told<'_> {
    fn write_files(&self) -> Result<(), Failure> {
        let write = |path: &Path, text: String| {
            fs::write(path, text).map_err(|error| Failure::lacks(format!("cannot write {}: {error}", path.display())))
        };
        if let Some(path) = &self.args.svg {
            write(path, picture::of(self))?;
        }
        if let (Some(path), Some(best)) = (&self.args.output, &self.plan.recommended) {
            write(path, SettingsFile::text(&best.settings, &self.file_header(best)))?;
        }
        Ok(())
    }

    fn file_header(&self, best: &Candidate) -> String {
        let expected: String = best.at.iter().map(|at| format!("{}\n", report::expectation(at))).collect();
        format!(
            "{}: abey plan --profile {} {}\nExpected, by simulation with {} queues and {} connections:\n{expected}",
            describe(&best.settings),
            self.args.profile,
            self.question(),
            self.wanted.queues,
            self.wanted.connections
        )
    }

    /// Load and goal as they are asked for on the command line.
    fn question(&self) -> String {
        let load = self.load();
        let service = self.wanted.service.map(|span| format!(" --service {span}")).unwrap_or_default();
        match self.wanted.goal {
            Goal::P99AtMost(p99) => format!("--load {load}{service} --p99 {p99}"),
            Goal::CpuAtMost(percent) => format!("--load {load}{service} --cpu {percent}%"),
        }
    }

    fn load(&self) -> String {
        let LoadRange { low, high } = self.wanted.load;
        let text = |rate: f64| Load::Rate(rate as u64).to_string();
        if low == high { text(low) } else { format!("{}..{}", text(low), text(high)) }
    }

    fn goal(&self) -> String {
        match self.wanted.goal {
            Goal::P99AtMost(p99) => format!("p99 at most {p99}"),
            Goal::CpuAtMost(percent) => format!("CPU at most {percent} %"),
        }
    }

    /// What is kept free for the simulator's own error.
    fn margin(&self) -> String {
        match self.wanted.goal {
            Goal::P99AtMost(_) => format!("{:.0} %", 100.0 * P99_MARGIN),
            Goal::CpuAtMost(_) => format!("{CPU_MARGIN} points"),
        }
    }

    fn why_none(&self) -> String {
        let near = &self.plan.nearest;
        let name = describe(&near.settings);
        let load = self.load();
        if !near.carries() {
            let most = near.most_qps();
            return format!("no settings answer {load} requests per second: {name} answers the most, {most:.0}");
        }
        let reached = match self.wanted.goal {
            Goal::P99AtMost(_) => format!("a p99 of {:.0} us", near.p99_us()),
            goal @ Goal::CpuAtMost(_) => format!("{:.1} % of the CPUs", near.cpu_percent(goal)),
        };
        let (goal, margin) = (self.goal(), self.margin());
        format!(
            "no settings meet the goal of {goal} at {load}, less {margin} of margin: {name} comes nearest, with {reached}"
        )
    }
}
