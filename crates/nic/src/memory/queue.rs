//! A queue pair of the shared-memory NIC: the consumer of its own ring, and one of the producers of the peer's rings.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::link::{Guard, Shared};
use super::session::Session;
use crate::counters::Counters;
use crate::frame::{Checksum, Frame};
use crate::queue::{Capabilities, LinkState, QueuePair, ReceiveError, TransmitError, Warning};
use crate::ring::{Consumer, Dropped, Full, Region, SlotHeader, doorbell};

/// A queue pair of a shared-memory NIC. See [`pair`](crate::pair) and [`open`](crate::open()).
#[derive(Debug)]
pub struct MemoryQueue {
    pub(super) link: Arc<Shared>,
    /// Ends the link's thread when the last queue pair is dropped; `None` for a pair in one process.
    _guard: Option<Arc<Guard>>,
    index: u32,
    generation: u64,
    session: Option<Attached>,
    /// Peer queues with new frames in their ring and no call of `doorbell` yet, one bit each.
    dirty: u32,
    /// Peer queues without room in their ring, one bit each.
    stalled: u32,
    counters: Counters,
}

/// The session of this queue pair.
#[derive(Debug)]
struct Attached {
    shared: Arc<Session>,
    consumer: Consumer<Region>,
}

impl MemoryQueue {
    /// Returns the queue pairs of one end.
    pub(super) fn all(link: &Arc<Shared>, guard: Option<&Arc<Guard>>) -> Vec<Self> {
        let queue = |index| {
            let counted = Counters {
                interrupts: Some(0),
                interrupts_raised: Some(0),
                interrupts_suppressed: Some(0),
                ..Counters::default()
            };
            Self {
                link: link.clone(),
                _guard: guard.cloned(),
                index,
                generation: 0,
                session: None,
                dirty: 0,
                stalled: 0,
                counters: counted,
            }
        };
        (0..link.shape.queues as u32).map(queue).collect()
    }

    /// Joins the link's current session, if it has changed.
    fn refresh(&mut self) {
        let generation = self.link.generation();
        if generation == self.generation {
            return;
        }
        self.generation = generation;
        let Some(shared) = self.link.session() else { return };
        if self.session.as_ref().is_some_and(|old| Arc::ptr_eq(&old.shared, &shared)) {
            return;
        }
        // Frames of the last peer that are still in the ring are dropped.
        let left = self.session.as_mut().and_then(|old| old.consumer.refresh()).unwrap_or(0);
        self.counters.drops.link_down += u64::from(left);
        let consumer = Consumer::new(shared.receive[self.index as usize].clone());
        self.session = Some(Attached { shared, consumer });
        (self.dirty, self.stalled) = (0, 0);
    }

    fn up(&self) -> Option<&Attached> {
        self.session.as_ref().filter(|session| session.shared.is_up())
    }
}

impl QueuePair for MemoryQueue {
    fn receive(&mut self, frames: &mut [Frame]) -> Result<usize, ReceiveError> {
        self.refresh();
        let Some(Attached { shared, consumer }) = &mut self.session else { return Ok(0) };
        let Some(found) = consumer.refresh() else {
            self.counters.drops.ring_index += 1;
            shared.set_corrupt();
            let _ = consumer.release();
            return Ok(0);
        };
        let mut count = 0;
        for _ in 0..frames.len().min(found as usize) {
            let frame = &mut frames[count];
            match consumer.pop(frame) {
                None => break,
                Some(Ok(())) => {
                    self.counters.received_bytes += frame.len() as u64;
                    count += 1;
                }
                Some(Err(Dropped::Length)) => {
                    self.counters.drops.receive_length += 1;
                    shared.set_corrupt();
                }
                Some(Err(Dropped::Buffer)) => self.counters.drops.buffer += 1,
            }
        }
        self.counters.received += count as u64;
        let waiting = consumer.release();
        // The peer may have set any bits: those beyond its queues are ignored.
        for queue in (0..self.link.shape.queues).filter(|queue| waiting & 1 << queue != 0) {
            shared.wake(queue);
            *self.counters.interrupts_raised.get_or_insert(0) += 1;
            self.counters.system_calls += 1;
        }
        Ok(count)
    }

