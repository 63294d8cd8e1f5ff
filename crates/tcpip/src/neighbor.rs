//! Neighbour cache: Ethernet addresses by IP address (RFC 826, RFC 4861; states as in RFC 4861, section 7.3.2).
//!
//! An entry is *incomplete* until the first answer, while a few packets wait for it. It is *reachable* for a time
//! after an answer. The next packet after that starts to *probe* the neighbour and is sent to the known address
//! meanwhile. An entry is removed after three unanswered solicitations. A message creates an entry only if it is a
//! request to this host, which is about to be answered. The cache and each queue are bounded; a flood of addresses
//! evicts the least recently used entries.

use core::net::IpAddr;
use std::collections::{HashMap, VecDeque};

use foldhash::quality::FixedState;
use slotmap::SlotMap;

use crate::{
    counters::Counters,
    packet::MacAddr,
    time::{Instant, SECOND},
    wheel::{Step, Wheel},
};

/// How long an answer stays valid (REACHABLE_TIME of RFC 4861, section 10).
const REACHABLE_TIME: u64 = 30 * SECOND;
/// Time between solicitations (RETRANS_TIMER of RFC 4861, section 10).
const RETRANS_TIMER: u64 = SECOND;
/// Unanswered solicitations before an entry is removed (MAX_MULTICAST_SOLICIT of RFC 4861, section 10).
const MAX_SOLICITATIONS: u8 = 3;
/// Maximum number of packets that wait for one answer.
const MAX_QUEUED_FRAMES: usize = 16;

slotmap::new_key_type! {
    /// Identifier of an entry; it stays invalid after the entry was removed.
    pub(crate) struct NeighborId;
}

#[derive(Debug)]
enum NeighborState {
    Incomplete {
        tries: u8,
        waiting: VecDeque<Vec<u8>>,
    },
    Reachable {
        mac: MacAddr,
        expires_at: Instant,
    },
    Probing {
        mac: MacAddr,
        tries: u8,
    },
    /// Set by the caller; never probed and never evicted.
    Permanent {
        mac: MacAddr,
    },
}

#[derive(Debug)]
struct Neighbor {
    address: IpAddr,
    state: NeighborState,
    last_used: Instant,
}

/// Neighbour cache of one shard.
#[derive(Debug)]
pub(crate) struct NeighborCache {
    entries: SlotMap<NeighborId, Neighbor>,
    by_address: HashMap<IpAddr, NeighborId, FixedState>,
    wheel: Wheel<NeighborId>,
    /// Addresses to solicit.
    requests: VecDeque<IpAddr>,
    limit: usize,
}

