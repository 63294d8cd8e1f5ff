//! Which station has which address: the neighbour cache (RFC 826, RFC 4861; names of states as in RFC 4861, 7.3.2).
//!
//! An entry is *incomplete* while its first answer is awaited and a few packets wait for it, *reachable* for a time after an
//! answer, and then *probed* by the next packet that uses it, which goes to the old address meanwhile. Three questions
//! without an answer and it is gone. Nothing that is not asked for makes an entry, except a question to us, whose asker we
//! are about to answer. The cache and each queue are bounded; a flood of addresses pushes out the entries used longest ago.

use core::net::IpAddr;
use std::collections::{HashMap, VecDeque};

use foldhash::quality::FixedState;
use slotmap::SlotMap;

use crate::{
    counters::Counters,
    packet::Station,
    time::{Instant, SECOND},
    wheel::{Step, Wheel},
};

/// How long an answer is believed.
const REACHABLE: u64 = 30 * SECOND;
/// Between questions.
const RETRY: u64 = SECOND;
/// Questions before giving up.
const TRIES: u8 = 3;
/// Packets that wait for one answer.
const WAITING: usize = 16;

slotmap::new_key_type! {
    struct NeighborId;
}

#[derive(Debug)]
enum State {
    Incomplete {
        tries: u8,
        waiting: VecDeque<Vec<u8>>,
    },
    Reachable {
        station: Station,
        until: Instant,
    },
    Probing {
        station: Station,
        tries: u8,
    },
    /// Told by the caller: never asked for.
    Permanent {
        station: Station,
    },
}

#[derive(Debug)]
struct Neighbor {
    address: IpAddr,
    state: State,
    used: Instant,
}

/// The cache of one shard.
#[derive(Debug)]
pub(crate) struct Neighbors {
    entries: SlotMap<NeighborId, Neighbor>,
    by_address: HashMap<IpAddr, NeighborId, FixedState>,
    wheel: Wheel<NeighborId>,
    /// Whom to ask for.
    requests: VecDeque<IpAddr>,
    limit: usize,
}

impl Neighbors {
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

    /// The station of `address`, if it is known.
    pub(crate) fn lookup(&mut self, now: Instant, address: IpAddr) -> Option<Station> {
        let id = *self.by_address.get(&address)?;
        let entry = &mut self.entries[id];
        entry.used = now;
        match entry.state {
            State::Incomplete { .. } => None,
            State::Probing { station, .. } | State::Permanent { station } => Some(station),
            State::Reachable { station, until } => {
                if until <= now {
                    entry.state = State::Probing { station, tries: 1 };
                    self.ask(now, id, address);
                }
                Some(station)
            }
        }
    }

    /// Lets `frame`, complete but for its destination station, wait for `address`.
    pub(crate) fn wait_for(&mut self, now: Instant, address: IpAddr, frame: Vec<u8>, counters: &mut Counters) {
        let id = self.by_address.get(&address).copied();
        let id = id.unwrap_or_else(|| {
            let id = self.insert(now, address, State::Incomplete { tries: 1, waiting: VecDeque::new() }, counters);
            self.ask(now, id, address);
            id
        });
        if let State::Incomplete { waiting, .. } = &mut self.entries[id].state {
            if waiting.len() >= WAITING {
                waiting.pop_front();
                counters.neighbor_queue_drops += 1;
            }
            waiting.push_back(frame);
        }
    }

    /// `station` says that it has `address`. `solicited`: in an answer to us, or in a question to us. `each` gets the
    /// frames that waited, now complete.
    pub(crate) fn learn(
        &mut self,
        now: Instant,
        address: IpAddr,
        station: Station,
        create: bool,
        counters: &mut Counters,
        mut each: impl FnMut(Vec<u8>),
    ) {
        let state = State::Reachable { station, until: now.plus(REACHABLE) };
        let Some(&id) = self.by_address.get(&address) else {
            if create {
                self.insert(now, address, state, counters);
            }
            return;
        };
        if matches!(self.entries[id].state, State::Permanent { .. }) {
            return;
        }
        self.replace(id, state, station, &mut each);
    }

    /// The caller knows that `station` has `address`, for good.
    pub(crate) fn set(
        &mut self,
        now: Instant,
        address: IpAddr,
        station: Station,
        counters: &mut Counters,
        mut each: impl FnMut(Vec<u8>),
    ) {
        let state = State::Permanent { station };
        match self.by_address.get(&address) {
            Some(&id) => self.replace(id, state, station, &mut each),
            None => {
                self.insert(now, address, state, counters);
            }
        }
    }

    /// Forgets `address`.
    pub(crate) fn forget(&mut self, address: IpAddr, counters: &mut Counters) {
        if let Some(&id) = self.by_address.get(&address) {
            self.remove(id, counters);
        }
    }

    /// Forgets `address`, which does not answer; the frames that waited for it.
    pub(crate) fn fail(&mut self, address: IpAddr, counters: &mut Counters) -> VecDeque<Vec<u8>> {
        let Some(&id) = self.by_address.get(&address) else { return VecDeque::new() };
        counters.neighbor_failures += 1;
        self.remove(id, counters)
    }

    fn replace(&mut self, id: NeighborId, state: State, station: Station, each: &mut impl FnMut(Vec<u8>)) {
        self.wheel.remove(id);
        if let State::Incomplete { waiting, .. } = core::mem::replace(&mut self.entries[id].state, state) {
            for mut frame in waiting {
                frame[..6].copy_from_slice(&station);
                each(frame);
            }
        }
    }

    /// The next address to ask for.
    pub(crate) fn next_request(&mut self) -> Option<IpAddr> {
        self.requests.pop_front()
    }

