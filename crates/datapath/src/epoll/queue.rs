//! The inside of an epoll: its interest list, the queue of sockets that may have events, and the threads that sleep.
//!
//! Lock order: a shard's lock, then this one. Posting happens with the shard's lock held; so what needs to know what a
//! socket is ready for takes it out of the queue first, lets go, and then asks the shard.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abey_delivery::{EpollBusyPoll, EpollConfig, EpollContext, Nanos, NapiId};
use abey_tcpip::{Readiness, SocketId};
use slotmap::SlotMap;

use super::bell::Bell;
use super::interest::{Event, Interest};
use crate::shard::Shard;
use crate::sleeper::Sleeper;

slotmap::new_key_type! {
    /// An entry of an interest list; that of one that is gone is never another one's.
    pub(crate) struct EntryKey;
}

/// A socket in a shard, by the number of the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) shard: u32,
    pub(crate) socket: SocketId,
}

#[derive(Debug)]
pub(super) struct Entry {
    name: u32,
    pub(super) token: u64,
    pub(super) interest: Interest,
    pub(super) parts: Vec<Place>,
    /// Its instances are not the context's on its account.
    listens: bool,
    edges: Readiness,
    queued: bool,
    /// It was one-shot, and has been told.
    spent: bool,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) context: EpollContext,
    pub(super) entries: SlotMap<EntryKey, Entry>,
    /// By the place, and the name that the socket was added under.
    pub(super) by_place: HashMap<(Place, u32), EntryKey>,
    ready: VecDeque<EntryKey>,
    pub(super) sleepers: Vec<Arc<Sleeper>>,
    pub(super) bell: Option<Bell>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(super) shards: Arc<[Arc<Shard>]>,
    inner: Mutex<Inner>,
    /// A wait is to end early; set and looked at before a sleep with `inner` locked.
    interrupted: AtomicBool,
    /// Nanoseconds in busy polls that found nothing.
    spun: AtomicU64,
}

/// What came of posting an event.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    /// System calls.
    pub(crate) calls: u64,
    /// A thread that slept was woken.
    pub(crate) woke: bool,
}

/// A socket that may have events, taken out of the queue to be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    key: EntryKey,
    place: Place,
    interest: Interest,
    edges: Readiness,
    readiness: Readiness,
}

