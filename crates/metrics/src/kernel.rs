//! The kernel's NAPI instances, read over one netlink socket. Device names and queues, which seldom change, are cached.

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
use crate::sample::{Instance, InstanceKey, Owner};

/// Maximum age of the cached device names. A renamed device shows its new name within this time.
const MAX_NAME_AGE: Nanos = Nanos::from_millis(10_000);

/// The instances of one network namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    netns: NetNs,
    patterns: Vec<Pattern>,
    socket: Option<NetlinkSocket>,
    /// Device names by interface index.
    names: BTreeMap<u32, String>,
    /// When the names were read.
    names_read_at: Option<Nanos>,
    /// Receive queues by NAPI ID, read anew when the set of instances changes.
    queues: BTreeMap<u32, Vec<u32>>,
    /// CPU clocks of polling threads by thread ID.
    clocks: BTreeMap<u32, ProcessCpuClock>,
}

/// A netlink socket with a `Debug` implementation.
struct NetlinkSocket(Netlink);

impl std::fmt::Debug for NetlinkSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Netlink")
    }
}

impl Kernel {
    /// Creates a reader for devices whose names match one of the patterns; without patterns, for all.
    pub(crate) fn new(netns: NetNs, patterns: &[Pattern]) -> Self {
        Self {
            netns,
            patterns: patterns.to_vec(),
            socket: None,
            names: BTreeMap::new(),
            names_read_at: None,
            queues: BTreeMap::new(),
            clocks: BTreeMap::new(),
        }
    }

    /// Returns the instances, with the CPU time of their threads.
    pub(crate) fn instances(&mut self, now: Nanos) -> Result<Vec<Instance>, NetlinkError> {
        let mut netlink = match self.socket.take() {
            Some(NetlinkSocket(netlink)) => netlink,
            None => Netlink::open(&self.netns)?,
        };
        // After an error the socket is closed: it may hold unread replies.
        let found = self.read(&mut netlink, now)?;
        self.socket = Some(NetlinkSocket(netlink));
        Ok(found)
    }

    fn read(&mut self, netlink: &mut Netlink, now: Nanos) -> Result<Vec<Instance>, NetlinkError> {
        let mut found = napis(netlink, None)?;
        self.update_names(netlink, &found, now)?;
        found.retain(|napi| self.names.get(&napi.ifindex).is_some_and(|name| matches_any(&self.patterns, name)));
        self.update_queues(netlink, &found);
        let threads: BTreeSet<u32> = found.iter().filter_map(|napi| napi.thread).collect();
        self.clocks.retain(|thread, _| threads.contains(thread));
        Ok(found.into_iter().map(|napi| self.instance(&napi)).collect())
    }

    fn update_names(&mut self, netlink: &mut Netlink, found: &[Napi], now: Nanos) -> Result<(), NetlinkError> {
        let is_fresh = self.names_read_at.is_some_and(|at| now.saturating_sub(at) < MAX_NAME_AGE);
        if !is_fresh || found.iter().any(|napi| !self.names.contains_key(&napi.ifindex)) {
            self.names = devices(netlink)?.into_iter().map(|device| (device.ifindex, device.name)).collect();
            self.names_read_at = Some(now);
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
            // Without their queues the instances are still shown.
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
            key: InstanceKey { owner: Owner::Linux, pid: 0, socket: 0, napi: napi.id },
            device: self.names.get(&napi.ifindex).cloned().unwrap_or_default(),
            queues: self.queues.get(&napi.id).cloned().unwrap_or_default(),
            family: Family::of(&ModeSettings { napi: settings, ..ModeSettings::default() }),
            mode: recognise_napi(&settings).to_string(),
            settings,
            irq: napi.irq,
            counts,
        }
    }

    /// Returns the CPU time of a thread in nanoseconds; `None` if the thread has ended.
    fn cpu_time(&mut self, thread: u32) -> Option<u64> {
        let clock = match self.clocks.get(&thread) {
            Some(clock) => *clock,
            None => *self.clocks.entry(thread).or_insert(ProcessCpuClock::of(thread).ok()?),
        };
        Some(clock.read().ok()?.as_nanos() as u64)
    }
}

/// Returns whether a name matches one of the patterns, or there are none.
pub(crate) fn matches_any(patterns: &[Pattern], name: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_matches_any_of_the_patterns() {
        let patterns = |all: &[&str]| all.iter().map(|one| Pattern::new(one).expect("a pattern")).collect::<Vec<_>>();
        assert!(matches_any(&[], "eth0"));
        assert!(matches_any(&patterns(&["ens*", "eth?"]), "eth0"));
        assert!(!matches_any(&patterns(&["ens*", "eth?"]), "eth10"));
    }
}