impl NeighborCache {
    pub(crate) fn new(limit: usize, seed: u64) -> Self {
        Self {
            entries: SlotMap::with_key(),
            by_address: HashMap::with_hasher(FixedState::with_seed(seed)),
            wheel: Wheel::new(),
            requests: VecDeque::new(),
            limit,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entry of `address`.
    pub(crate) fn find(&self, address: IpAddr) -> Option<NeighborId> {
        self.by_address.get(&address).copied()
    }

    /// Returns the Ethernet address of entry `id`, if it is known, and starts probing if the entry is too old.
    pub(crate) fn lookup(&mut self, now: Instant, id: NeighborId) -> Option<MacAddr> {
        let entry = self.entries.get_mut(id)?;
        entry.last_used = now;
        match entry.state {
            NeighborState::Incomplete { .. } => None,
            NeighborState::Probing { mac, .. } | NeighborState::Permanent { mac } => Some(mac),
            NeighborState::Reachable { mac, expires_at } => {
                if expires_at <= now {
                    entry.state = NeighborState::Probing { mac, tries: 1 };
                    let address = entry.address;
                    self.solicit(now, id, address);
                }
                Some(mac)
            }
        }
    }

    /// Queues `frame`, which lacks only its destination Ethernet address, until `address` is resolved.
    pub(crate) fn queue_frame(&mut self, now: Instant, address: IpAddr, frame: Vec<u8>, counters: &mut Counters) {
        let id = self.by_address.get(&address).copied();
        let id = id.unwrap_or_else(|| {
            let id =
                self.insert(now, address, NeighborState::Incomplete { tries: 1, waiting: VecDeque::new() }, counters);
            self.solicit(now, id, address);
            id
        });
        if let NeighborState::Incomplete { waiting, .. } = &mut self.entries[id].state {
            if waiting.len() >= MAX_QUEUED_FRAMES {
                waiting.pop_front();
                counters.neighbor_queue_drops += 1;
            }
            waiting.push_back(frame);
        }
    }

    /// Records that `address` has the Ethernet address `mac`. If there is no entry, one is added only if `create` is
    /// set. Permanent entries are not changed. Calls `each` with the frames that waited, now complete.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: MacAddr,
        create: bool,
        counters: &mut Counters,
        mut each: impl FnMut(Vec<u8>),
    ) {
        let state = NeighborState::Reachable { mac, expires_at: now.plus(REACHABLE_TIME) };
        let Some(&id) = self.by_address.get(&address) else {
            if create {
                self.insert(now, address, state, counters);
            }
            return;
        };
        if matches!(self.entries[id].state, NeighborState::Permanent { .. }) {
            return;
        }
        self.replace(id, state, mac, &mut each);
    }

    /// Adds or replaces the entry of `address` with a permanent one.
    pub(crate) fn insert_permanent(
        &mut self,
        now: Instant,
        address: IpAddr,
        mac: MacAddr,
        counters: &mut Counters,
        mut each: impl FnMut(Vec<u8>),
    ) {
        let state = NeighborState::Permanent { mac };
        match self.by_address.get(&address) {
            Some(&id) => self.replace(id, state, mac, &mut each),
            None => {
                self.insert(now, address, state, counters);
            }
        }
    }

    /// Removes the entry of `address`. Frames that wait for it are dropped.
    pub(crate) fn forget(&mut self, address: IpAddr, counters: &mut Counters) {
        if let Some(&id) = self.by_address.get(&address) {
            self.remove(id, counters);
        }
    }

    /// Removes the entry of `address`, which does not answer. Returns the frames that waited for it.
    pub(crate) fn fail(&mut self, address: IpAddr, counters: &mut Counters) -> VecDeque<Vec<u8>> {
        let Some(&id) = self.by_address.get(&address) else { return VecDeque::new() };
        counters.neighbor_failures += 1;
        self.remove(id, counters)
    }

    fn replace(&mut self, id: NeighborId, state: NeighborState, mac: MacAddr, each: &mut impl FnMut(Vec<u8>)) {
        self.wheel.remove(id);
        if let NeighborState::Incomplete { waiting, .. } = core::mem::replace(&mut self.entries[id].state, state) {
            for mut frame in waiting {
                frame[..6].copy_from_slice(&mac);
                each(frame);
            }
        }
    }

    /// Returns the next address to solicit.
    pub(crate) fn next_request(&mut self) -> Option<IpAddr> {
        self.requests.pop_front()
    }

    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.wheel.next_wake()
    }

    /// Advances the timers by one step. Returns `None` if nothing is due, else the frames that waited for a neighbour
    /// that did not answer.
    pub(crate) fn handle_timeout(&mut self, now: Instant, counters: &mut Counters) -> Option<VecDeque<Vec<u8>>> {
        let id = match self.wheel.pop(now) {
            Step::Idle => return None,
            Step::Moved => return Some(VecDeque::new()),
            Step::Expired(id) => id,
        };
        let Some(entry) = self.entries.get_mut(id) else { return Some(VecDeque::new()) };
        let address = entry.address;
        match &mut entry.state {
            NeighborState::Incomplete { tries, .. } | NeighborState::Probing { tries, .. }
                if *tries < MAX_SOLICITATIONS =>
            {
                *tries += 1;
                self.solicit(now, id, address);
            }
            NeighborState::Incomplete { .. } | NeighborState::Probing { .. } => {
                counters.neighbor_failures += 1;
                return Some(self.remove(id, counters));
            }
            NeighborState::Reachable { .. } | NeighborState::Permanent { .. } => {}
        }
        Some(VecDeque::new())
    }

    fn solicit(&mut self, now: Instant, id: NeighborId, address: IpAddr) {
        if self.requests.len() < self.limit {
            self.requests.push_back(address);
        }
        self.wheel.set(id, Some(now.plus(RETRANS_TIMER)));
    }

    fn insert(&mut self, now: Instant, address: IpAddr, state: NeighborState, counters: &mut Counters) -> NeighborId {
        if self.entries.len() >= self.limit {
            let evictable = |entry: &&Neighbor| !matches!(entry.state, NeighborState::Permanent { .. });
            let oldest = self.entries.values().filter(evictable).min_by_key(|entry| entry.last_used);
            if let Some(id) = oldest.map(|entry| self.by_address[&entry.address]) {
                self.remove(id, counters);
            }
        }
        let id = self.entries.insert(Neighbor { address, state, last_used: now });
        self.by_address.insert(address, id);
        id
    }

