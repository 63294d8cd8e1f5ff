//! The state of an epoll: the interest list, the queue of sockets that may have events, and the threads that sleep.
//!
//! *Invariant: no lost wake-ups.* If the queue is not empty, no waiting thread is parked without a pending notification.
//!
//! Lock order: a shard's lock, then the lock of this state. A shard notifies with its lock held. So code that needs the
//! readiness of a socket takes the socket from the queue, unlocks, and then asks the shard.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abey_delivery::{EpollBusyPoll, EpollConfig, EpollContext, Nanos, NapiId};
use abey_tcpip::Readiness;
use slotmap::SlotMap;

use super::interest::{Event, Interest};
use super::ready_fd::ReadyFd;
use crate::environment::{Env, Environment};
use crate::parker::Parker;
use crate::shard::{InterestKey, Notified, Notify, Shard, SocketKey};

/// An entry of the interest list.
#[derive(Debug)]
pub(super) struct Entry {
    /// Distinguishes the entries of one socket that was added several times.
    alias: u32,
    pub(super) token: u64,
    pub(super) interest: Interest,
    pub(super) sockets: Vec<SocketKey>,
    /// The entry does not add its shards' NAPI instances to the context.
    is_listener: bool,
    /// What happened since the entry was last taken from the queue.
    edges: Readiness,
    is_queued: bool,
    /// The entry is one-shot and has reported its event.
    pub(super) is_disarmed: bool,
}

/// The part of the state that the lock guards.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) context: EpollContext,
    pub(super) entries: SlotMap<InterestKey, Entry>,
    /// The entries by socket and alias.
    pub(super) by_socket: HashMap<(SocketKey, u32), InterestKey>,
    ready: VecDeque<InterestKey>,
    /// The parkers of the threads that sleep.
    sleeping: Vec<Arc<Parker>>,
    ready_fd: Option<ReadyFd>,
}

/// The state of an epoll.
#[derive(Debug)]
pub(crate) struct ReadyQueue {
    pub(super) shards: Arc<[Arc<Shard>]>,
    inner: Mutex<Inner>,
    /// One wait must end early. It is set, and checked before a sleep, with `inner` locked.
    wakeup: AtomicBool,
    /// The time in busy polls that found nothing, in nanoseconds.
    spun: AtomicU64,
}

/// An entry that was taken from the queue because its socket may have events.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    key: InterestKey,
    socket: SocketKey,
    interest: Interest,
    edges: Readiness,
    readiness: Readiness,
}

/// A snapshot of an epoll, for status reports.
#[derive(Debug)]
pub(crate) struct EpollView {
    pub(crate) busy_poll: Option<EpollBusyPoll>,
    pub(crate) sockets: usize,
    pub(crate) napis: Vec<NapiId>,
    /// The number of threads that sleep in a wait.
    pub(crate) sleeping: usize,
}

impl Notify for ReadyQueue {
    fn notify(&self, key: InterestKey, edges: Readiness) -> Notified {
        self.inner().notify(key, edges)
    }

    fn remove_closed(&self, key: InterestKey) {
        self.remove(key);
    }
}

