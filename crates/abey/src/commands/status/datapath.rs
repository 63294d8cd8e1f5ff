//! Running datapaths: beside the kernel's devices as one line each, and one in detail.

mod detail;

use std::collections::BTreeMap;

use abey_datapath::control::{MOST_SOCKETS, Shard, SocketPage, Status};
use serde::Serialize;

use super::tables::table;
use crate::datapath_world::{Datapath, Datapaths};
use crate::failure::Failure;
use crate::output::document_text;
use detail::detail;

/// Datapaths that are looked at a second time after a while.
pub(super) struct Sampling {
    datapaths: Datapaths,
    /// With their sockets.
    whole: bool,
}

/// A datapath and what it did meanwhile.
#[derive(Serialize)]
pub(super) struct Sampled {
    #[serde(flatten)]
    status: Status,
    /// What its counters, together, grew by in a second; those of the stack are not in.
    per_s: BTreeMap<String, f64>,
    /// Of one CPU: the process, and in it the runtime's own threads.
    process_cpu_percent: f64,
    threads_cpu_percent: Option<f64>,
    /// The sockets of each shard, where they were asked for and it could list them.
    #[serde(skip_serializing_if = "Option::is_none")]
    sockets: Option<Vec<SocketPage>>,
    #[serde(skip)]
    before: Status,
}

impl Sampling {
    pub(super) fn start(datapaths: Datapaths) -> Self {
        Self { datapaths, whole: false }
    }

    /// Those that are still there, and what is to be said about the others.
    pub(super) fn finish(self) -> (Vec<Sampled>, Vec<String>) {
        let Datapaths { reached, unreachable } = self.datapaths;
        let mut notes: Vec<String> = unreachable.into_iter().map(|one| one.error.to_string()).collect();
        let mut sampled = Vec::new();
        for Datapath { client, status: before } in reached {
            match client.status() {
                // Its own number of itself may be that of another PID namespace.
                Ok(status) => {
                    let mut one = Sampled::between(before, Status { pid: client.pid(), ..status });
                    if self.whole {
                        match client.sockets(MOST_SOCKETS) {
                            Ok(pages) => one.sockets = Some(pages),
                            Err(error) => notes.push(format!("the sockets are not listed: {error}")),
                        }
                    }
                    sampled.push(one);
                }
                Err(error) => notes.push(error.to_string()),
            }
        }
        for Sampled { status, .. } in &sampled {
            notes.extend(troubles(status));
        }
        (sampled, notes)
    }
}

/// What the operator should put right.
fn troubles(status: &Status) -> impl Iterator<Item = String> {
    let says = |why: &String| format!("{} of pid {}: {why}", status.nic, status.pid);
    status
        .shards
        .iter()
        .flat_map(move |Shard { nic, failed, .. }| [&nic.warning, failed].into_iter().flatten().map(says))
}

impl Sampled {
    fn between(before: Status, status: Status) -> Self {
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
            status,
            before,
        }
    }

    fn rate(&self, names: &[&str]) -> String {
        let sum: f64 = names.iter().filter_map(|name| self.per_s.get(*name)).sum();
        format!("{sum:.0}")
    }
}

fn seconds_between(before: &Status, after: &Status) -> f64 {
    // Never by nothing.
    after.uptime_ns.saturating_sub(before.uptime_ns).max(1) as f64 / 1e9
}

/// The shards' counters together.
fn total(status: &Status) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (name, count) in status.shards.iter().flat_map(|shard| &shard.counters) {
        *sum.entry(name.clone()).or_default() += count;
    }
    sum
}

fn threads_cpu(status: &Status) -> Option<u64> {
    status.threads.iter().map(|thread| thread.cpu_ns).sum()
}

const POLLS_BY_SOFTIRQ: [&str; 2] = ["softirq_polls", "softirq_thread_polls"];
const POLLS_BY_THREADS: [&str; 2] = ["thread_polls", "worker_polls"];
const SYSTEM_CALLS: [&str; 3] = ["application_calls", "service_calls", "worker_calls"];

/// One line for each.
pub(super) fn list(sampled: &[Sampled]) -> String {
    let row = |one: &Sampled| {
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

/// Shows datapaths, one after the other, with everything that is known of them; the text, or a JSON document.
pub(super) fn show(datapaths: Datapaths, pause: impl FnOnce(), json: bool) -> Result<String, Failure> {
    let sampling = Sampling { datapaths, whole: true };
    pause();
    let (sampled, notes) = sampling.finish();
    if sampled.is_empty() {
        return Err(Failure::check(notes.first().map_or("the datapath has just ended", String::as_str)));
    }
    if json {
        return document_text(&Document { rows: [], datapaths: &sampled, notes: &notes });
    }
    let mut blocks: Vec<String> = sampled.iter().flat_map(detail).collect();
    blocks.push(notes.iter().map(|note| format!("note: {note}")).collect::<Vec<_>>().join("\n"));
    blocks.retain(|block| !block.is_empty());
    Ok(format!("{}\n", blocks.join("\n\n")))
}

#[derive(Serialize)]
struct Document<'a> {
    /// The kernel's instances are not what was asked about.
    rows: [(); 0],
    datapaths: &'a [Sampled],
    notes: &'a [String],
}
