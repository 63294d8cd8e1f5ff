//! `abey top`: the NAPI instances of the kernel and of running datapaths, with their rates.

mod screen;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use abey_delivery::Nanos;
use abey_metrics::Collector;
use abey_metrics::top::{Column, Monitor, TopRow, View, plain_text};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use super::exporter::Selection;
use crate::failure::Failure;
use crate::output::print_document;

/// Watch the NAPI instances of the kernel and of running datapaths
///
/// Shows modes, polls by context, packets, batches, suspensions and CPU time. On a terminal the last line lists the keys.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    selection: Selection,
    /// Time between two frames (100ms to 1 minute)
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Nanos,
    /// Sort by this column: names in ascending order, rates in descending order
    #[arg(long, value_name = "COLUMN", default_value = Column::Packets.name(), value_parser = column())]
    sort: Column,
    /// Reverse the sort order
    #[arg(long)]
    reverse: bool,
    /// Show only rows with this text in the device, the NAPI ID or the mode
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print frames as plain text instead of using the terminal
    #[arg(long)]
    batch: bool,
    /// Number of frames [default: no limit; with --json 1]
    #[arg(short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

fn column() -> impl TypedValueParser<Value = Column> {
    PossibleValuesParser::new(Column::ALL.map(Column::name))
        .map(|name| Column::from_name(&name).expect("a column's name"))
}

const INTERVALS: std::ops::RangeInclusive<Nanos> = Nanos::from_millis(100)..=Nanos::from_millis(60_000);

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if !INTERVALS.contains(&args.interval) {
        return Err(Failure::usage(format!("--interval {} is out of range: use 100ms to 1 minute", args.interval)));
    }
    let is_interactive = io::stdin().is_terminal() && io::stdout().is_terminal();
    if !is_interactive && !args.batch && !args.json {
        return Err(Failure::usage("standard input or output is no terminal: add --batch or --json"));
    }
    let monitor = Monitor::new(args.selection.sampler(Collector::ALL.into_iter().collect())?);
    let view = View::new(args.sort, args.reverse, args.filter, args.interval);
    if args.json {
        print_json(monitor, &view, args.count.unwrap_or(1))
    } else if args.batch {
        print_frames(monitor, &view, args.count)
    } else {
        screen::run(monitor, view, args.count)
    }
}

/// Prints `count` frames as text, or frames until standard output is closed.
fn print_frames(mut monitor: Monitor, view: &View, count: Option<u32>) -> Result<ExitCode, Failure> {
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        std::thread::sleep(Duration::from(view.interval));
        let separator = if printed > 0 { "\n" } else { "" };
        let mut out = io::stdout().lock();
        match write!(out, "{separator}{}", plain_text(&monitor.next_frame(), view)).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            Err(error) => return Err(Failure::check(format!("cannot write to standard output: {error}"))),
            Ok(()) => printed += 1,
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct TopDocument {
    rows: Vec<TopRow>,
    notes: Vec<String>,
}

/// Prints `count` frames as one document.
fn print_json(mut monitor: Monitor, view: &View, count: u32) -> Result<ExitCode, Failure> {
    let mut document = TopDocument { rows: Vec::new(), notes: Vec::new() };
    for number in 1..=count {
        std::thread::sleep(Duration::from(view.interval));
        let frame = monitor.next_frame();
        document.rows.extend(view.rows(&frame).into_iter().map(|rates| TopRow::new(number, rates)));
        document.notes = frame.notes;
    }
    print_document(&document)
}