    pub(crate) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.wheel.next_wake()
    }

    /// One step of time: `None` when nothing is due, else the frames that waited for a neighbour who is given up.
    pub(crate) fn handle_timeout(&mut self, now: Instant, counters: &mut Counters) -> Option<VecDeque<Vec<u8>>> {
        let id = match self.wheel.pop(now) {
            Step::Idle => return None,
            Step::Moved => return Some(VecDeque::new()),
            Step::Expired(id) => id,
        };
        let Some(entry) = self.entries.get_mut(id) else { return Some(VecDeque::new()) };
        let address = entry.address;
        match &mut entry.state {
            State::Incomplete { tries, .. } | State::Probing { tries, .. } if *tries < TRIES => {
                *tries += 1;
                self.ask(now, id, address);
            }
            State::Incomplete { .. } | State::Probing { .. } => {
                counters.neighbor_failures += 1;
                return Some(self.remove(id, counters));
            }
            State::Reachable { .. } | State::Permanent { .. } => {}
        }
        Some(VecDeque::new())
    }

    fn ask(&mut self, now: Instant, id: NeighborId, address: IpAddr) {
        if self.requests.len() < self.limit {
            self.requests.push_back(address);
        }
        self.wheel.set(id, Some(now.plus(RETRY)));
    }

    fn insert(&mut self, now: Instant, address: IpAddr, state: State, counters: &mut Counters) -> NeighborId {
        if self.entries.len() >= self.limit {
            let evictable = |entry: &&Neighbor| !matches!(entry.state, State::Permanent { .. });
            let oldest = self.entries.values().filter(evictable).min_by_key(|entry| entry.used);
            if let Some(id) = oldest.map(|entry| self.by_address[&entry.address]) {
                self.remove(id, counters);
            }
        }
        let id = self.entries.insert(Neighbor { address, state, used: now });
        self.by_address.insert(address, id);
        id
    }

    /// Forgets entry `id`; what waited for it is dropped.
    fn remove(&mut self, id: NeighborId, counters: &mut Counters) -> VecDeque<Vec<u8>> {
        self.wheel.remove(id);
        let Some(entry) = self.entries.remove(id) else { return VecDeque::new() };
        self.by_address.remove(&entry.address);
        let State::Incomplete { waiting, .. } = entry.state else { return VecDeque::new() };
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

    fn pass(neighbors: &mut Neighbors, now: Instant, counters: &mut Counters) {
        while neighbors.handle_timeout(now, counters).is_some() {}
    }

    #[test]
    fn packets_wait_and_leave_when_the_answer_comes() {
        let (mut neighbors, mut counters) = (Neighbors::new(8, 1), Counters::default());
        for number in 0..20 {
            neighbors.wait_for(Instant(0), ip(2), vec![number; 20], &mut counters);
        }
        assert_eq!(counters.neighbor_queue_drops, 4);
        assert_eq!((neighbors.next_request(), neighbors.next_request()), (Some(ip(2)), None));
        let mut left = Vec::new();
        neighbors.learn(Instant(1), ip(2), [7; 6], false, &mut counters, |frame| left.push(frame));
        assert_eq!(left.len(), WAITING);
        assert_eq!((left[0][..6].to_vec(), left[0][6]), (vec![7; 6], 4));
        assert_eq!(neighbors.lookup(Instant(2), ip(2)), Some([7; 6]));
        assert_eq!(neighbors.next_wake(), None);
    }

    #[test]
    fn a_neighbour_that_does_not_answer_is_given_up() {
        let (mut neighbors, mut counters) = (Neighbors::new(8, 1), Counters::default());
        neighbors.wait_for(Instant(0), ip(2), vec![0; 20], &mut counters);
        for second in 1..=4 {
            pass(&mut neighbors, Instant(second * (SECOND + 100_000)), &mut counters);
        }
        assert_eq!((counters.neighbor_failures, counters.neighbor_queue_drops, neighbors.len()), (1, 1, 0));
        assert_eq!(neighbors.requests.len(), usize::from(TRIES));
    }

    #[test]
    fn an_old_entry_is_used_while_it_is_asked_for_again() {
        let (mut neighbors, mut counters) = (Neighbors::new(8, 1), Counters::default());
        neighbors.learn(Instant(0), ip(2), [7; 6], true, &mut counters, |_| ());
        let later = Instant(31 * SECOND);
        assert_eq!(neighbors.lookup(later, ip(2)), Some([7; 6]));
        assert_eq!(neighbors.next_request(), Some(ip(2)));
        for second in 33..37 {
            pass(&mut neighbors, Instant(second * (SECOND + 100_000)), &mut counters);
        }
        assert_eq!(neighbors.lookup(Instant(40 * SECOND), ip(2)), None);
    }

    #[test]
    fn a_flood_stays_within_bounds_and_strangers_make_no_entry() {
        let (mut neighbors, mut counters) = (Neighbors::new(4, 1), Counters::default());
        neighbors.set(Instant(0), ip(1), [1; 6], &mut counters, |_| ());
        for last in 2..200 {
            neighbors.wait_for(Instant(last.into()), ip(last), vec![0; 20], &mut counters);
        }
        assert_eq!((neighbors.len(), neighbors.wheel.len()), (4, 3));
        assert_eq!(neighbors.lookup(Instant(300), ip(1)), Some([1; 6]), "the permanent one stays");
        neighbors.learn(Instant(300), ip(250), [9; 6], false, &mut counters, |_| ());
        assert_eq!(neighbors.lookup(Instant(300), ip(250)), None);
    }
}
