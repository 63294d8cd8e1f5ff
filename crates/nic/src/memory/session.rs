//! A session: the rings and the eventfds that two ends share from the handshake until one of them ends.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mapping::Mapping;
use super::shape::MemoryShape;
use crate::ring::{Producer, Region};

/// An end, which decides which rings of the memory it receives from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Creator,
    Attacher,
}

/// A session of two ends.
#[derive(Debug)]
pub(super) struct Session {
    /// The rings this end receives from, one for each of its queues.
    pub(super) receive: Vec<Region>,
    /// The rings of the peer's queues, and their producers.
    transmit: Vec<(Region, Mutex<Producer<Region>>)>,
    /// The eventfds of the peer's queues.
    events: Vec<OwnedFd>,
    up: AtomicBool,
    /// Whether the peer has written a value out of range.
    corrupt: AtomicBool,
}

impl Session {
    pub(super) fn new(shape: &MemoryShape, memory: &Arc<Mapping>, end: End, events: Vec<OwnedFd>) -> Arc<Self> {
        assert_eq!(events.len(), shape.queues, "one eventfd for each queue");
        let layout = shape.layout();
        let rings = |first: usize| (first..first + shape.queues).map(|index| memory.ring(layout, index));
        let (own, peers) = match end {
            End::Creator => (0, shape.queues),
            End::Attacher => (shape.queues, 0),
        };
        let producer = |region: Region| (region.clone(), Mutex::new(Producer::new(region)));
        Arc::new(Self {
            receive: rings(own).collect(),
            transmit: rings(peers).map(producer).collect(),
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

    /// Locks the producer of the ring of a queue of the peer.
    pub(super) fn producer(&self, queue: u32) -> MutexGuard<'_, Producer<Region>> {
        // A panic with the lock held was reported; the ring is valid at every step.
        self.transmit[queue as usize].1.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory of the ring of a queue of the peer.
    pub(super) fn ring(&self, queue: u32) -> &Region {
        &self.transmit[queue as usize].0
    }

    /// Wakes a queue of the peer, with a system call.
    pub(super) fn wake(&self, queue: usize) {
        // EAGAIN means that the counter is at its limit, so that the peer is being woken already.
        let _ = rustix::io::write(&self.events[queue], &1_u64.to_ne_bytes());
    }
}
