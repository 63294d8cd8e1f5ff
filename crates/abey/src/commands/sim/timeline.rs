//! `abey sim timeline`: a mode at work as a picture.

mod lanes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use abey_delivery::{Mode, Nanos};
use abey_sim::timeline::{Story, Timeline};
use abey_sim::{Profile, RequestTrace, SettingsFile, plan};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{print_rows, print_text};

/// Draw what a mode does: requests, interrupts, timers, polls and sleep of one queue, in virtual time, as an SVG file.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(super) struct Args {
    /// The delivery mode to draw.
    #[arg(long, group = "what")]
    mode: Option<Mode>,
    /// Settings to draw instead of a mode's, as a TOML file.
    #[arg(long, value_name = "FILE.toml", group = "what")]
    settings: Option<PathBuf>,
    /// Draw one mode of every kind, MODE.svg in this directory each.
    #[arg(long, value_name = "DIR", group = "what", conflicts_with_all = ["output", "json"])]
    all: Option<PathBuf>,
    /// When requests arrive, instead of those that every mode's picture has: 20us,85us,...
    #[arg(long, value_name = "TIME,...", value_delimiter = ',')]
    arrivals: Option<Vec<Nanos>>,
    /// A shipped host profile, or the path of one.
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "epyc-7662")]
    profile: String,
    /// Where to write the picture; standard output unless given.
    #[arg(long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
    /// The way of each request as one JSON document on standard output.
    #[arg(long)]
    json: bool,
}

/// The way of a request, in microseconds.
#[derive(Serialize)]
struct Row<'a> {
    mode: &'a str,
    arrived_us: f64,
    delivered_us: f64,
    begun_us: f64,
    answered_us: f64,
    latency_us: f64,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let profile = Profile::load(&args.profile).map_err(Failure::usage)?;
    if let Some(directory) = &args.all {
        return draw_all(directory, args, &profile);
    }
    let (name, story) = story(args)?;
    let timeline = story.run(&profile).map_err(Failure::usage)?;
    if let Some(path) = &args.output {
        write(path, &lanes::chart(&name, &args.profile, &timeline).render())?;
    }
    match (args.json, &args.output) {
        (true, _) => print_rows(&rows(&name, &timeline)),
        (false, Some(_)) => Ok(ExitCode::SUCCESS),
        (false, None) => print_text(&lanes::chart(&name, &args.profile, &timeline).render()),
    }
}

fn story(args: &Args) -> Result<(String, Story), Failure> {
    let (name, story) = match (&args.settings, args.mode) {
        (Some(path), _) => {
            let file = SettingsFile::load(path).map_err(Failure::usage)?;
            let story = Story { settings: file.settings, ..Story::new(plan::nearest_mode(&file.settings)) };
            (plan::describe(&file.settings), story)
        }
        (None, Some(mode)) => (mode.to_string(), Story::new(mode)),
        (None, None) => {
            return Err(Failure::usage("name a mode: --mode suspend20, or --all DIR for one of every kind"));
        }
    };
    Ok((name, Story { arrivals: args.arrivals.clone(), ..story }))
}

fn draw_all(directory: &Path, args: &Args, profile: &Profile) -> Result<ExitCode, Failure> {
    let mut pictures = Vec::new();
    for name in Mode::EXAMPLES {
        let mode = name.parse().map_err(Failure::check)?;
        let story = Story { arrivals: args.arrivals.clone(), ..Story::new(mode) };
        let timeline = story.run(profile).map_err(Failure::usage)?;
        pictures.push((directory.join(format!("{name}.svg")), lanes::chart(name, &args.profile, &timeline).render()));
    }
    pictures.iter().try_for_each(|(path, picture)| write(path, picture))?;
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, picture: &str) -> Result<(), Failure> {
    std::fs::write(path, picture)
        .map_err(|error| Failure::lacks(format!("cannot write the picture {}: {error}", path.display())))
}

fn rows<'a>(mode: &'a str, timeline: &Timeline) -> Vec<Row<'a>> {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let row = |request: &RequestTrace| Row {
        mode,
        arrived_us: micros(request.arrived),
        delivered_us: micros(request.delivered),
        begun_us: micros(request.begun),
        answered_us: micros(request.answered),
        latency_us: micros(request.answered - request.arrived),
    };
    timeline.trace.requests().iter().map(row).collect()
}