impl ReadyQueue {
    pub(crate) fn new(shards: Arc<[Arc<Shard>]>, busy: Option<EpollBusyPoll>) -> Self {
        let inner = Inner {
            context: EpollContext::new(EpollConfig::default(), busy),
            entries: SlotMap::with_key(),
            by_socket: HashMap::new(),
            ready: VecDeque::new(),
            sleeping: Vec::new(),
            ready_fd: None,
        };
        Self { shards, inner: Mutex::new(inner), wakeup: AtomicBool::new(false), spun: AtomicU64::new(0) }
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shard(&self, id: NapiId) -> Option<&Arc<Shard>> {
        self.shards.iter().find(|shard| shard.id == id)
    }

    pub(super) fn shard_of(&self, socket: SocketKey) -> &Shard {
        &self.shards[socket.shard as usize]
    }

    /// Removes an entry, and resumes the instances that have no sockets here any more. The caller holds no lock.
    pub(super) fn remove(&self, key: InterestKey) {
        let resume = {
            let mut inner = self.inner();
            let Some(entry) = inner.entries.remove(key) else { return };
            inner.forget(&entry, &self.shards)
        };
        self.resume(resume);
    }

    /// Resumes instances. The caller holds no lock.
    pub(super) fn resume(&self, ids: Vec<NapiId>) {
        for shard in ids.into_iter().filter_map(|id| self.shard(id)) {
            shard.resume();
        }
    }

    /// Announces that a thread is about to sleep. Returns `false` if it must not: a socket may have events, or the thread
    /// was notified.
    pub(super) fn begin_sleep(&self, parker: &Arc<Parker>) -> bool {
        let mut inner = self.inner();
        if !inner.ready.is_empty() || self.has_wakeup() || !parker.park() {
            return false;
        }
        inner.sleeping.push(parker.clone());
        true
    }

    /// Records that a thread does not sleep any more.
    pub(super) fn end_sleep(&self, parker: &Arc<Parker>) {
        self.inner().sleeping.retain(|other| !Arc::ptr_eq(other, parker));
    }

    /// Ends one wait early: one that sleeps, or else the next.
    pub(super) fn wake_one(&self) {
        let mut inner = self.inner();
        self.wakeup.store(true, Ordering::Relaxed);
        // All threads check the flag, and one takes it.
        for parker in std::mem::take(&mut inner.sleeping) {
            parker.unpark();
        }
    }

    pub(super) fn has_wakeup(&self) -> bool {
        self.wakeup.load(Ordering::Relaxed)
    }

    /// Returns whether the calling thread's wait must end early, and clears the flag.
    pub(super) fn take_wakeup(&self) -> bool {
        self.has_wakeup() && self.wakeup.swap(false, Ordering::Relaxed)
    }

    /// Wakes every thread that sleeps.
    pub(crate) fn wake_all(&self) {
        for parker in std::mem::take(&mut self.inner().sleeping) {
            parker.unpark();
        }
    }

    /// Adds the time that a wait spent in busy polls that found nothing.
    pub(super) fn add_time_spun(&self, time: Nanos) {
        if time > Nanos::ZERO {
            self.spun.fetch_add(time.as_nanos(), Ordering::Relaxed);
        }
    }

    pub(super) fn time_spun(&self) -> Nanos {
        Nanos::from_nanos(self.spun.load(Ordering::Relaxed))
    }

    pub(crate) fn set_busy_poll(&self, busy: Option<EpollBusyPoll>) {
        let resume = self.inner().context.handle_parameters(busy);
        self.resume(resume);
        // A thread that sleeps restarts its wait with the new parameters.
        self.wake_all();
    }

    pub(super) fn set_ready_fd(&self, event: Option<std::os::fd::OwnedFd>) {
        self.inner().ready_fd = event.map(ReadyFd::new);
        self.sync_ready_fd();
    }

    /// Makes the eventfd, if any, readable exactly if a wait would report events at once.
    pub(super) fn sync_ready_fd(&self) {
        match &mut self.inner().ready_fd {
            // The eventfd is cleared first, so that an event that comes meanwhile sets it again.
            Some(ready_fd) => ready_fd.clear(),
            None => return,
        }
        if self.is_ready()
            && let Some(ready_fd) = &mut self.inner().ready_fd
        {
            ready_fd.set();
        }
    }

    /// Returns whether a wait would report events at once.
    pub(super) fn is_ready(&self) -> bool {
        let mut candidates = Vec::new();
        self.inner().peek(&mut candidates);
        self.query_readiness(&mut candidates);
        candidates.iter().any(|candidate| !candidate.reported().is_empty())
    }

    /// Collects up to `max` events; none only if no socket in the queue has any. `candidates` is a buffer.
    pub(super) fn collect_events(&self, candidates: &mut Vec<Candidate>, events: &mut Vec<Event>, max: usize) {
        // Sockets that were reported and have been emptied since are still in the queue, before others.
        while events.is_empty() && self.inner().take_candidates(candidates, max) {
            Env::preemption_point();
            self.query_readiness(candidates);
            Env::preemption_point();
            self.inner().report(candidates, events);
        }
    }

    /// Asks the shards for the readiness of the candidates, and begins their transmit batches.
    fn query_readiness(&self, candidates: &mut [Candidate]) {
        let mut rest = candidates;
        while let Some(first) = rest.first() {
            let shard = first.socket.shard;
            let run = rest.iter().take_while(|candidate| candidate.socket.shard == shard).count();
            let (now, later) = rest.split_at_mut(run);
            self.shards[shard as usize].with(|core| {
                for candidate in &mut *now {
                    let wants_room = candidate.interest.contains(Interest::OUT);
                    candidate.readiness = core.readiness(candidate.socket.socket, wants_room);
                }
                core.begin_batch(now.iter().filter(|candidate| !candidate.reported().is_empty()).count());
            });
            rest = later;
        }
    }

    pub(crate) fn view(&self) -> EpollView {
        let inner = self.inner();
        EpollView {
            busy_poll: inner.context.busy_poll(),
            sockets: inner.entries.len(),
            napis: inner.context.members().collect(),
            sleeping: inner.sleeping.len(),
        }
    }
}

impl Candidate {
    fn new(key: InterestKey, socket: SocketKey, interest: Interest, edges: Readiness) -> Self {
        Self { key, socket, interest, edges, readiness: Readiness::NONE }
    }

    /// Returns what to report of the socket.
    fn reported(&self) -> Readiness {
        self.reported_for(self.interest)
    }