impl Queue {
    pub(crate) fn new(shards: Arc<[Arc<Shard>]>, busy: Option<EpollBusyPoll>) -> Self {
        let inner = Inner {
            context: EpollContext::new(EpollConfig::default(), busy),
            entries: SlotMap::with_key(),
            by_place: HashMap::new(),
            ready: VecDeque::new(),
            sleepers: Vec::new(),
            bell: None,
        };
        Self { shards, inner: Mutex::new(inner), interrupted: AtomicBool::new(false), spun: AtomicU64::new(0) }
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shard(&self, id: NapiId) -> Option<&Arc<Shard>> {
        self.shards.iter().find(|shard| shard.id == id)
    }

    /// Something happened to a socket. Its shard's lock is held.
    pub(crate) fn post(&self, key: EntryKey, edges: Readiness) -> Posted {
        self.inner().post(key, edges)
    }

    /// An entry's socket is closed. The instances in the answer are to be resumed, without any lock held.
    #[must_use]
    pub(crate) fn remove(&self, key: EntryKey) -> Vec<NapiId> {
        let mut inner = self.inner();
        let Some(entry) = inner.entries.remove(key) else { return Vec::new() };
        inner.forget(&entry, &self.shards)
    }

    /// Resumes instances.
    pub(crate) fn resume(&self, ids: Vec<NapiId>) {
        for shard in ids.into_iter().filter_map(|id| self.shard(id)) {
            shard.resume();
        }
    }

    /// Announces that a thread goes to sleep. False: something is ready, or it was woken already.
    pub(super) fn begin_sleep(&self, sleeper: &Arc<Sleeper>) -> bool {
        let mut inner = self.inner();
        if !inner.ready.is_empty() || self.is_interrupted() || !sleeper.begin() {
            return false;
        }
        inner.sleepers.push(sleeper.clone());
        true
    }

    /// The thread does not sleep any more.
    pub(super) fn end_sleep(&self, sleeper: &Arc<Sleeper>) {
        self.inner().sleepers.retain(|other| !Arc::ptr_eq(other, sleeper));
    }

    /// One wait is to end early.
    pub(super) fn interrupt(&self) {
        let mut inner = self.inner();
        self.interrupted.store(true, Ordering::Relaxed);
        for sleeper in std::mem::take(&mut inner.sleepers) {
            sleeper.wake();
        }
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Whether the calling thread's wait is the one to end early.
    pub(super) fn take_interrupt(&self) -> bool {
        self.is_interrupted() && self.interrupted.swap(false, Ordering::Relaxed)
    }

    /// A wait spent so long in busy polls that found nothing.
    pub(super) fn spun(&self, time: Nanos) {
        if time > Nanos::ZERO {
            self.spun.fetch_add(time.as_nanos(), Ordering::Relaxed);
        }
    }

    pub(super) fn time_spun(&self) -> Nanos {
        Nanos::from_nanos(self.spun.load(Ordering::Relaxed))
    }

    /// Wakes every thread that sleeps.
    pub(crate) fn wake_all(&self) {
        for sleeper in std::mem::take(&mut self.inner().sleepers) {
            sleeper.wake();
        }
    }

    pub(crate) fn set_busy_poll(&self, busy: Option<EpollBusyPoll>) {
        let resume = self.inner().context.handle_parameters(busy);
        self.resume(resume);
        // A thread that sleeps begins anew, and so by the new parameters.
        self.wake_all();
    }

    /// Collects up to `max` events; none only if no socket in the queue has any. `candidates` is scratch.
    pub(super) fn harvest(&self, candidates: &mut Vec<Candidate>, events: &mut Vec<Event>, max: usize) {
        // Sockets that were told of and have been emptied since are in the queue still, before others.
        while events.is_empty() && self.inner().take_candidates(candidates, max) {
            #[cfg(test)]
            crate::replay::point();
            self.ask(candidates);
            #[cfg(test)]
            crate::replay::point();
            self.inner().report(candidates, events);
        }
    }

    /// Asks the shards what the candidates are ready for.
    pub(super) fn ask(&self, candidates: &mut [Candidate]) {
        let mut rest = candidates;
        while let Some(first) = rest.first() {
            let shard = first.place.shard;
            let run = rest.iter().take_while(|candidate| candidate.place.shard == shard).count();
            let (now, later) = rest.split_at_mut(run);
            self.shards[shard as usize].with(|core| {
                for candidate in &mut *now {
                    let room = candidate.interest.contains(Interest::OUT);
                    candidate.readiness = core.readiness(candidate.place.socket, room);
                }
                core.begin_burst(now.iter().filter(|candidate| !candidate.told().is_empty()).count());
            });
            rest = later;
        }
    }
}

impl Candidate {
    /// What is to be told of it.
    pub(super) fn told(&self) -> Readiness {
        self.told_for(self.interest)
    }

    fn told_for(&self, interest: Interest) -> Readiness {
        let conditions = interest.conditions();
        let is_news = !interest.contains(Interest::EDGE) || self.edges.intersects(conditions);
        if is_news { self.readiness.and(conditions) } else { Readiness::NONE }
    }
}

impl Inner {
    pub(super) fn insert(
        &mut self,
        name: u32,
        token: u64,
        interest: Interest,
        parts: Vec<Place>,
        listens: bool,
    ) -> EntryKey {
        let places = parts.clone();
        let (edges, queued, spent) = (Readiness::NONE, false, false);
        let key = self.entries.insert(Entry { name, token, interest, parts, listens, edges, queued, spent });
        for place in places {
            self.by_place.insert((place, name), key);
        }
        key
    }

    pub(super) fn set(&mut self, key: EntryKey, token: u64, interest: Interest) {
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.token, entry.interest, entry.spent) = (token, interest, false);
        }
    }

