//! Running datapaths, over connections that are kept.

use std::collections::BTreeMap;

use abey_datapath::Counters;
use abey_datapath::control::{self, Client, ControlError, Shard, Status, Threaded, find};
use abey_delivery::{Family, ModeSettings, Nanos};
use glob::Pattern;

use crate::counts::{Counter, Counts};
use crate::kernel::is_wanted;
use crate::sample::{Datapath, Instance, Key, Settings, World};

/// How long to go on with the connections there are before looking for others.
const LOOK_EVERY: Nanos = Nanos::from_millis(3_000);

/// How long one that did not answer is left alone: the others are not to wait for it every time.
const SILENCE: Nanos = Nanos::from_millis(30_000);

/// The datapaths that this user may ask.
#[derive(Debug)]
pub(crate) struct Datapaths {
    wanted: Vec<Pattern>,
    clients: Vec<Client>,
    looked: Option<Nanos>,
    /// Why some are not in.
    unreachable: Option<String>,
    /// Processes that did not answer: when, and what is said of it.
    silent: BTreeMap<u32, (Nanos, String)>,
    shards: BTreeMap<Key, Course>,
}

/// What a shard counted so far, and what it said last.
#[derive(Debug, Default)]
struct Course {
    said: Counters,
    counts: Counts,
}

impl Datapaths {
    /// Those whose NICs match one of the patterns; without any, all.
    pub(crate) fn new(patterns: &[Pattern]) -> Self {
        Self {
            wanted: patterns.to_vec(),
            clients: Vec::new(),
            looked: None,
            unreachable: None,
            silent: BTreeMap::new(),
            shards: BTreeMap::new(),
        }
    }

    /// The datapaths there are and their instances; and why that may not be all.
    pub(crate) fn read(&mut self, now: Nanos) -> (Vec<Datapath>, Vec<Instance>, Result<(), String>) {
        let looked = self.look(now);
        let (mut datapaths, mut instances) = (Vec::new(), Vec::new());
        let mut clients = std::mem::take(&mut self.clients);
        self.silent.retain(|_, (since, _)| now.saturating_sub(*since) < SILENCE);
        let mut failed = self.silent.values().next().map(|(_, why)| why.clone());
        clients.retain(|client| {
            let pid = client.pid();
            if self.silent.contains_key(&pid) {
                return true;
            }
            match client.status() {
                Ok(status) => {
                    // Its own number of itself may be that of another PID namespace.
                    let status = Status { pid, ..status };
                    if is_wanted(&self.wanted, &status.nic) {
                        instances.extend(status.shards.iter().map(|shard| instance(&mut self.shards, &status, shard)));
                        datapaths.push(Datapath { status });
                    }
                    true
                }
                // It has ended, which is no failure of ours; whether another is there in its place, the next look tells.
                Err(ControlError::Gone { .. }) => {
                    self.looked = None;
                    false
                }
                Err(error) => {
                    if matches!(error, ControlError::Silent { .. }) {
                        self.silent.insert(pid, (now, error.to_string()));
                        // What is left of the conversation would be the answer to another question.
                        self.looked = None;
                    }
                    failed = Some(error.to_string());
                    !matches!(error, ControlError::Silent { .. })
                }
            }
        });
        self.clients = clients;
        self.shards.retain(|key, _| instances.iter().any(|one: &Instance| one.key == *key));
        let why = looked.err().or(failed).or_else(|| self.unreachable.clone());
        (datapaths, instances, why.map_or(Ok(()), Err))
    }

    fn look(&mut self, now: Nanos) -> Result<(), String> {
        if self.looked.is_some_and(|looked| now.saturating_sub(looked) < LOOK_EVERY) {
            return Ok(());
        }
        let found = find().map_err(|error| error.to_string())?;
        self.looked = Some(now);
        self.unreachable = None;
        self.clients.clear();
        for one in found {
            match one {
                Ok(client) => self.clients.push(client),
                Err(unreachable) => self.unreachable = Some(unreachable.error.to_string()),
            }
        }
        Ok(())
    }
}

fn instance(shards: &mut BTreeMap<Key, Course>, status: &Status, shard: &Shard) -> Instance {
    let key = Key { world: World::Datapath, pid: status.pid, napi: shard.napi };
    let course = shards.entry(key).or_default();
    course.go_on(shard);
    let mut counts = course.counts;
    let service = status.threads.iter().filter(|thread| thread.napi == Some(shard.napi));
    if let Some(time) = service.map(|thread| thread.cpu_ns).sum::<Option<u64>>() {
        counts.set(Counter::ThreadNanos, time);
    }
    let whole = control::Settings {
        napi: shard.settings,
        busy_poll: status.busy_poll,
        max_wait_ns: status.max_wait_ns,
        socket_busy_poll_ns: status.socket_busy_poll_ns,
    };
    Instance {
        key,
        device: status.nic.clone(),
        queues: vec![shard.queue],
        mode: shard.mode.clone().unwrap_or_else(|| "other".to_owned()),
        family: Family::of(&ModeSettings::from(whole)),
        settings: Settings {
            defer_hard_irqs: shard.settings.defer_hard_irqs,
            gro_flush_timeout: Nanos::from_nanos(shard.settings.gro_flush_timeout_ns),
            irq_suspend_timeout: Nanos::from_nanos(shard.settings.irq_suspend_timeout_ns),
        },
        irq: None,
        counts,
    }
}

impl Course {
    /// Takes in what the shard says now.
    fn go_on(&mut self, shard: &Shard) {
        let said = Counters::from_named(|name| shard.counters.get(name).copied().unwrap_or(0));
        // Another runtime of the same process that took the number over begins anew.
        let since = if said.polls() < self.said.polls() { said } else { said.since(&self.said) };
        self.said = said;
        self.counts.add(&counts(&since, shard.settings.threaded));
    }
}

/// A shard's counters as an instance's. A timer that went off polls in the softirq, if that is what polls here.
fn counts(said: &Counters, threaded: Threaded) -> Counts {
    let softirq = said.softirq_polls + said.softirq_thread_polls;
    let timer = if threaded == Threaded::No { said.timer_polls.min(softirq) } else { 0 };
    let mut counts = Counts::default();
    for (counter, count) in [
        (Counter::SoftirqPolls, softirq - timer),
        (Counter::TimerPolls, timer),
        (Counter::BusyPolls, said.busy_polls),
        (Counter::ThreadPolls, said.thread_polls + said.worker_polls),
        (Counter::EmptyPolls, said.empty_polls),
        (Counter::Packets, said.packets),
        (Counter::BusyPollPackets, said.busy_poll_packets),
        (Counter::Suspensions, said.suspensions),
        (Counter::Resumes, said.resumes),
        (Counter::Timers, said.timer_polls),
        (Counter::Interrupts, said.interrupts),
    ] {
        counts.set(counter, count);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_of_the_timer_are_told_from_the_softirqs_others() {
        let said = Counters::from_named(|name| match name {
            "softirq_polls" => 10,
            "softirq_thread_polls" => 2,
            "timer_polls" => 5,
            "worker_polls" => 3,
            _ => 0,
        });
        let got = counts(&said, Threaded::No);
        assert_eq!((got.get(Counter::SoftirqPolls), got.get(Counter::TimerPolls)), (Some(7), Some(5)));
        assert_eq!((got.get(Counter::ThreadPolls), got.polls()), (Some(3), Some(15)));
        let got = counts(&said, Threaded::Yes);
        assert_eq!((got.get(Counter::SoftirqPolls), got.get(Counter::TimerPolls)), (Some(12), Some(0)));
    }
}