    fn transmit(&mut self, frames: &[Frame]) -> Result<usize, TransmitError> {
        self.refresh();
        self.stalled = 0;
        let Some(shared) = self.up().map(|session| session.shared.clone()) else {
            self.counters.drops.link_down += frames.len() as u64;
            return Ok(frames.len());
        };
        let capabilities = self.capabilities();
        let mut taken = 0;
        'rings: while let Some(next) = frames.get(taken) {
            let queue = self.link.rss.queue(next);
            let mut producer = shared.producer(queue);
            // The lock is held as long as frames go to the same ring; frames are published before it is released.
            while let Some(frame) = frames.get(taken) {
                if self.link.rss.queue(frame) != queue {
                    break;
                }
                if !capabilities.accepts(frame, &mut self.counters.drops) {
                    taken += 1;
                    continue;
                }
                let not_needed = frame.checksum == Checksum::NotNeeded;
                let flags = if not_needed { SlotHeader::CHECKSUM_NOT_NEEDED } else { 0 };
                if let Err(full) = producer.push(frame, flags) {
                    if full == Full::Corrupt {
                        self.counters.drops.ring_index += 1;
                        shared.set_corrupt();
                    }
                    self.counters.back_pressure += 1;
                    self.stalled |= 1 << queue;
                    self.dirty |= u32::from(producer.publish()) << queue;
                    break 'rings;
                }
                self.counters.transmitted += 1;
                self.counters.transmitted_bytes += frame.len() as u64;
                taken += 1;
            }
            self.dirty |= u32::from(producer.publish()) << queue;
        }
        Ok(taken)
    }

    fn kick(&mut self) -> Result<(), TransmitError> {
        let dirty = std::mem::take(&mut self.dirty);
        if dirty == 0 {
            return Ok(());
        }
        let Some(Attached { shared, .. }) = &self.session else { return Ok(()) };
        for queue in (0..self.link.shape.queues).filter(|queue| dirty & 1 << queue != 0) {
            if doorbell(shared.ring(queue as u32)) {
                shared.wake(queue);
                *self.counters.interrupts_raised.get_or_insert(0) += 1;
                self.counters.system_calls += 1;
            } else {
                *self.counters.interrupts_suppressed.get_or_insert(0) += 1;
            }
        }
        Ok(())
    }

    fn mask(&mut self) {
        if let Some(session) = &mut self.session {
            session.consumer.mask();
        }
    }

    fn unmask(&mut self) -> bool {
        self.refresh();
        // No session yet: the next one begins with an interrupt.
        let Some(Attached { shared, consumer }) = &mut self.session else { return false };
        let mut pending = consumer.unmask();
        let stalled = self.stalled;
        for queue in (0..self.link.shape.queues as u32).filter(|queue| stalled & 1 << queue != 0) {
            // Without a peer, frames that wait for room can be sent: they are dropped.
            if !shared.is_up() || shared.producer(queue).request_room(self.index) {
                // Reported once: the caller may have nothing left to send.
                self.stalled &= !(1 << queue);
                pending = true;
            }
        }
        pending
    }

    fn acknowledge(&mut self) -> Result<bool, ReceiveError> {
        let mut count = [0; 8];
        self.counters.system_calls += 1;
        let raised = rustix::io::read(self.as_fd(), &mut count).is_ok();
        *self.counters.interrupts.get_or_insert(0) += u64::from(raised);
        Ok(raised)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn system_calls(&self) -> u64 {
        self.counters.system_calls
    }

    fn capabilities(&self) -> Capabilities {
        let shape = &self.link.shape;
        Capabilities { mtu: shape.mtu, checksum_offload: shape.checksum_offload, queues: shape.queues, zero_copy: None }
    }

    fn link(&self) -> LinkState {
        self.link.state()
    }

    fn warning(&self) -> Option<Warning> {
        let corrupt = self.session.as_ref().is_some_and(|session| session.shared.is_corrupt());
        corrupt.then(|| Warning::CorruptRing { device: self.link.device.clone() })
    }
}

impl AsFd for MemoryQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.event(self.index as usize)
    }
}