    fn reported_for(&self, interest: Interest) -> Readiness {
        let conditions = interest.conditions();
        let is_news = !interest.contains(Interest::EDGE) || self.edges.intersects(conditions);
        if is_news { intersection(self.readiness, conditions) } else { Readiness::NONE }
    }
}

impl Inner {
    pub(super) fn insert(
        &mut self,
        alias: u32,
        token: u64,
        interest: Interest,
        sockets: Vec<SocketKey>,
        is_listener: bool,
    ) -> InterestKey {
        let keys = sockets.clone();
        let edges = Readiness::NONE;
        let entry = Entry { alias, token, interest, sockets, is_listener, edges, is_queued: false, is_disarmed: false };
        let key = self.entries.insert(entry);
        for socket in keys {
            self.by_socket.insert((socket, alias), key);
        }
        key
    }

    /// Changes an entry, and re-arms it if it is one-shot.
    pub(super) fn modify(&mut self, key: InterestKey, token: u64, interest: Interest) {
        if let Some(entry) = self.entries.get_mut(key) {
            (entry.token, entry.interest, entry.is_disarmed) = (token, interest, false);
        }
    }

    /// Cleans up after a removed entry. Returns the instances that have no sockets here any more.
    fn forget(&mut self, entry: &Entry, shards: &[Arc<Shard>]) -> Vec<NapiId> {
        let mut resume = Vec::new();
        for socket in &entry.sockets {
            self.by_socket.remove(&(*socket, entry.alias));
            if !entry.is_listener {
                resume.extend(self.context.handle_remove(shards[socket.shard as usize].id));
            }
        }
        resume
    }

    /// Queues an entry, and wakes a thread that sleeps.
    pub(super) fn notify(&mut self, key: InterestKey, edges: Readiness) -> Notified {
        let mut notified = Notified::default();
        let Some(entry) = self.entries.get_mut(key) else { return notified };
        if entry.is_disarmed || !edges.intersects(entry.interest.conditions()) {
            return notified;
        }
        entry.edges |= edges;
        if !std::mem::replace(&mut entry.is_queued, true) {
            self.ready.push_back(key);
            if let Some(parker) = self.sleeping.pop() {
                notified = Notified { calls: parker.unpark(), woke: true };
            }
        }
        // Also for an entry that is queued already: if it was reported and emptied since, the eventfd has been cleared.
        if let Some(ready_fd) = &mut self.ready_fd {
            notified.calls += ready_fd.set();
        }
        notified
    }

    pub(super) fn has_candidates(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Copies every queued entry into `candidates`.
    fn peek(&self, candidates: &mut Vec<Candidate>) {
        for &key in &self.ready {
            let Some(entry) = self.entries.get(key) else { continue };
            let (interest, edges) = (entry.interest, entry.edges);
            candidates.extend(entry.sockets.iter().map(|&socket| Candidate::new(key, socket, interest, edges)));
        }
    }

    /// Moves up to `max` entries from the queue into `candidates`. Returns whether there were any.
    fn take_candidates(&mut self, candidates: &mut Vec<Candidate>, max: usize) -> bool {
        candidates.clear();
        let mut taken = 0;
        while taken < max {
            let Some(key) = self.ready.pop_front() else { break };
            // Keys of removed entries stay in the queue.
            let Some(entry) = self.entries.get_mut(key) else { continue };
            taken += 1;
            entry.is_queued = false;
            let (interest, edges) = (entry.interest, std::mem::take(&mut entry.edges));
            candidates.extend(entry.sockets.iter().map(|&socket| Candidate::new(key, socket, interest, edges)));
        }
        !candidates.is_empty()
    }

    /// Turns candidates into events. Level-triggered entries return to the queue, and the next wait checks them again.
    fn report(&mut self, candidates: &[Candidate], events: &mut Vec<Event>) {
        for sockets in candidates.chunk_by(|a, b| a.key == b.key) {
            let key = sockets[0].key;
            let Some(entry) = self.entries.get_mut(key) else { continue };
            // Another thread may have modified the entry since it was taken. The present interest counts.
            let interest = entry.interest;
            let readiness = sockets.iter().fold(Readiness::NONE, |all, socket| all | socket.reported_for(interest));
            if entry.is_disarmed || readiness.is_empty() {
                continue;
            }
            events.push(Event { token: entry.token, readiness });
            let is_edge = interest.contains(Interest::EDGE);
            if interest.contains(Interest::ONESHOT) {
                entry.is_disarmed = true;
            } else if !is_edge && !std::mem::replace(&mut entry.is_queued, true) {
                self.ready.push_back(key);
            }
        }
        // The queue has more than this wait took, or a level-triggered socket that this thread may not empty. A thread
        // that sleeps must check them. The kernel does the same at the end of each scan of its list.
        if !self.ready.is_empty()
            && let Some(parker) = self.sleeping.pop()
        {
            parker.unpark();
        }
    }
}

/// Returns the conditions in both sets.
fn intersection(a: Readiness, b: Readiness) -> Readiness {
    let all = [Readiness::READABLE, Readiness::WRITABLE, Readiness::READ_CLOSED, Readiness::HANG_UP, Readiness::ERROR];
    all.into_iter().fold(Readiness::NONE, |both, one| both | one.when(a.contains(one) && b.contains(one)))
}
