//! A ring of fixed-size slots with one producer and one consumer that do not trust each other.
//!
//! Both ends see the same memory ([`Shared`]); each keeps its own index to itself and only *publishes* it there, so the
//! other end can lie about its own index and about the content of slots, and about nothing else. What is read from
//! shared memory is read once, checked, and then used from the copy.
//!
//! *Interrupts.* The consumer arms a flag, then looks at the ring; the producer publishes, then looks at the flag
//! ([`doorbell`]), and each puts a sequentially consistent fence between its two steps, so at least one of them sees the
//! other (store buffering; the same as `VIRTQ_USED_F_NOTIFY` of virtio 1.2, section 2.7.10). The producer takes the flag
//! down when it raises the interrupt: one interrupt for each time it was armed.
//!
//! *Room* is asked for in the same way in the other direction: a producer that found the ring full leaves the number of
//! its queue in a word, then looks again; the consumer frees slots, then takes the word ([`Consumer::release`]).

mod consumer;
mod producer;
mod region;

use std::sync::atomic::Ordering;

pub use consumer::{Consumer, Dropped};
pub use producer::{Full, Producer, doorbell};
pub use region::Region;

/// A control word of the ring. Each lies in cache lines of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// How many frames the producer has ever published, modulo 2^32.
    Produced,
    /// How many the consumer has ever taken, modulo 2^32.
    Consumed,
    /// 1 while the consumer wants an interrupt.
    Armed,
    /// One bit for each queue of the producer's side that waits for room.
    WantRoom,
}

impl Word {
    /// Distance between words in bytes: two cache lines, because processors fetch lines in pairs.
    pub const STRIDE: usize = 128;
    /// How many there are.
    pub const COUNT: usize = 4;

    fn offset(self) -> usize {
        self as usize * Self::STRIDE
    }
}

/// The first 8 bytes of a slot: the length of the frame and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    /// Length of the frame in bytes.
    pub length: u32,
    /// [`SlotHeader::CHECKSUM_NOT_NEEDED`]; other bits are ignored.
    pub flags: u32,
}

impl SlotHeader {
    /// The transport checksum was not computed and must not be verified.
    pub const CHECKSUM_NOT_NEEDED: u32 = 1;
    /// Bytes it takes in the slot.
    pub const BYTES: usize = 8;

    /// As it lies in memory.
    pub fn pack(self) -> u64 {
        u64::from(self.flags) << 32 | u64::from(self.length)
    }

    /// From memory: any 8 bytes are a header, though perhaps not a sensible one.
    pub fn unpack(word: u64) -> Self {
        Self { length: word as u32, flags: (word >> 32) as u32 }
    }
}

/// The shape of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    slots: u32,
    room: usize,
}

impl Layout {
    /// Most slots a ring may have.
    pub const MAX_SLOTS: u32 = 1 << 16;
    /// Longest frame a slot may have room for, in bytes: a packet of 65,535 bytes and an Ethernet header with two tags.
    pub const MAX_ROOM: usize = 65_535 + 22;

    /// A ring of `slots` slots with room for frames of `room` bytes each; `None` unless `slots` is a power of two from
    /// 2 to [`Self::MAX_SLOTS`] and `room` from 14 to [`Self::MAX_ROOM`].
    pub fn new(slots: u32, room: usize) -> Option<Self> {
        let fits = (2..=Self::MAX_SLOTS).contains(&slots) && (14..=Self::MAX_ROOM).contains(&room);
        (fits && slots.is_power_of_two()).then_some(Self { slots, room })
    }

    /// How many frames fit.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Longest frame in bytes.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Distance between slots in bytes: whole cache lines.
    pub fn stride(&self) -> usize {
        (SlotHeader::BYTES + self.room).next_multiple_of(64)
    }

    /// Bytes of memory the ring takes, a multiple of [`Word::STRIDE`].
    pub fn bytes(&self) -> usize {
        (Word::COUNT * Word::STRIDE + self.slots as usize * self.stride()).next_multiple_of(Word::STRIDE)
    }

    /// Where the slot that holds frame number `index` begins. In bounds for every `index`.
    fn slot_offset(&self, index: u32) -> usize {
        Word::COUNT * Word::STRIDE + (index & (self.slots - 1)) as usize * self.stride()
    }
}

/// The memory of a ring as both ends reach it. The other end may change any of it at any time.
///
/// [`Region`] is the real thing; model checkers bring their own.
pub trait Shared {
    /// The shape both ends agreed on, kept outside the shared memory.
    fn layout(&self) -> Layout;
    /// Reads a control word.
    fn load(&self, word: Word, order: Ordering) -> u32;
    /// Writes a control word.
    fn store(&self, word: Word, value: u32, order: Ordering);
    /// Writes a control word and returns what was there.
    fn swap(&self, word: Word, value: u32, order: Ordering) -> u32;
    /// Sets bits of a control word.
    fn fetch_or(&self, word: Word, bits: u32, order: Ordering) -> u32;
    /// A sequentially consistent fence.
    fn fence(&self);
    /// Writes the slot of frame number `index` (modulo the number of slots).
    ///
    /// # Panics
    /// When the frame is longer than the room of a slot: the caller's mistake.
    fn write_slot(&self, index: u32, header: SlotHeader, frame: &[u8]);
    /// Reads the header of the slot of frame number `index`, once.
    fn read_header(&self, index: u32) -> SlotHeader;
    /// Copies the first bytes of the frame in the slot of frame number `index`.
    ///
    /// # Panics
    /// When `into` is longer than the room of a slot: the caller's mistake.
    fn read_slot(&self, index: u32, into: &mut [u8]);
}
