//! `abey top`: NAPI instances at work, the kernel's and running datapaths', sorted and filtered.

mod batch;
mod column;
mod frame;
mod screen;
mod view;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use abey_delivery::Nanos;
use abey_observe::Collector;

use self::column::Column;
use self::frame::Looker;
use self::view::View;
use super::exporter::Watched;
use crate::failure::Failure;

/// Watch NAPI instances, the kernel's and running datapaths': modes, polls by context, packets, batches, suspensions,
/// CPU. On a terminal the keys are shown in the last line
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    watched: Watched,
    /// How long to count between two looks (from 100ms to 1 minute)
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Nanos,
    /// Sort by this column: device, queue, napi, mode, softirq, timer, busy, thread, packets, batch, suspend, irq, cpu;
    /// names ascend, figures descend
    #[arg(long, value_name = "COLUMN", default_value = "packets")]
    sort: Column,
    /// The other way round
    #[arg(long)]
    reverse: bool,
    /// Show only rows with this text in the device, the NAPI or the mode
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print plain text, one look after the other, rather than use the terminal
    #[arg(long)]
    batch: bool,
    /// How many looks to take (without it, as many as there is time for; with --json, one)
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
}

const INTERVALS: std::ops::RangeInclusive<Nanos> = Nanos::from_millis(100)..=Nanos::from_millis(60_000);

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if !INTERVALS.contains(&args.interval) {
        return Err(Failure::usage(format!(
            "--interval {} is out of range: it goes from 100ms to 1 minute",
            args.interval
        )));
    }
    let is_shown = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !is_shown && !args.batch && !args.json {
        return Err(Failure::usage("there is no terminal to show it on: say --batch or --json"));
    }
    let sampler = args.watched.sampler(Collector::ALL.into_iter().collect())?;
    let looker = Looker::new(sampler);
    let view = View::new(args.sort, args.reverse, args.filter, args.interval);
    if args.json {
        batch::json(looker, &view, args.count.unwrap_or(1))
    } else if args.batch {
        batch::text(looker, &view, args.count)
    } else {
        screen::run(looker, view, args.count)
    }
}
