//! One datapath in detail: its shards, epolls, threads, sockets and counters, in tables.

use std::collections::BTreeMap;
use std::time::Duration;

use abey_datapath::control::{ContextCpu, Role, Shard, Socket, SocketPage, Status, Thread};
use abey_delivery::Nanos;

use super::datapath::{DatapathSample, POLLS_BY_SOFTIRQ, POLLS_BY_THREADS, seconds_between, total};
use super::tables::{NONE, table};

/// Returns the blocks of text about one datapath.
pub(super) fn detail(one: &DatapathSample) -> Vec<String> {
    let DatapathSample { status, before, .. } = one;
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

/// Returns the CPU time by role of the threads.
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

/// Returns the sockets of all shards and the number of further ones; `None` if there is none.
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

fn headline(one: &DatapathSample) -> String {
    let status = &one.status;
    let mode = match &status.mode {
        Some(mode) => format!("mode {mode}"),
        None => "settings of no single mode".to_owned(),
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
        settings.gro_flush_timeout.to_string(),
        settings.irq_suspend_timeout.to_string(),
        settings.context.to_string(),
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

/// Returns the epoll instances, equal ones in one line.
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

/// Returns the counters that are not 0, in one line.
fn counted(what: &str, counters: BTreeMap<String, u64>) -> Option<String> {
    let some: Vec<String> =
        counters.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    (!some.is_empty()).then(|| format!("{what}: {}", some.join(", ")))
}
