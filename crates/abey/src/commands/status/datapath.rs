//! Running datapaths: beside the kernel's devices as one line each, and one in detail.

use std::collections::BTreeMap;
use std::time::Duration;

use abey_datapath::control::{ContextCpu, MOST_SOCKETS, Role, Shard, Socket, SocketPage, Status, Thread};
use abey_delivery::Nanos;
use serde::Serialize;

use super::tables::{NONE, table};
use crate::datapath_world::{Datapath, Datapaths};
use crate::failure::Failure;
use crate::output::document_text;

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

fn detail(one: &Sampled) -> Vec<String> {
    let Sampled { status, before, .. } = one;
    let seconds = seconds_between(before, status);
    let mut blocks = vec![
        headline(one),
        table(SHARD_HEADER, status.shards.iter().map(|shard| shard_row(shard, before, seconds)).collect()).trim_fmt(),
    ];
    if !status.epolls.is_empty() {
        blocks.push(epolls(status));
    }
    if !status.contexts.is_empty() {
        blocks.push(contexts(status, before, seconds));
    }
    let thread = |thread: &Thread| thread_row(thread, before, seconds);
    blocks.push(
        table(["thread", "tid", "role", "NAPI", "CPUs", "CPU%", "CPU ms"], status.threads.iter().map(thread).collect())
            .trim_fmt(),
    );
    blocks.extend(one.sockets.as_deref().and_then(sockets));
    let drops =
        status.shards.iter().flat_map(|shard| shard.nic.drops.iter().map(|(name, count)| (name.clone(), *count)));
    blocks.push(
        [
            counted("counted", total(status)),
            counted("counted by the TCP/IP stack", status.stack.clone()),
            counted(
                "dropped by the NIC",
                drops.fold(BTreeMap::new(), |mut sum, (name, count)| {
                    *sum.entry(name).or_default() += count;
                    sum
                }),
            ),
        ]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("\n"),
    );
    blocks
}

/// CPU time by what threads are for.
fn contexts(status: &Status, before: &Status, seconds: f64) -> String {
    let row = |context: &ContextCpu| {
        let old = before.contexts.iter().find(|old| old.role == context.role);
        let percent = |of: fn(&ContextCpu) -> u64| {
            format!("{:.1}", of(context).saturating_sub(old.map_or(0, of)) as f64 / 1e7 / seconds)
        };
        [
            context.role.map_or("application", Role::name).to_owned(),
            context.threads.to_string(),
            percent(|context| context.cpu_ns),
            percent(|context| context.kernel_ns),
            (context.cpu_ns / 1_000_000).to_string(),
        ]
    };
    table(["CPU of", "threads", "CPU%", "in kernel%", "CPU ms"], status.contexts.iter().map(row).collect()).trim_fmt()
}

/// The sockets of all shards, and how many more there are; `None` if there is none at all.
fn sockets(pages: &[SocketPage]) -> Option<String> {
    let row = |page: &SocketPage, socket: &Socket| {
        [
            socket.transport.clone(),
            socket.state.clone(),
            socket.local.to_string(),
            or_none(socket.remote),
            page.queue.to_string(),
            page.napi.to_string(),
            socket.unread.to_string(),
            socket.unsent.to_string(),
            socket.holder.clone(),
        ]
    };
    let rows: Vec<_> = pages.iter().flat_map(|page| page.sockets.iter().map(|socket| row(page, socket))).collect();
    if rows.is_empty() {
        return None;
    }
    let header = ["socket", "state", "local", "remote", "queue", "NAPI", "unread", "unsent", "holder"];
    let mut text = table(header, rows).trim_fmt();
    let more: usize = pages.iter().map(|page| page.more).sum();
    if more > 0 {
        text += &format!("\nand {more} more");
    }
    Some(text)
}

