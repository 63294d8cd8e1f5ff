//! Frames as plain text and as rows of a JSON document.

use serde::Serialize;

use super::{Column, Frame, View, pad_cell};
use crate::Counter;
use crate::rates::Rates;

/// Width of the plain text, enough for every column.
const WIDTH: usize = 132;

/// Formats a frame as lines, each with a line feed.
#[must_use]
pub fn plain_text(frame: &Frame, view: &View) -> String {
    let columns = View::columns(WIDTH);
    let line = |cells: Vec<String>| cells.join(" ").trim_end().to_owned();
    let mut lines = vec![headline(frame, view)];
    lines.extend(frame.datapaths.iter().cloned());
    lines.extend(frame.notes.iter().map(|note| format!("note: {note}")));
    lines.push(line(columns.iter().map(|(column, width)| pad_cell(*column, *width, column.title())).collect()));
    for row in view.rows(frame) {
        lines.push(line(columns.iter().map(|(column, width)| pad_cell(*column, *width, &column.text(row))).collect()));
    }
    lines.join("\n") + "\n"
}

/// Formats the first line: interval, number of instances, packet rate and CPU use.
#[must_use]
pub fn headline(frame: &Frame, view: &View) -> String {
    let count = frame.rows.len();
    let rates = frame.rows.iter().filter_map(|row| row.per_second(&[Counter::Packets]));
    // The sum of no values is -0.
    let packets = rates.sum::<f64>() + 0.0;
    let cpu = frame.machine_cpu_percent.map_or_else(String::new, |cpu| format!(", machine CPU {cpu:.1} %"));
    let paused = if view.paused { ", paused" } else { "" };
    format!("abey top{paused}, every {}: {count} NAPIs, {packets:.0} packets/s{cpu}", view.interval)
}

/// A row of the JSON document. Rates are per second; an absent counter is `null`.
#[derive(Clone, Debug, Serialize)]
pub struct TopRow {
    /// The number of the frame, from 1.
    #[serde(rename = "look")]
    frame: u32,
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

impl TopRow {
    /// Creates the row of an instance in the frame of this number, from 1.
    #[must_use]
    pub fn new(frame: u32, rates: &Rates) -> Self {
        let instance = &rates.instance;
        Self {
            frame,
            world: instance.key.owner.name(),
            device: instance.device.clone(),
            queues: instance.queues.clone(),
            napi: instance.key.napi,
            pid: (instance.key.pid != 0).then_some(instance.key.pid),
            mode: instance.mode.clone(),
            softirq_polls_per_s: Column::Softirq.value(rates),
            timer_polls_per_s: Column::Timer.value(rates),
            busy_polls_per_s: Column::Busy.value(rates),
            thread_polls_per_s: Column::Thread.value(rates),
            empty_polls_per_s: rates.per_second(&[Counter::EmptyPolls]),
            packets_per_s: Column::Packets.value(rates),
            batch: rates.batch(),
            suspensions_per_s: Column::Suspend.value(rates),
            interrupts_per_s: Column::Irq.value(rates),
            cpu_percent: rates.cpu_percent(),
        }
    }
}