    /// The entry is out of the list: its instances may be without sockets here now.
    pub(super) fn forget(&mut self, entry: &Entry, shards: &[Arc<Shard>]) -> Vec<NapiId> {
        let mut resume = Vec::new();
        for place in &entry.parts {
            self.by_place.remove(&(*place, entry.name));
            if !entry.listens {
                resume.extend(self.context.handle_remove(shards[place.shard as usize].id));
            }
        }
        resume
    }

    pub(super) fn post(&mut self, key: EntryKey, edges: Readiness) -> Posted {
        let mut posted = Posted::default();
        let Some(entry) = self.entries.get_mut(key) else { return posted };
        if entry.spent || !edges.intersects(entry.interest.conditions()) {
            return posted;
        }
        entry.edges |= edges;
        if !std::mem::replace(&mut entry.queued, true) {
            self.ready.push_back(key);
            if let Some(sleeper) = self.sleepers.pop() {
                posted = Posted { calls: sleeper.wake(), woke: true };
            }
        }
        // Also for one in the queue that was told of before and has been emptied since: the bell has fallen silent then.
        if let Some(bell) = &mut self.bell {
            posted.calls += bell.ring();
        }
        posted
    }

    pub(super) fn has_candidates(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Everything that may have events, to be looked at without taking it.
    pub(super) fn peek(&self, candidates: &mut Vec<Candidate>) {
        for &key in &self.ready {
            let Some(entry) = self.entries.get(key) else { continue };
            let (interest, edges, readiness) = (entry.interest, entry.edges, Readiness::NONE);
            candidates.extend(entry.parts.iter().map(|&place| Candidate { key, place, interest, edges, readiness }));
        }
    }

    fn take_candidates(&mut self, candidates: &mut Vec<Candidate>, max: usize) -> bool {
        candidates.clear();
        let mut taken = 0;
        while taken < max {
            let Some(key) = self.ready.pop_front() else { break };
            // One that is gone leaves its place.
            let Some(entry) = self.entries.get_mut(key) else { continue };
            taken += 1;
            entry.queued = false;
            let edges = std::mem::take(&mut entry.edges);
            candidates.extend(entry.parts.iter().map(|&place| Candidate {
                key,
                place,
                interest: entry.interest,
                edges,
                readiness: Readiness::NONE,
            }));
        }
        !candidates.is_empty()
    }

    /// Turns candidates into events, and puts level-triggered sockets back: they are looked at again in the next wait.
    fn report(&mut self, candidates: &[Candidate], events: &mut Vec<Event>) {
        for parts in candidates.chunk_by(|a, b| a.key == b.key) {
            let key = parts[0].key;
            let Some(entry) = self.entries.get_mut(key) else { continue };
            // Another thread may have changed it since it was taken: what counts is what it is in for now.
            let interest = entry.interest;
            let told = parts.iter().fold(Readiness::NONE, |all, part| all | part.told_for(interest));
            let edge = interest.contains(Interest::EDGE);
            if entry.spent || told.is_empty() {
                continue;
            }
            events.push(Event { token: entry.token, readiness: told });
            if interest.contains(Interest::ONESHOT) {
                entry.spent = true;
            } else if !edge && !std::mem::replace(&mut entry.queued, true) {
                self.ready.push_back(key);
            }
        }
        // There is more than this wait took, or a level-triggered socket that this thread need not empty: a thread that fell
        // asleep while the queue was empty, or before, is to look too. Kernel: so at the end of every scan of the list.
        if !self.ready.is_empty()
            && let Some(sleeper) = self.sleepers.pop()
        {
            sleeper.wake();
        }
    }
}

/// What both sets hold.
trait And {
    fn and(self, other: Self) -> Self;
}

impl And for Readiness {
    fn and(self, other: Self) -> Self {
        let all = [Self::READABLE, Self::WRITABLE, Self::READ_CLOSED, Self::HANG_UP, Self::ERROR];
        all.into_iter().fold(Self::NONE, |both, one| both | one.when(self.contains(one) && other.contains(one)))
    }
}
