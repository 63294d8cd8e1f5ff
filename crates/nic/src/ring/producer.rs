//! The end of a ring that puts frames in.

use std::sync::atomic::Ordering;

use super::{Shared, SlotHeader, Word};

/// Why a frame was not put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The consumer has not taken enough yet.
    Full,
    /// The consumer's index is impossible: it counts as having taken nothing.
    Corrupt,
}

/// Puts frames into a ring. Frames are visible to the other end after [`publish`](Self::publish).
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    /// Ours: what the other end reads is a copy.
    produced: u32,
    published: u32,
    /// The consumer's index when last looked at and found possible: room is never less than this says.
    consumed: u32,
}

impl<M: Shared> Producer<M> {
    /// The producer of a ring that nothing was put into yet.
    pub fn new(memory: M) -> Self {
        Self { memory, produced: 0, published: 0, consumed: 0 }
    }

    /// The memory of the ring.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Copies a frame into the next slot.
    ///
    /// # Errors
    /// When there is no room.
    ///
    /// # Panics
    /// When the frame is longer than the room of a slot.
    pub fn push(&mut self, frame: &[u8], flags: u32) -> Result<(), Full> {
        if self.produced.wrapping_sub(self.consumed) == self.memory.layout().slots() {
            self.look()?;
        }
        self.memory.write_slot(self.produced, SlotHeader { length: frame.len() as u32, flags }, frame);
        self.produced = self.produced.wrapping_add(1);
        Ok(())
    }

    /// Looks at the consumer's index, once, and says whether there is room.
    fn look(&mut self) -> Result<(), Full> {
        let slots = self.memory.layout().slots();
        // Acquire: the consumer has done with the slots it gives back.
        let consumed = self.memory.load(Word::Consumed, Ordering::Acquire);
        let used = self.produced.wrapping_sub(consumed);
        // It can neither have taken what is not there nor give back a slot twice.
        if used > self.produced.wrapping_sub(self.consumed) {
            return Err(Full::Corrupt);
        }
        self.consumed = consumed;
        if used == slots { Err(Full::Full) } else { Ok(()) }
    }

    /// Shows the other end what was put in, and returns whether that was anything. Follow with [`doorbell`].
    pub fn publish(&mut self) -> bool {
        let new = self.produced != self.published;
        if new {
            // Release: the slots are written before they are shown.
            self.memory.store(Word::Produced, self.produced, Ordering::Release);
            self.published = self.produced;
        }
        new
    }

    /// Returns whether there is room; if not, asks to be told, on behalf of queue number `waiter` (below 32), and looks
    /// once more.
    pub fn request_room(&mut self, waiter: u32) -> bool {
        // Who asks without need is told without need, later.
        if self.look().is_ok() {
            return true;
        }
        self.memory.fetch_or(Word::WantRoom, 1 << waiter, Ordering::Relaxed);
        self.memory.fence();
        self.look().is_ok()
    }
}

/// After publishing: whether the other end wants an interrupt for it. Takes the wish back, so the caller must raise it.
pub fn doorbell(memory: &impl Shared) -> bool {
    memory.fence();
    // The swap writes to a line the consumer reads, so it is only made when there is something to take down.
    memory.load(Word::Armed, Ordering::Relaxed) != 0 && memory.swap(Word::Armed, 0, Ordering::AcqRel) != 0
}
