//! The kernel's instances: over one netlink conversation, with what seldom changes remembered.

use std::collections::{BTreeMap, BTreeSet};

use abey_delivery::{Family, ModeSettings, Nanos};
use abey_linux::cpu::ProcessCpuClock;
use abey_linux::device::devices;
use abey_linux::napi::{Napi, napis, rx_queues};
use abey_linux::netlink::{Netlink, NetlinkError};
use abey_linux::netns::NetNs;
use abey_linux::verdict::recognise_napi;
use glob::Pattern;

use crate::counts::{Counter, Counts};
use crate::sample::{Instance, Key, Settings, World};

/// How old a device's name may be: one that was renamed is noticed by then.
const NAMES_LAST: Nanos = Nanos::from_millis(10_000);

/// The instances of one namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    netns: NetNs,
    wanted: Vec<Pattern>,
    conversation: Option<Conversation>,
    /// Of devices, and when they were read.
    names: BTreeMap<u32, String>,
    named: Option<Nanos>,
    /// Of instances, read when there are others than before.
    queues: BTreeMap<u32, Vec<u32>>,
    /// Of threads that poll, by their numbers.
    clocks: BTreeMap<u32, ProcessCpuClock>,
}

struct Conversation(Netlink);

impl std::fmt::Debug for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Netlink")
    }
}

impl Kernel {
    /// Devices whose names match one of the patterns; without any, all.
    pub(crate) fn new(netns: NetNs, patterns: &[Pattern]) -> Self {
        Self {
            netns,
            wanted: patterns.to_vec(),
            conversation: None,
            names: BTreeMap::new(),
            named: None,
            queues: BTreeMap::new(),
            clocks: BTreeMap::new(),
        }
    }

    /// The instances as they are now, their threads' CPU time counted.
    pub(crate) fn instances(&mut self, now: Nanos) -> Result<Vec<Instance>, NetlinkError> {
        let mut netlink = match self.conversation.take() {
            Some(Conversation(netlink)) => netlink,
            None => Netlink::open(&self.netns)?,
        };
        // A conversation that failed is not gone on with.
        let found = self.read(&mut netlink, now)?;
        self.conversation = Some(Conversation(netlink));
        Ok(found)
    }

    fn read(&mut self, netlink: &mut Netlink, now: Nanos) -> Result<Vec<Instance>, NetlinkError> {
        let mut found = napis(netlink, None)?;
        self.update_names(netlink, &found, now)?;
        found.retain(|napi| self.names.get(&napi.ifindex).is_some_and(|name| is_wanted(&self.wanted, name)));
        self.update_queues(netlink, &found);
        let threads: BTreeSet<u32> = found.iter().filter_map(|napi| napi.thread).collect();
        self.clocks.retain(|thread, _| threads.contains(thread));
        Ok(found.into_iter().map(|napi| self.instance(&napi)).collect())
    }

    fn update_names(&mut self, netlink: &mut Netlink, found: &[Napi], now: Nanos) -> Result<(), NetlinkError> {
        let is_fresh = self.named.is_some_and(|named| now.saturating_sub(named) < NAMES_LAST);
        if !is_fresh || found.iter().any(|napi| !self.names.contains_key(&napi.ifindex)) {
            self.names = devices(netlink)?.into_iter().map(|device| (device.ifindex, device.name)).collect();
            self.named = Some(now);
        }
        Ok(())
    }

    fn update_queues(&mut self, netlink: &mut Netlink, found: &[Napi]) {
        if found.len() == self.queues.len() && found.iter().all(|napi| self.queues.contains_key(&napi.id)) {
            return;
        }
        self.queues = found.iter().map(|napi| (napi.id, Vec::new())).collect();
        let devices: BTreeSet<u32> = found.iter().map(|napi| napi.ifindex).collect();
        for ifindex in devices {
            // Which queue an instance serves is a detail: without it, the instances are still worth showing.
            for (queue, id) in rx_queues(netlink, ifindex).unwrap_or_default() {
                self.queues.entry(id).or_default().push(queue);
            }
        }
        self.queues.retain(|id, _| found.iter().any(|napi| napi.id == *id));
    }

    fn instance(&mut self, napi: &Napi) -> Instance {
        let settings = napi.settings();
        let mut counts = Counts::default();
        if let Some(time) = napi.thread.and_then(|thread| self.cpu_time(thread)) {
            counts.set(Counter::ThreadNanos, time);
        }
        Instance {
            key: Key { world: World::Linux, pid: 0, napi: napi.id },
            device: self.names.get(&napi.ifindex).cloned().unwrap_or_default(),
            queues: self.queues.get(&napi.id).cloned().unwrap_or_default(),
            family: Family::of(&ModeSettings { napi: settings, ..ModeSettings::default() }),
            mode: recognise_napi(&settings).to_string(),
            settings: Settings {
                defer_hard_irqs: settings.defer_hard_irqs,
                gro_flush_timeout: settings.gro_flush_timeout,
                irq_suspend_timeout: settings.irq_suspend_timeout,
            },
            irq: napi.irq,
            counts,
        }
    }

    /// In nanoseconds; a thread that has just gone has none.
    fn cpu_time(&mut self, thread: u32) -> Option<u64> {
        let clock = match self.clocks.get(&thread) {
            Some(clock) => *clock,
            None => *self.clocks.entry(thread).or_insert(ProcessCpuClock::of(thread).ok()?),
        };
        Some(clock.read().ok()?.as_nanos() as u64)
    }
}

/// Whether a name matches one of the patterns, or there are none.
pub(crate) fn is_wanted(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_matched_by_any_pattern() {
        let patterns = |all: &[&str]| all.iter().map(|one| Pattern::new(one).expect("a pattern")).collect::<Vec<_>>();
        assert!(is_wanted(&[], "eth0"));
        assert!(is_wanted(&patterns(&["ens*", "eth?"]), "eth0"));
        assert!(!is_wanted(&patterns(&["ens*", "eth?"]), "eth10"));
    }
}