fn headline(one: &Sampled) -> String {
    let status = &one.status;
    let mode = match &status.mode {
        Some(mode) => format!("mode {mode}"),
        None => "settings of no one mode".to_owned(),
    };
    let up = Duration::from_nanos(status.uptime_ns).as_secs();
    let mut line = format!(
        "{}: {} (pid {}), {mode}, {}, up {up} s, CPU {:.1} %",
        status.nic,
        status.program,
        status.pid,
        status.addresses.join(" "),
        one.process_cpu_percent,
    );
    if let Some(own) = one.threads_cpu_percent {
        line += &format!(" of which {own:.1} % in its own threads");
    }
    let span = |ns: u64| Nanos::from_nanos(ns);
    if let Some(ns) = status.max_wait_ns {
        line += &format!(", waits at most {}", span(ns));
    }
    if let Some(ns) = status.socket_busy_poll_ns {
        line += &format!(", blocking calls poll for {}", span(ns));
    }
    line
}

const SHARD_HEADER: [&str; 16] = [
    "queue",
    "NAPI",
    "mode",
    "link",
    "masked",
    "defer-hard-irqs",
    "gro-flush-timeout",
    "irq-suspend-timeout",
    "threaded",
    "hold",
    "sockets",
    "packets/s",
    "IRQ/s",
    "softirq/s",
    "busy/s",
    "thread/s",
];

fn shard_row(shard: &Shard, before: &Status, seconds: f64) -> [String; 16] {
    let old = before.shards.iter().find(|old| old.napi == shard.napi);
    let count = |of: &Shard, names: &[&str]| names.iter().filter_map(|name| of.counters.get(*name)).sum::<u64>();
    let rate = |names: &[&str]| {
        let old = old.map_or(0, |old| count(old, names));
        format!("{:.0}", count(shard, names).saturating_sub(old) as f64 / seconds)
    };
    let settings = &shard.settings;
    [
        shard.queue.to_string(),
        shard.napi.to_string(),
        shard.mode.clone().unwrap_or_else(|| "other".to_owned()),
        if shard.nic.up { "up" } else { "down" }.to_owned(),
        if shard.masked { "yes" } else { "no" }.to_owned(),
        settings.defer_hard_irqs.to_string(),
        Nanos::from_nanos(settings.gro_flush_timeout_ns).to_string(),
        Nanos::from_nanos(settings.irq_suspend_timeout_ns).to_string(),
        settings.threaded.to_string(),
        or_none(settings.hold),
        shard.sockets.to_string(),
        rate(&["packets"]),
        rate(&["interrupts"]),
        rate(&POLLS_BY_SOFTIRQ),
        rate(&["busy_polls"]),
        rate(&POLLS_BY_THREADS),
    ]
}

fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

/// Those that are alike in one line.
fn epolls(status: &Status) -> String {
    let mut rows: Vec<([String; 4], usize)> = Vec::new();
    for epoll in &status.epolls {
        let napis: Vec<String> = epoll.napis.iter().map(u32::to_string).collect();
        let row = [
            epoll.busy_poll.map_or_else(|| "not set".to_owned(), |busy| busy.to_string()),
            epoll.sockets.to_string(),
            if napis.is_empty() { NONE.to_owned() } else { napis.join(",") },
            epoll.sleeping.to_string(),
        ];
        match rows.iter_mut().find(|(other, _)| *other == row) {
            Some((_, count)) => *count += 1,
            None => rows.push((row, 1)),
        }
    }
    let row = |([busy, sockets, napis, sleeping], count): ([String; 4], usize)| {
        [count.to_string(), busy, sockets, napis, sleeping]
    };
    table(["epolls", "busy poll", "sockets", "NAPI", "sleeping"], rows.into_iter().map(row).collect()).trim_fmt()
}

fn thread_row(thread: &Thread, before: &Status, seconds: f64) -> [String; 7] {
    let old = before.threads.iter().find(|old| old.tid == thread.tid).and_then(|old| old.cpu_ns);
    let percent =
        old.zip(thread.cpu_ns).map(|(old, new)| format!("{:.1}", new.saturating_sub(old) as f64 / 1e7 / seconds));
    [
        thread.name.clone(),
        thread.tid.to_string(),
        thread.role.name().to_owned(),
        or_none(thread.napi),
        or_none(thread.cpus.as_ref()),
        or_none(percent),
        or_none(thread.cpu_ns.map(|ns| ns / 1_000_000)),
    ]
}

/// What is not 0, in one line.
fn counted(what: &str, counters: BTreeMap<String, u64>) -> Option<String> {
    let some: Vec<String> =
        counters.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    (!some.is_empty()).then(|| format!("{what}: {}", some.join(", ")))
}