    /// Removes entry `id`. Returns the frames that waited for it, which are counted as dropped.
    fn remove(&mut self, id: NeighborId, counters: &mut Counters) -> VecDeque<Vec<u8>> {
        self.wheel.remove(id);
        let Some(entry) = self.entries.remove(id) else { return VecDeque::new() };
        self.by_address.remove(&entry.address);
        let NeighborState::Incomplete { waiting, .. } = entry.state else { return VecDeque::new() };
        counters.neighbor_queue_drops += waiting.len() as u64;
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn lookup(neighbors: &mut NeighborCache, now: Instant, address: IpAddr) -> Option<MacAddr> {
        let id = neighbors.find(address)?;
        neighbors.lookup(now, id)
    }

    fn pass(neighbors: &mut NeighborCache, now: Instant, counters: &mut Counters) {
        while neighbors.handle_timeout(now, counters).is_some() {}
    }

    #[test]
    fn packets_are_queued_until_the_answer_arrives() {
        let (mut neighbors, mut counters) = (NeighborCache::new(8, 1), Counters::default());
        for number in 0..20 {
            neighbors.queue_frame(Instant(0), ip(2), vec![number; 20], &mut counters);
        }
        assert_eq!(counters.neighbor_queue_drops, 4);
        assert_eq!((neighbors.next_request(), neighbors.next_request()), (Some(ip(2)), None));
        let mut left = Vec::new();
        neighbors.learn(Instant(1), ip(2), [7; 6], false, &mut counters, |frame| left.push(frame));
        assert_eq!(left.len(), MAX_QUEUED_FRAMES);
        assert_eq!((left[0][..6].to_vec(), left[0][6]), (vec![7; 6], 4));
        assert_eq!(lookup(&mut neighbors, Instant(2), ip(2)), Some([7; 6]));
        assert_eq!(neighbors.next_wake(), None);
    }

    #[test]
    fn a_neighbour_that_does_not_answer_is_removed() {
        let (mut neighbors, mut counters) = (NeighborCache::new(8, 1), Counters::default());
        neighbors.queue_frame(Instant(0), ip(2), vec![0; 20], &mut counters);
        for second in 1..=4 {
            pass(&mut neighbors, Instant(second * (SECOND + 100_000)), &mut counters);
        }
        assert_eq!((counters.neighbor_failures, counters.neighbor_queue_drops, neighbors.len()), (1, 1, 0));
        assert_eq!(neighbors.requests.len(), usize::from(MAX_SOLICITATIONS));
    }

    #[test]
    fn an_old_entry_is_used_while_it_is_probed() {
        let (mut neighbors, mut counters) = (NeighborCache::new(8, 1), Counters::default());
        neighbors.learn(Instant(0), ip(2), [7; 6], true, &mut counters, |_| ());
        let later = Instant(31 * SECOND);
        assert_eq!(lookup(&mut neighbors, later, ip(2)), Some([7; 6]));
        assert_eq!(neighbors.next_request(), Some(ip(2)));
        for second in 33..37 {
            pass(&mut neighbors, Instant(second * (SECOND + 100_000)), &mut counters);
        }
        assert_eq!(lookup(&mut neighbors, Instant(40 * SECOND), ip(2)), None);
    }

    #[test]
    fn the_cache_is_bounded_and_unsolicited_answers_add_no_entry() {
        let (mut neighbors, mut counters) = (NeighborCache::new(4, 1), Counters::default());
        neighbors.insert_permanent(Instant(0), ip(1), [1; 6], &mut counters, |_| ());
        for last in 2..200 {
            neighbors.queue_frame(Instant(last.into()), ip(last), vec![0; 20], &mut counters);
        }
        assert_eq!((neighbors.len(), neighbors.wheel.len()), (4, 3));
        assert_eq!(lookup(&mut neighbors, Instant(300), ip(1)), Some([1; 6]), "the permanent one stays");
        neighbors.learn(Instant(300), ip(250), [9; 6], false, &mut counters, |_| ());
        assert_eq!(lookup(&mut neighbors, Instant(300), ip(250)), None);
    }
}
