//! The content of `abey status`: devices, processes and datapaths of one measurement, as text or as a JSON document.

mod datapath;
mod detail;
mod document;
mod tables;

use abey_delivery::PollContext;
use abey_linux::overview::{DeviceOverview, Measured, Overview};
use abey_linux::process::ProcessView;
use abey_linux::verdict::{Verdict, describe_device};
use serde::Serialize;

pub use self::datapath::{DatapathSample, datapath_document, datapath_text};

/// The results of one measurement.
#[derive(Debug)]
pub struct Report<'a> {
    /// The devices of the namespace.
    pub overview: &'a Overview,
    /// The devices to show.
    pub listed: Vec<&'a DeviceOverview>,
    /// The counters of the interval.
    pub measured: Measured,
    /// The verdict, if a process was given.
    pub judged: Option<Judged>,
    /// The running datapaths, if they were requested.
    pub datapaths: Vec<DatapathSample>,
    /// Further notes for the user.
    pub notes: Vec<String>,
}

/// The processes of a tree and the verdict on them.
#[derive(Debug)]
pub struct Judged {
    /// The requested process first, then its descendants.
    pub processes: Vec<ProcessView>,
    /// The verdict.
    pub verdict: Verdict,
}

impl Report<'_> {
    /// Returns tables and sentences, with a newline at the end.
    #[must_use]
    pub fn text(&self) -> String {
        tables::text(self)
    }

    /// Returns the JSON document. Times are in nanoseconds; an unknown value is `null`.
    #[must_use]
    pub fn document(&self) -> impl Serialize {
        document::document(self)
    }
}

/// Returns one sentence for each device, for a report without a process.
fn device_sentences(report: &Report<'_>) -> Vec<String> {
    let namespace = report.overview.network_namespace;
    let describe = |one: &&DeviceOverview| {
        let not_measured = || Err("its polls were not counted".to_owned());
        let polls = report.measured.polls.get(&one.device.name).cloned().unwrap_or_else(not_measured);
        describe_device(&one.facts(namespace), &polls)
    };
    report.listed.iter().map(describe).collect()
}

/// Returns the notes: what could not be read or counted, each once.
fn notes(report: &Report<'_>) -> Vec<String> {
    let mut notes = report.notes.clone();
    for one in &report.listed {
        let name = &one.device.name;
        if let Some(Err(why)) = report.measured.polls.get(name) {
            notes.push(format!("polls are not counted: {why}"));
        }
        if let Err(why) = &one.gro {
            notes.push(why.clone());
        }
        if let Some(Err(why)) = &one.peer {
            notes.push(why.clone());
        }
        if let Some(Err(why)) = one.peer.as_ref().and_then(|peer| peer.as_ref().ok()).map(|peer| &peer.tso) {
            notes.push(why.clone());
        }
        for napi in &one.napis {
            let unread = [&napi.irq_cpus, &napi.thread_cpus].into_iter().flatten();
            notes.extend(unread.filter_map(|cpus| cpus.as_ref().err().cloned()));
        }
        if !one.namesakes.is_empty() {
            notes.push(format!(
                "polls of {name} include those of devices of the same name in {}: tracepoints identify devices by name only",
                one.namesakes.join(", ")
            ));
        }
    }
    if let Err(why) = &report.measured.timer_expiries {
        notes.push(format!("deferral timers are not counted: {why}"));
    }
    let mut seen = std::collections::BTreeSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    notes
}

/// Returns the value of `abey set --threaded` for a context.
fn threaded(context: PollContext) -> &'static str {
    match context {
        PollContext::Softirq => "no",
        PollContext::BusyThread => "busy",
        PollContext::Thread | PollContext::Workqueue => "yes",
    }
}
