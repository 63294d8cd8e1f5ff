//! `abey sim timeline`: a picture of a mode.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use abey_delivery::{Mode, Nanos};
use abey_sim::report::timeline::{request_rows, svg};
use abey_sim::timeline::Story;
use abey_sim::{Profile, SettingsFile, plan};

use crate::failure::Failure;
use crate::output::{print_rows, print_text};

/// Draw requests, interrupts, timers, polls and sleep of one queue in virtual time, as an SVG file
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub(super) struct Args {
    /// Delivery mode to draw
    #[arg(long, group = "what")]
    mode: Option<Mode>,
    /// Settings file to draw instead of a mode
    #[arg(long, value_name = "FILE.toml", group = "what")]
    settings: Option<PathBuf>,
    /// Draw one mode of every family, each as MODE.svg in this directory
    #[arg(long, value_name = "DIR", group = "what", conflicts_with_all = ["output", "json"])]
    all: Option<PathBuf>,
    /// Arrival times of the requests, such as 20us,85us [default: the same for every mode]
    #[arg(long, value_name = "TIME,...", value_delimiter = ',')]
    arrivals: Option<Vec<Nanos>>,
    /// Shipped host profile, or the path of a profile
    #[arg(long, value_name = "NAME|FILE.toml", default_value = "epyc-7662")]
    profile: String,
    /// Write the picture to this file [default: standard output]
    #[arg(long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
    /// Print the course of each request as one JSON document
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let profile = Profile::load(&args.profile).map_err(Failure::usage)?;
    if let Some(directory) = &args.all {
        return draw_all(directory, args, &profile);
    }
    let (name, story) = story(args)?;
    let timeline = story.run(&profile).map_err(Failure::usage)?;
    if let Some(path) = &args.output {
        write(path, &svg(&name, &args.profile, &timeline))?;
    }
    match (args.json, &args.output) {
        (true, _) => print_rows(&request_rows(&name, &timeline)),
        (false, Some(_)) => Ok(ExitCode::SUCCESS),
        (false, None) => print_text(&svg(&name, &args.profile, &timeline)),
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
            return Err(Failure::usage(
                "name a mode with --mode, such as --mode suspend20, or draw one of every family with --all DIR",
            ));
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
        pictures.push((directory.join(format!("{name}.svg")), svg(name, &args.profile, &timeline)));
    }
    pictures.iter().try_for_each(|(path, picture)| write(path, picture))?;
    Ok(ExitCode::SUCCESS)
}

fn write(path: &Path, picture: &str) -> Result<(), Failure> {
    std::fs::write(path, picture)
        .map_err(|error| Failure::lacks(format!("cannot write the picture {}: {error}", path.display())))
}
