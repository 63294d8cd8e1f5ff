//! Running datapaths, read over control connections that stay open between samples.

use std::collections::BTreeMap;

use abey_datapath::Counters;
use abey_datapath::control::{Client, ControlError, Shard, Status, find, statuses};
use abey_delivery::{Family, ModeSettings, Nanos, PollContext};
use abey_text::visible_within;
use glob::Pattern;

use crate::counts::{Counter, Counts};
use crate::kernel::matches_any;
use crate::sample::{Datapath, Instance, InstanceKey, Owner};

/// Interval between two searches for control sockets.
const SEARCH_INTERVAL: Nanos = Nanos::from_millis(3_000);

/// The most datapaths that are read, and the most instances, reasons of drops and roles of threads of each.
const MAX_DATAPATHS: usize = 256;
const MAX_SHARDS: usize = 128;
const MAX_REASONS: usize = 32;
const MAX_CONTEXTS: usize = 16;
/// The longest text of a label, in characters.
const MAX_LABEL: usize = 64;

/// How long a process that did not answer is skipped, so that it does not delay every sample.
const RETRY_DELAY: Nanos = Nanos::from_millis(30_000);

/// The datapaths that the current user may query.
#[derive(Debug)]
pub(crate) struct Datapaths {
    patterns: Vec<Pattern>,
    clients: Vec<Client>,
    last_search: Option<Nanos>,
    /// The error of a control socket that refused the connection.
    unreachable: Option<String>,
    /// Processes that did not answer, with the time and the error. Those of other users are no failure.
    silent: BTreeMap<(u32, u32), (Nanos, Option<String>)>,
    shards: BTreeMap<InstanceKey, ShardCounts>,
}

/// The accumulated counts of a shard, and the counters it reported last.
#[derive(Debug, Default)]
struct ShardCounts {
    reported: Counters,
    counts: Counts,
}

impl Datapaths {
    /// Creates a reader for datapaths whose NIC matches one of the patterns; without patterns, for all.
    pub(crate) fn new(patterns: &[Pattern]) -> Self {
        Self {
            patterns: patterns.to_vec(),
            clients: Vec::new(),
            last_search: None,
            unreachable: None,
            silent: BTreeMap::new(),
            shards: BTreeMap::new(),
        }
    }

    /// Returns the datapaths and their instances, and an error if some could not be read.
    pub(crate) fn read(&mut self, now: Nanos) -> (Vec<Datapath>, Vec<Instance>, Result<(), String>) {
        let searched = self.search(now);
        let (mut datapaths, mut instances) = (Vec::new(), Vec::new());
        let clients = std::mem::take(&mut self.clients);
        self.silent.retain(|_, (since, _)| now.saturating_sub(*since) < RETRY_DELAY);
        let mut failed = self.silent.values().find_map(|(_, error)| error.clone());
        let (silent, clients): (Vec<Client>, Vec<Client>) = clients
            .into_iter()
            .take(MAX_DATAPATHS)
            .partition(|client| self.silent.contains_key(&(client.pid(), client.number())));
        self.clients = silent;
        let mut keep = |client: &Client, status: Result<Status, ControlError>| {
            let (pid, socket) = (client.pid(), client.number());
            match status {
                Ok(status) => {
                    // The process may report its PID as seen in another PID namespace.
                    let status = bounded(Status { pid, ..status });
                    if matches_any(&self.patterns, &status.nic) {
                        instances.extend(
                            status.shards.iter().map(|shard| instance(&mut self.shards, &status, socket, shard)),
                        );
                        datapaths.push(Datapath { status, socket });
                    }
                    true
                }
                // The process has ended, which is no error. The next search finds its successor.
                Err(ControlError::Gone { .. }) => {
                    self.last_search = None;
                    false
                }
                Err(error) => {
                    let failure = client.user().is_none().then(|| error.to_string());
                    if matches!(error, ControlError::Silent { .. }) {
                        self.silent.insert((pid, socket), (now, failure.clone()));
                        // Drop the connection: a late reply would be taken for the reply to the next request.
                        self.last_search = None;
                    }
                    failed = failure.or(failed.take());
                    !matches!(error, ControlError::Silent { .. })
                }
            }
        };
        let answered: Vec<Client> = statuses(clients)
            .into_iter()
            .filter_map(|(client, status)| keep(&client, status).then_some(client))
            .collect();
        self.clients.extend(answered);
        self.shards.retain(|key, _| instances.iter().any(|one: &Instance| one.key == *key));
        let error = searched.err().or(failed).or_else(|| self.unreachable.clone());
        (datapaths, instances, error.map_or(Ok(()), Err))
    }

