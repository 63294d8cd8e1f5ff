//! The end of a ring that takes frames out.

use std::sync::atomic::Ordering;

use super::{Shared, SlotHeader, Word};
use crate::frame::{Checksum, ETHERNET_HEADER, Frame};

/// Why a frame that was in the ring is not one for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Its length does not fit the slot, or is less than an Ethernet header.
    Length,
    /// It does not fit the caller's buffer.
    Buffer,
}

/// Takes frames out of a ring.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    /// Ours: what the other end reads is a copy.
    consumed: u32,
    released: u32,
    /// The producer's index when last looked at and found possible.
    produced: u32,
}

impl<M: Shared> Consumer<M> {
    /// The consumer of a ring that nothing was taken out of yet.
    pub fn new(memory: M) -> Self {
        Self { memory, consumed: 0, released: 0, produced: 0 }
    }

    /// The memory of the ring.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Looks at the producer's index, once, and returns how many frames [`pop`](Self::pop) will find: at most the
    /// number of slots.
    ///
    /// `None` when the index is impossible. Everything up to it is given up, so that an honest producer could go on.
    pub fn look(&mut self) -> Option<u32> {
        // Acquire: the slots were written before they were shown.
        let produced = self.memory.load(Word::Produced, Ordering::Acquire);
        let ready = produced.wrapping_sub(self.consumed);
        // It can neither show more than fits nor take back what it has shown.
        let possible = ready <= self.memory.layout().slots() && ready >= self.produced.wrapping_sub(self.consumed);
        self.produced = produced;
        if !possible {
            self.consumed = produced;
            return None;
        }
        Some(ready)
    }

    /// Frames that the last [`look`](Self::look) found and that were not taken yet.
    pub fn found(&self) -> u32 {
        self.produced.wrapping_sub(self.consumed)
    }

    /// Takes the next of the frames that the last [`look`](Self::look) found; `None` when there is none left.
    ///
    /// # Errors
    /// When the frame had to be dropped; it is gone from the ring too.
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

    /// Gives the slots that were taken back to the producer, and returns the queues of its side, one bit each, that must
    /// be told that there is room.
    #[must_use = "the producer's queues sleep until they are told"]
    pub fn release(&mut self) -> u32 {
        if self.released == self.consumed {
            return 0;
        }
        // Release: we have done with the slots before they are written again.
        self.memory.store(Word::Consumed, self.consumed, Ordering::Release);
        self.released = self.consumed;
        self.memory.fence();
        match self.memory.load(Word::WantRoom, Ordering::Relaxed) {
            0 => 0,
            _ => self.memory.swap(Word::WantRoom, 0, Ordering::AcqRel),
        }
    }

    /// Stops interrupts; one may still be on its way.
    pub fn mask(&mut self) {
        self.memory.store(Word::Armed, 0, Ordering::Relaxed);
    }

    /// Arms the interrupt, then looks, and returns whether there is something in the ring. (An impossible index counts
    /// as something: the next [`look`](Self::look) deals with it.)
    pub fn unmask(&mut self) -> bool {
        self.memory.store(Word::Armed, 1, Ordering::Relaxed);
        self.memory.fence();
        self.memory.load(Word::Produced, Ordering::Acquire) != self.consumed
    }
}
