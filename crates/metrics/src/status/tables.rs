//! The report as tables and sentences.

use std::collections::BTreeMap;

use abey_linux::cpu::CpuList;
use abey_linux::overview::{DeviceOverview, Known, NapiOverview, Peer};
use abey_linux::process::{EpollParams, EpollView, ProcessView};
use comfy_table::{Table, presets};

use super::{Judged, Report, datapath, device_sentences, notes, threaded};

/// The text of an empty cell.
pub(super) const NONE: &str = "-";

/// Returns the report, with a newline at the end.
pub(super) fn text(report: &Report<'_>) -> String {
    let mut blocks = Vec::new();
    if report.listed.is_empty() {
        blocks.push(format!("{} has no device with a NAPI instance", report.overview.netns));
    } else {
        let mut lines = vec![napi_table(report).trim_fmt()];
        lines.extend(report.listed.iter().filter_map(|one| traits(one)));
        blocks.push(lines.join("\n"));
    }
    if !report.datapaths.is_empty() {
        blocks.push(datapath::list(&report.datapaths));
    }
    match &report.judged {
        Some(Judged { processes, verdict }) => {
            blocks.extend([process_table(processes).trim_fmt(), verdict.to_string()]);
        }
        None => blocks.push(device_sentences(report).join("\n")),
    }
    blocks.push(notes(report).iter().map(|note| format!("note: {note}")).collect::<Vec<_>>().join("\n"));
    blocks.retain(|block| !block.is_empty());
    format!("{}\n", blocks.join("\n\n"))
}

/// Returns a table without lines, whose columns `awk` can split if no cell contains a space.
pub(super) fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

fn napi_table(report: &Report<'_>) -> Table {
    let mut rows = Vec::new();
    for one in &report.listed {
        // Polls are counted for the whole device, and shown in its first row.
        let mut polls = rates(report, one);
        let mut instances: Vec<Option<&NapiOverview>> = one.napis.iter().map(Some).collect();
        if instances.is_empty() {
            instances.push(None);
        }
        for napi in instances {
            let [queue, id, irq, cpus, kthread, defer, flush, suspend, threaded] = napi_cells(napi);
            let [softirq, busy, by_kthread] = std::mem::take(&mut polls);
            let device = one.device.name.clone();
            rows.push([
                device, queue, id, irq, cpus, kthread, defer, flush, suspend, threaded, softirq, busy, by_kthread,
            ]);
        }
    }
    let header = [
        "device",
        "queue",
        "NAPI",
        "IRQ",
        "CPUs",
        "kthread",
        "defer-hard-irqs",
        "gro-flush-timeout",
        "irq-suspend-timeout",
        "threaded",
        "softirq/s",
        "busy/s",
        "kthread/s",
    ];
    table(header, rows)
}

fn napi_cells(one: Option<&NapiOverview>) -> [String; 9] {
    fn or_none<T: ToString>(value: Option<T>) -> String {
        value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
    }
    let Some(one) = one else { return std::array::from_fn(|_| NONE.to_owned()) };
    let napi = &one.napi;
    let queues: Vec<String> = one.rx_queues.iter().map(u32::to_string).collect();
    [
        if queues.is_empty() { NONE.to_owned() } else { queues.join(",") },
        napi.id.to_string(),
        or_none(napi.irq),
        cpus(one),
        or_none(napi.thread),
        or_none(napi.defer_hard_irqs),
        or_none(napi.gro_flush_timeout),
        or_none(napi.irq_suspend_timeout),
        or_none(napi.context.map(threaded)),
    ]
}

/// Returns the CPUs that poll it: those of its thread if it has one, else those of its interrupt.
fn cpus(one: &NapiOverview) -> String {
    let list = |cpus: &Known<CpuList>| cpus.as_ref().map_or_else(|_| "?".to_owned(), CpuList::to_string);
    one.thread_cpus.as_ref().or(one.irq_cpus.as_ref()).map_or_else(|| NONE.to_owned(), list)
}

/// Returns the polls per second in softirq, by processes, and by NAPI threads; blank if they were not counted.
fn rates(report: &Report<'_>, one: &DeviceOverview) -> [String; 3] {
    let seconds = report.measured.interval.as_secs_f64();
    match report.measured.polls.get(&one.device.name) {
        Some(Ok(polls)) => {
            [polls.softirq, polls.busy, polls.kthread].map(|count| format!("{:.0}", count as f64 / seconds))
        }
        _ => Default::default(),
    }
}

/// Returns the properties of a virtual device that affect delivery: its kind, GRO, and the peer of a veth device.
fn traits(one: &DeviceOverview) -> Option<String> {
    let on = |known: &Known<bool>| known.as_ref().map_or("unknown", |on| if *on { "on" } else { "off" });
    let device = &one.device;
    let kind = device.kind.as_deref()?;
    let peer = match &one.peer {
        None => String::new(),
        Some(Err(_)) => ", peer unknown".to_owned(),
        Some(Ok(Peer { name, netns, tso })) => format!(", peer {name} in {netns} with TSO {}", on(tso)),
    };
    Some(format!("{}: {kind}, GRO {}{peer}", device.name, on(&one.gro)))
}

fn process_table(processes: &[ProcessView]) -> Table {
    let mut rows = Vec::new();
    for process in processes {
        let (pid, name) = (process.pid.to_string(), process.comm.clone());
        if process.epolls.is_empty() {
            let sockets = sockets(&process.napi_ids(), 0, process.listeners().count());
            rows.push([pid.clone(), name.clone(), NONE.to_owned(), NONE.to_owned(), sockets]);
        }
        for epoll in &process.epolls {
            let EpollView { fd, napi_ids, without_napi, listeners, .. } = epoll;
            let sockets = sockets(napi_ids, *without_napi, *listeners);
            rows.push([pid.clone(), name.clone(), fd.to_string(), parameters(epoll.params), sockets]);
        }
    }
    table(["pid", "name", "epoll", "busy poll", "sockets"], rows)
}

fn parameters(params: EpollParams) -> String {
    match params {
        EpollParams::Set(set) => {
            format!("{} us, budget {}{}", set.usecs, set.budget, if set.prefer { ", prefer" } else { "" })
        }
        EpollParams::Unset => "not set".to_owned(),
        EpollParams::Unsupported => "not in this kernel".to_owned(),
    }
}

fn sockets(by_napi: &BTreeMap<u32, usize>, without: usize, listeners: usize) -> String {
    let mut parts: Vec<String> = by_napi.iter().map(|(id, count)| format!("{count} on NAPI {id}")).collect();
    if without > 0 {
        parts.push(format!("{without} on none"));
    }
    if listeners > 0 {
        parts.push(format!("{listeners} listening"));
    }
    if parts.is_empty() { NONE.to_owned() } else { parts.join(", ") }
}
