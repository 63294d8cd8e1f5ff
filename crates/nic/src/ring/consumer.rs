//! The consumer of a ring.

use std::sync::atomic::Ordering;

use super::shared::{Shared, SlotHeader, Word};
use crate::frame::{Checksum, ETHERNET_HEADER, Frame};

/// Reason why a frame of the ring was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Its length exceeds the slot, or is less than an Ethernet header.
    Length,
    /// It is longer than the caller's buffer.
    Buffer,
}

/// The consumer of a ring.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    /// The index of this end; the other end reads a copy.
    consumed: u32,
    released: u32,
    /// The producer's index when it was last read and in range.
    produced: u32,
}

impl<M: Shared> Consumer<M> {
    /// Returns the consumer of a new ring.
    pub fn new(memory: M) -> Self {
        Self { memory, consumed: 0, released: 0, produced: 0 }
    }

    /// Returns the memory of the ring.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Reads the producer's index, once, and returns the number of frames for [`pop`](Self::pop): at most the number of
    /// slots.
    ///
    /// `None` when the index is out of range. Everything up to it is dropped, so that a correct producer could go on.
    pub fn refresh(&mut self) -> Option<u32> {
        // Acquire: the slots were written before the index was published.
        let produced = self.memory.load(Word::Produced, Ordering::Acquire);
        let ready = produced.wrapping_sub(self.consumed);
        // It can neither publish more frames than there are slots, nor withdraw any.
        let possible = ready <= self.memory.layout().slots() && ready >= self.produced.wrapping_sub(self.consumed);
        self.produced = produced;
        if !possible {
            self.consumed = produced;
            return None;
        }
        Some(ready)
    }

    /// Returns the number of frames that the last [`refresh`](Self::refresh) found and that were not taken yet.
    pub fn found(&self) -> u32 {
        self.produced.wrapping_sub(self.consumed)
    }

    /// Takes the next of the frames that the last [`refresh`](Self::refresh) found; `None` when there is none left.
    ///
    /// # Errors
    /// When the frame was dropped; it is no longer in the ring.
    pub fn pop(&mut self, frame: &mut Frame) -> Option<Result<(), Dropped>> {
        if self.found() == 0 {
            return None;
        }
        let index = self.consumed;
        self.consumed = index.wrapping_add(1);
        let SlotHeader { length, flags } = self.memory.read_header(index);
        let length = length as usize;
        if !(ETHERNET_HEADER..=self.memory.layout().room()).contains(&length) {
            return Some(Err(Dropped::Length));
        }
        if length > frame.capacity() {
            return Some(Err(Dropped::Buffer));
        }
        self.memory.read_slot(index, &mut frame.buffer_mut()[..length]);
        frame.set_len(length);
        let not_needed = flags & SlotHeader::CHECKSUM_NOT_NEEDED != 0;
        frame.checksum = if not_needed { Checksum::NotNeeded } else { Checksum::Complete };
        Some(Ok(()))
    }

    /// Returns the slots of taken frames to the producer. The result is the queues of its side, one bit each, that wait for
    /// room and must be woken.
    #[must_use = "the producer's queues sleep until they are woken"]
    pub fn release(&mut self) -> u32 {
        if self.released == self.consumed {
            return 0;
        }
        // Release: the slots were read before they are written again.
        self.memory.store(Word::Consumed, self.consumed, Ordering::Release);
        self.released = self.consumed;
        self.memory.fence();
        match self.memory.load(Word::WantRoom, Ordering::Relaxed) {
            0 => 0,
            _ => self.memory.swap(Word::WantRoom, 0, Ordering::AcqRel),
        }
    }

    /// Masks the interrupt; one that was raised before may still arrive.
    pub fn mask(&mut self) {
        self.memory.store(Word::Armed, 0, Ordering::Relaxed);
    }

    /// Arms the interrupt, then reads the producer's index and returns whether the ring has frames. (An index out of range
    /// counts as frames: the next [`refresh`](Self::refresh) handles it.)
    pub fn unmask(&mut self) -> bool {
        self.memory.store(Word::Armed, 1, Ordering::Relaxed);
        self.memory.fence();
        self.memory.load(Word::Produced, Ordering::Acquire) != self.consumed
    }
}
