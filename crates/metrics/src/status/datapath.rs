//! Running datapaths: one line each, and one in detail.

use std::collections::BTreeMap;

use abey_datapath::control::{Shard, SocketPage, Status};
use serde::Serialize;

use super::detail::detail;
use super::tables::table;

/// A datapath and what its counters grew by in an interval.
#[derive(Debug, Serialize)]
pub struct DatapathSample {
    #[serde(flatten)]
    pub(super) status: Status,
    /// The growth per second of the sum of the shards' counters.
    pub(super) per_s: BTreeMap<String, f64>,
    /// CPU time in percent of one CPU: of the process, and of the runtime's own threads in it.
    pub(super) process_cpu_percent: f64,
    pub(super) threads_cpu_percent: Option<f64>,
    /// The sockets of each shard, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Vec<SocketPage>>,
    /// Whether the PID namespace of this process contains it, so that its process ID is one of this namespace.
    #[serde(skip)]
    pub is_local: bool,
    #[serde(skip)]
    pub(super) before: Status,
}

impl DatapathSample {
    /// Computes the differences between two statuses of one datapath.
    #[must_use]
    pub fn between(before: Status, status: Status) -> Self {
        let (old, new) = (total(&before), total(&status));
        let seconds = seconds_between(&before, &status);
        let grown =
            |name: &String, count: u64| count.saturating_sub(old.get(name).copied().unwrap_or(0)) as f64 / seconds;
        let per_s = new.iter().map(|(name, count)| (name.clone(), grown(name, *count))).collect();
        let percent = |old: u64, new: u64| new.saturating_sub(old) as f64 / 1e7 / seconds;
        let threads = threads_cpu(&before).zip(threads_cpu(&status));
        Self {
            per_s,
            process_cpu_percent: percent(before.process_cpu_ns, status.process_cpu_ns),
            threads_cpu_percent: threads.map(|(old, new)| percent(old, new)),
            sockets: None,
            is_local: true,
            status,
            before,
        }
    }

    /// Returns the ID of its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.status.pid
    }

    /// Returns the name of its NIC.
    #[must_use]
    pub fn nic(&self) -> &str {
        &self.status.nic
    }

    /// Returns the warnings and failures that the operator should fix.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let status = &self.status;
        let sentence = |text: &String| format!("{} of pid {}: {text}", status.nic, status.pid);
        status
            .shards
            .iter()
            .flat_map(move |Shard { nic, failed, .. }| [&nic.warning, failed].into_iter().flatten().map(sentence))
    }

    /// Returns the sum of the rates of these counters.
    fn rate(&self, names: &[&str]) -> String {
        let sum: f64 = names.iter().filter_map(|name| self.per_s.get(*name)).sum();
        format!("{sum:.0}")
    }
}

/// Returns the seconds between two statuses, never zero.
pub(super) fn seconds_between(before: &Status, after: &Status) -> f64 {
    after.uptime_ns.saturating_sub(before.uptime_ns).max(1) as f64 / 1e9
}

/// Returns the sum of the shards' counters.
pub(super) fn total(status: &Status) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (name, count) in status.shards.iter().flat_map(|shard| &shard.counters) {
        *sum.entry(name.clone()).or_default() += count;
    }
    sum
}

fn threads_cpu(status: &Status) -> Option<u64> {
    status.threads.iter().map(|thread| thread.cpu_ns).sum()
}

pub(super) const POLLS_BY_SOFTIRQ: [&str; 2] = ["softirq_polls", "softirq_thread_polls"];
pub(super) const POLLS_BY_THREADS: [&str; 2] = ["thread_polls", "worker_polls"];
const SYSTEM_CALLS: [&str; 3] = ["application_calls", "service_calls", "worker_calls"];

/// Returns a table with one line for each datapath.
pub(super) fn list(sampled: &[DatapathSample]) -> String {
    let row = |one: &DatapathSample| {
        let status = &one.status;
        let napis: Vec<String> = status.shards.iter().map(|shard| shard.napi.to_string()).collect();
        [
            status.nic.clone(),
            status.pid.to_string(),
            status.program.clone(),
            status.mode.clone().unwrap_or_else(|| "other".to_owned()),
            napis.join(","),
            status.shards.iter().map(|shard| shard.sockets).sum::<usize>().to_string(),
            one.rate(&["packets"]),
            one.rate(&["interrupts"]),
            one.rate(&POLLS_BY_SOFTIRQ),
            one.rate(&["busy_polls"]),
            one.rate(&POLLS_BY_THREADS),
            one.rate(&SYSTEM_CALLS),
            format!("{:.1}", one.process_cpu_percent),
        ]
    };
    let header = [
        "datapath",
        "pid",
        "program",
        "mode",
        "NAPI",
        "sockets",
        "packets/s",
        "IRQ/s",
        "softirq/s",
        "busy/s",
        "thread/s",
        "syscalls/s",
        "CPU%",
    ];
    table(header, sampled.iter().map(row).collect()).trim_fmt()
}

/// Returns the datapaths in detail, one after the other, as text with a newline at the end.
#[must_use]
pub fn datapath_text(samples: &[DatapathSample], notes: &[String]) -> String {
    let mut blocks: Vec<String> = samples.iter().flat_map(detail).collect();
    blocks.push(notes.iter().map(|note| format!("note: {note}")).collect::<Vec<_>>().join("\n"));
    blocks.retain(|block| !block.is_empty());
    format!("{}\n", blocks.join("\n\n"))
}

/// Returns the JSON document of datapaths.
#[must_use]
pub fn datapath_document<'a>(samples: &'a [DatapathSample], notes: &'a [String]) -> impl Serialize + 'a {
    #[derive(Serialize)]
    struct Document<'a> {
        /// Always empty: NAPI instances of the kernel were not requested.
        rows: [(); 0],
        datapaths: &'a [DatapathSample],
        notes: &'a [String],
    }
    Document { rows: [], datapaths: samples, notes }
}
