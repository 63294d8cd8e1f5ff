//! What two ends share from the moment they met until one of them goes: the rings and the eventfds.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::MemoryShape;
use super::mapping::Mapping;
use crate::ring::{Producer, Region};

/// Which rings of the memory are whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Creator,
    Attacher,
}

/// A meeting of two ends.
#[derive(Debug)]
pub(super) struct Session {
    /// The rings this end receives from, one for each of its queues.
    pub(super) receive: Vec<Region>,
    /// The rings of the peer's queues, and their producers.
    transmit: Vec<(Region, Mutex<Producer<Region>>)>,
    /// What the peer's queues are woken by.
    events: Vec<OwnedFd>,
    up: AtomicBool,
    /// Whether the peer was caught at an impossible value.
    corrupt: AtomicBool,
}

impl Session {
    pub(super) fn new(shape: &MemoryShape, memory: &Arc<Mapping>, end: End, events: Vec<OwnedFd>) -> Arc<Self> {
        assert_eq!(events.len(), shape.queues, "one eventfd for each queue");
        let layout = shape.layout();
        let rings = |first: usize| (first..first + shape.queues).map(|index| memory.ring(layout, index));
        let (mine, theirs) = match end {
            End::Creator => (0, shape.queues),
            End::Attacher => (shape.queues, 0),
        };
        let producer = |region: Region| (region.clone(), Mutex::new(Producer::new(region)));
        Arc::new(Self {
            receive: rings(mine).collect(),
            transmit: rings(theirs).map(producer).collect(),
            events,
            up: AtomicBool::new(true),
            corrupt: AtomicBool::new(false),
        })
    }

    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    pub(super) fn set_down(&self) {
        self.up.store(false, Ordering::Release);
    }

    pub(super) fn is_corrupt(&self) -> bool {
        self.corrupt.load(Ordering::Relaxed)
    }

    pub(super) fn set_corrupt(&self) {
        self.corrupt.store(true, Ordering::Relaxed);
    }

    /// The producer of the ring of the peer's queue.
    pub(super) fn producer(&self, queue: u32) -> MutexGuard<'_, Producer<Region>> {
        // A panic while the lock was held is our bug and has been reported; the ring is valid at every step.
        self.transmit[queue as usize].1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of the ring of the peer's queue.
    pub(super) fn ring(&self, queue: u32) -> &Region {
        &self.transmit[queue as usize].0
    }

    /// Wakes the peer's queue. A system call.
    pub(super) fn wake(&self, queue: usize) {
        // Would-block means that the counter is at its limit: then the peer is woken anyway.
        let _ = rustix::io::write(&self.events[queue], &1_u64.to_ne_bytes());
    }
}
