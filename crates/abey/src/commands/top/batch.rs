//! Looks as plain text one after the other, or as one JSON document.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use abey_observe::Counter;
use abey_observe::rates::Rates;
use serde::Serialize;

use super::column::Column;
use super::frame::{Frame, Looker};
use super::view::{View, cell};
use crate::failure::Failure;
use crate::output::print_document;

/// Wide enough for every name.
const WIDTH: usize = 132;

/// Prints looks, `count` of them, or until whoever reads has seen enough.
pub(super) fn text(mut looker: Looker, view: &View, count: Option<u32>) -> Result<ExitCode, Failure> {
    let mut taken = 0;
    while count.is_none_or(|count| taken < count) {
        std::thread::sleep(Duration::from(view.interval));
        let separator = if taken > 0 { "\n" } else { "" };
        let mut out = io::stdout().lock();
        match write!(out, "{separator}{}", plain(&looker.look(), view)).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
            Err(error) => return Err(Failure::check(format!("cannot write to standard output: {error}"))),
            Ok(()) => taken += 1,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A frame as lines.
pub(super) fn plain(frame: &Frame, view: &View) -> String {
    let columns = View::columns(WIDTH);
    let line = |cells: Vec<String>| cells.join(" ").trim_end().to_owned();
    let mut lines = vec![headline(frame, view)];
    lines.extend(frame.datapaths.iter().cloned());
    lines.extend(frame.notes.iter().map(|note| format!("note: {note}")));
    lines.push(line(columns.iter().map(|(column, width)| cell(*column, *width, column.title())).collect()));
    for row in view.rows(frame) {
        lines.push(line(columns.iter().map(|(column, width)| cell(*column, *width, &column.cell(row))).collect()));
    }
    lines.join("\n") + "\n"
}

/// What is shown, and of how much.
pub(super) fn headline(frame: &Frame, view: &View) -> String {
    let all = frame.rows.len();
    let rates = frame.rows.iter().filter_map(|row| row.per_second(&[Counter::Packets]));
    // The sum of nothing is -0.
    let packets = rates.sum::<f64>() + 0.0;
    let cpu = frame.machine_cpu_percent.map_or_else(String::new, |cpu| format!(", machine CPU {cpu:.1} %"));
    let paused = if view.paused { ", paused" } else { "" };
    format!("abey top{paused}, every {}: {all} NAPIs, {packets:.0} packets/s{cpu}", view.interval)
}

#[derive(Serialize)]
struct Document {
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// Rates are per second; what is not counted is `null`.
#[derive(Serialize)]
struct Row {
    /// The number of the look, from 1.
    look: u32,
    world: &'static str,
    device: String,
    queues: Vec<u32>,
    napi: u32,
    pid: Option<u32>,
    mode: String,
    softirq_polls_per_s: Option<f64>,
    timer_polls_per_s: Option<f64>,
    busy_polls_per_s: Option<f64>,
    thread_polls_per_s: Option<f64>,
    empty_polls_per_s: Option<f64>,
    packets_per_s: Option<f64>,
    batch: Option<f64>,
    suspensions_per_s: Option<f64>,
    interrupts_per_s: Option<f64>,
    cpu_percent: Option<f64>,
}

/// Prints `count` looks as one document.
pub(super) fn json(mut looker: Looker, view: &View, count: u32) -> Result<ExitCode, Failure> {
    let mut document = Document { rows: Vec::new(), notes: Vec::new() };
    for look in 1..=count {
        std::thread::sleep(Duration::from(view.interval));
        let frame = looker.look();
        document.rows.extend(view.rows(&frame).into_iter().map(|rates| row(look, rates)));
        document.notes = frame.notes;
    }
    print_document(&document)
}

fn row(look: u32, rates: &Rates) -> Row {
    let instance = &rates.instance;
    Row {
        look,
        world: instance.key.world.name(),
        device: instance.device.clone(),
        queues: instance.queues.clone(),
        napi: instance.key.napi,
        pid: (instance.key.pid != 0).then_some(instance.key.pid),
        mode: instance.mode.clone(),
        softirq_polls_per_s: Column::Softirq.figure(rates),
        timer_polls_per_s: Column::Timer.figure(rates),
        busy_polls_per_s: Column::Busy.figure(rates),
        thread_polls_per_s: Column::Thread.figure(rates),
        empty_polls_per_s: rates.per_second(&[Counter::EmptyPolls]),
        packets_per_s: Column::Packets.figure(rates),
        batch: rates.batch(),
        suspensions_per_s: Column::Suspend.figure(rates),
        interrupts_per_s: Column::Irq.figure(rates),
        cpu_percent: rates.cpu_percent(),
    }
}
