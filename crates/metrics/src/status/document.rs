//! The report as one JSON document. Times are in nanoseconds; an unknown value is `null`.

use std::collections::BTreeMap;

use abey_delivery::{EpollBusyPoll, Nanos};
use abey_linux::cpu::CpuList;
use abey_linux::overview::{DeviceOverview, Known, NapiOverview};
use abey_linux::process::{EpollView, ProcessView};
use abey_linux::verdict::{State, Verdict};
use serde::Serialize;

use super::{DatapathSample, Judged, Report, device_sentences, notes, threaded};

#[derive(Serialize)]
struct Document<'a> {
    rows: Vec<NapiRow>,
    /// One sentence for each device, if no process was given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<VerdictDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<Vec<Process>>,
    timer_expiries_per_s: Option<f64>,
    /// Running datapaths, if everything was requested.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    datapaths: &'a [DatapathSample],
    notes: Vec<String>,
}

/// One NAPI instance, or a device without one, with `napi` null.
#[derive(Serialize)]
struct NapiRow {
    device: String,
    kind: Option<String>,
    gro: Option<bool>,
    peer: Option<Peer>,
    napi: Option<u32>,
    rx_queues: Vec<u32>,
    irq: Option<u32>,
    irq_cpus: Option<String>,
    kthread: Option<u32>,
    kthread_cpus: Option<String>,
    defer_hard_irqs: Option<u32>,
    gro_flush_timeout_ns: Option<u64>,
    irq_suspend_timeout_ns: Option<u64>,
    threaded: Option<&'static str>,
    /// Polls of the whole device: the tracepoint does not have the instance.
    device_polls_per_s: Option<Polls>,
}

#[derive(Clone, Serialize)]
struct Peer {
    device: String,
    namespace: String,
    tso: Option<bool>,
}

#[derive(Clone, Copy, Serialize)]
struct Polls {
    softirq: f64,
    busy: f64,
    kthread: f64,
}

#[derive(Serialize)]
struct VerdictDocument {
    device: String,
    pid: u32,
    name: String,
    configured: String,
    active: bool,
    sentence: String,
    reasons: Vec<String>,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    name: String,
    configured: String,
    state: &'static str,
    reasons: Vec<String>,
    napi_sockets: BTreeMap<u32, usize>,
    epolls: Vec<Epoll>,
}

#[derive(Serialize)]
struct Epoll {
    fd: i32,
    parameters: Option<Parameters>,
    napi_sockets: BTreeMap<u32, usize>,
    sockets_without_napi: usize,
    listeners: usize,
}

#[derive(Serialize)]
struct Parameters {
    usecs: u32,
    budget: u16,
    prefer: bool,
}

/// Returns the document.
pub(super) fn document<'a>(report: &'a Report<'_>) -> impl Serialize + 'a {
    let seconds = report.measured.interval.as_secs_f64();
    let judged = report.judged.as_ref();
    Document {
        rows: report.listed.iter().flat_map(|one| rows(report, one)).collect(),
        devices: if judged.is_some() { Vec::new() } else { device_sentences(report) },
        verdict: judged.map(|judged| verdict(&judged.verdict)),
        processes: judged.map(processes),
        timer_expiries_per_s: report.measured.timer_expiries.as_ref().ok().map(|count| *count as f64 / seconds),
        datapaths: &report.datapaths,
        notes: notes(report),
    }
}

fn rows(report: &Report<'_>, one: &DeviceOverview) -> Vec<NapiRow> {
    if one.napis.is_empty() {
        vec![row(report, one, None)]
    } else {
        one.napis.iter().map(|napi| row(report, one, Some(napi))).collect()
    }
}

fn row(report: &Report<'_>, one: &DeviceOverview, overview: Option<&NapiOverview>) -> NapiRow {
    let seconds = report.measured.interval.as_secs_f64();
    let polls = report.measured.polls.get(&one.device.name).and_then(|polls| polls.as_ref().ok());
    let per_second = |count: u64| count as f64 / seconds;
    let peer = one.peer.as_ref().and_then(|peer| peer.as_ref().ok());
    let cpus = |cpus: Option<&Known<CpuList>>| Some(cpus?.as_ref().ok()?.to_string());
    let napi = overview.map(|overview| overview.napi);
    NapiRow {
        device: one.device.name.clone(),
        kind: one.device.kind.clone(),
        gro: one.gro.as_ref().ok().copied(),
        peer: peer.map(|peer| Peer {
            device: peer.name.clone(),
            namespace: peer.netns.clone(),
            tso: peer.tso.as_ref().ok().copied(),
        }),
        napi: napi.map(|napi| napi.id),
        rx_queues: overview.map(|overview| overview.rx_queues.clone()).unwrap_or_default(),
        irq: napi.and_then(|napi| napi.irq),
        irq_cpus: cpus(overview.and_then(|overview| overview.irq_cpus.as_ref())),
        kthread: napi.and_then(|napi| napi.thread),
        kthread_cpus: cpus(overview.and_then(|overview| overview.thread_cpus.as_ref())),
        defer_hard_irqs: napi.and_then(|napi| napi.defer_hard_irqs),
        gro_flush_timeout_ns: napi.and_then(|napi| napi.gro_flush_timeout).map(Nanos::as_nanos),
        irq_suspend_timeout_ns: napi.and_then(|napi| napi.irq_suspend_timeout).map(Nanos::as_nanos),
        threaded: napi.and_then(|napi| napi.context).map(threaded),
        device_polls_per_s: polls.map(|polls| Polls {
            softirq: per_second(polls.softirq),
            busy: per_second(polls.busy),
            kthread: per_second(polls.kthread),
        }),
    }
}

fn verdict(verdict: &Verdict) -> VerdictDocument {
    VerdictDocument {
        device: verdict.device.clone(),
        pid: verdict.pid,
        name: verdict.name.clone(),
        configured: verdict.configured.to_string(),
        active: verdict.active,
        sentence: verdict.sentence(),
        reasons: verdict.reasons.iter().map(ToString::to_string).collect(),
    }
}

fn processes(judged: &Judged) -> Vec<Process> {
    let Judged { processes, verdict } = judged;
    let both = processes.iter().zip(&verdict.processes);
    both.map(|(view, verdict): (&ProcessView, _)| Process {
        pid: view.pid,
        name: view.comm.clone(),
        configured: verdict.configured.to_string(),
        state: match verdict.state {
            State::Active => "active",
            State::NotActive => "not active",
            State::Idle => "idle",
        },
        reasons: verdict.reasons.iter().map(ToString::to_string).collect(),
        napi_sockets: view.napi_ids(),
        epolls: view.epolls.iter().map(epoll).collect(),
    })
    .collect()
}

fn epoll(view: &EpollView) -> Epoll {
    let parameters = |set: EpollBusyPoll| Parameters { usecs: set.usecs, budget: set.budget, prefer: set.prefer };
    Epoll {
        fd: view.fd,
        parameters: view.params.get().map(parameters),
        napi_sockets: view.napi_ids.clone(),
        sockets_without_napi: view.without_napi,
        listeners: view.listeners,
    }
}