    fn search(&mut self, now: Nanos) -> Result<(), String> {
        if self.last_search.is_some_and(|last| now.saturating_sub(last) < SEARCH_INTERVAL) {
            return Ok(());
        }
        let found = find().map_err(|error| error.to_string())?;
        self.last_search = Some(now);
        self.unreachable = None;
        self.clients.clear();
        for one in found {
            match one {
                Ok(client) => self.clients.push(client),
                Err(unreachable) if unreachable.user.is_none() => {
                    self.unreachable = Some(unreachable.error.to_string())
                }
                // Any user can make this fail for his own datapaths.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Returns a status with as much of it as becomes labels: the process that reports it may be any user's. Its texts have no
/// control characters already ([`Client`]).
fn bounded(mut status: Status) -> Status {
    let label = |text: &mut String| *text = visible_within(text, MAX_LABEL).into_owned();
    label(&mut status.nic);
    label(&mut status.program);
    status.shards.truncate(MAX_SHARDS);
    for shard in &mut status.shards {
        shard.mode.iter_mut().for_each(label);
        let drops = std::mem::take(&mut shard.nic.drops).into_iter().take(MAX_REASONS);
        let named = |(reason, count): (String, u64)| (visible_within(&reason, MAX_LABEL).into_owned(), count);
        shard.nic.drops = drops.map(named).collect();
    }
    status.contexts.truncate(MAX_CONTEXTS);
    status
}

fn instance(shards: &mut BTreeMap<InstanceKey, ShardCounts>, status: &Status, socket: u32, shard: &Shard) -> Instance {
    let key = InstanceKey { owner: Owner::Datapath, pid: status.pid, socket, napi: shard.napi };
    let accumulated = shards.entry(key).or_default();
    accumulated.update(shard);
    let mut counts = accumulated.counts;
    let service = status.threads.iter().filter(|thread| thread.napi == Some(shard.napi));
    if let Some(time) = service.map(|thread| thread.cpu_ns).sum::<Option<u64>>() {
        counts.set(Counter::ThreadNanos, time);
    }
    let settings = ModeSettings {
        napi: shard.settings,
        epoll: status.busy_poll,
        max_wait: status.max_wait_ns.map(Nanos::from_nanos),
        socket_busy_poll: status.socket_busy_poll_ns.map(Nanos::from_nanos),
    };
    Instance {
        key,
        device: status.nic.clone(),
        queues: vec![shard.queue],
        mode: shard.mode.clone().unwrap_or_else(|| "other".to_owned()),
        family: Family::of(&settings),
        settings: shard.settings,
        irq: None,
        counts,
    }
}

impl ShardCounts {
    /// Adds what the shard counted since its last report.
    fn update(&mut self, shard: &Shard) {
        let reported = Counters::from_named(|name| shard.counters.get(name).copied().unwrap_or(0));
        // A new runtime of the same process may reuse the NAPI ID; its counters start at zero.
        let since = if reported.polls() < self.reported.polls() { reported } else { reported.since(&self.reported) };
        self.reported = reported;
        self.counts.add(&counts(&since, shard.settings.context));
    }
}

/// Converts a shard's counters. A deferral timer polls in softirq, unless the instance polls in a thread.
fn counts(reported: &Counters, context: PollContext) -> Counts {
    let softirq = reported.softirq_polls + reported.softirq_thread_polls;
    let timer = if context == PollContext::Softirq { reported.timer_polls.min(softirq) } else { 0 };
    let mut counts = Counts::default();
    for (counter, count) in [
        (Counter::SoftirqPolls, softirq - timer),
        (Counter::TimerPolls, timer),
        (Counter::BusyPolls, reported.busy_polls),
        (Counter::ThreadPolls, reported.thread_polls + reported.worker_polls),
        (Counter::EmptyPolls, reported.empty_polls),
        (Counter::Packets, reported.packets),
        (Counter::BusyPollPackets, reported.busy_poll_packets),
        (Counter::Suspensions, reported.suspensions),
        (Counter::Resumes, reported.resumes),
        (Counter::Timers, reported.timer_polls),
        (Counter::Interrupts, reported.interrupts),
    ] {
        counts.set(counter, count);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_polls_are_separate_from_other_softirq_polls() {
        let reported = Counters::from_named(|name| match name {
            "softirq_polls" => 10,
            "softirq_thread_polls" => 2,
            "timer_polls" => 5,
            "worker_polls" => 3,
            _ => 0,
        });
        let got = counts(&reported, PollContext::Softirq);
        assert_eq!((got.get(Counter::SoftirqPolls), got.get(Counter::TimerPolls)), (Some(7), Some(5)));
        assert_eq!((got.get(Counter::ThreadPolls), got.polls()), (Some(3), Some(15)));
        let got = counts(&reported, PollContext::Thread);
        assert_eq!((got.get(Counter::SoftirqPolls), got.get(Counter::TimerPolls)), (Some(12), Some(0)));
    }
}
