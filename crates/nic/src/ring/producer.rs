//! The producer of a ring.

use std::sync::atomic::Ordering;

use super::shared::{Shared, SlotHeader, Word};

/// Reason why a frame was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The ring is full.
    Full,
    /// The consumer's index is out of range, and is ignored.
    Corrupt,
}

/// The producer of a ring. The other end can read its frames after [`publish`](Self::publish).
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    /// The index of this end; the other end reads a copy.
    produced: u32,
    published: u32,
    /// The consumer's index when it was last read and in range: a lower bound of the room.
    consumed: u32,
}

impl<M: Shared> Producer<M> {
    /// Returns the producer of a new ring.
    pub fn new(memory: M) -> Self {
        Self { memory, produced: 0, published: 0, consumed: 0 }
    }

    /// Returns the memory of the ring.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Copies a frame into the next slot.
    ///
    /// # Errors
    /// When there is no room.
    ///
    /// # Panics
    /// When the frame is longer than a slot.
    pub fn push(&mut self, frame: &[u8], flags: u32) -> Result<(), Full> {
        if self.produced.wrapping_sub(self.consumed) == self.memory.layout().slots() {
            self.refresh()?;
        }
        self.memory.write_slot(self.produced, SlotHeader { length: frame.len() as u32, flags }, frame);
        self.produced = self.produced.wrapping_add(1);
        Ok(())
    }

    /// Reads the consumer's index, once. An error means that there is no room.
    fn refresh(&mut self) -> Result<(), Full> {
        let slots = self.memory.layout().slots();
        // Acquire: the consumer has read the slots that it returns.
        let consumed = self.memory.load(Word::Consumed, Ordering::Acquire);
        let used = self.produced.wrapping_sub(consumed);
        // It can neither take frames that were not published, nor return a slot twice.
        if used > self.produced.wrapping_sub(self.consumed) {
            return Err(Full::Corrupt);
        }
        self.consumed = consumed;
        if used == slots { Err(Full::Full) } else { Ok(()) }
    }

    /// Publishes the frames that were pushed, and returns whether there were any. To be followed by [`doorbell`].
    pub fn publish(&mut self) -> bool {
        let new = self.produced != self.published;
        if new {
            // Release: the slots are written before the index is published.
            self.memory.store(Word::Produced, self.produced, Ordering::Release);
            self.published = self.produced;
        }
        new
    }

    /// Returns whether there is room. If not, requests a wake-up of queue number `waiter` (below 32), and reads the
    /// consumer's index once more.
    pub fn request_room(&mut self, waiter: u32) -> bool {
        // A request without need would cause a wake-up without need.
        if self.refresh().is_ok() {
            return true;
        }
        self.memory.fetch_or(Word::WantRoom, 1 << waiter, Ordering::Relaxed);
        self.memory.fence();
        self.refresh().is_ok()
    }
}

/// Returns, after publishing, whether the other end's interrupt is armed. Disarms it, so that the caller must raise it.
pub fn doorbell(memory: &impl Shared) -> bool {
    memory.fence();
    // The swap writes to a cache line that the consumer reads, so it is made for an armed interrupt only.
    memory.load(Word::Armed, Ordering::Relaxed) != 0 && memory.swap(Word::Armed, 0, Ordering::AcqRel) != 0
}
