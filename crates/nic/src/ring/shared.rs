//! The memory that both ends of a ring share: its control words, its slots and their layout.

use std::sync::atomic::Ordering;

/// A control word of the ring. Each has cache lines of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Number of frames that the producer has published, modulo 2^32.
    Produced,
    /// Number of frames that the consumer has taken, modulo 2^32.
    Consumed,
    /// 1 while the interrupt is armed.
    Armed,
    /// One bit for each queue of the producer's side that waits for room.
    WantRoom,
}

impl Word {
    /// Distance between words in bytes: two cache lines, because processors fetch lines in pairs.
    pub const STRIDE: usize = 128;
    /// Number of words.
    pub const COUNT: usize = 4;

    pub(super) fn offset(self) -> usize {
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
    /// Length in bytes.
    pub const BYTES: usize = 8;

    /// Returns the header as a word of memory.
    pub fn pack(self) -> u64 {
        u64::from(self.flags) << 32 | u64::from(self.length)
    }

    /// Returns the header in a word of memory. Every value is a header, possibly one with an invalid length.
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
    /// Maximum number of slots.
    pub const MAX_SLOTS: u32 = 1 << 16;
    /// Maximum length of a frame in bytes: a packet of 65,535 bytes and an Ethernet header with two tags.
    pub const MAX_ROOM: usize = 65_535 + 22;

    /// Returns the layout of `slots` slots with room for frames of `room` bytes each; `None` unless `slots` is a power of two from
    /// 2 to [`Self::MAX_SLOTS`] and `room` from 14 to [`Self::MAX_ROOM`].
    pub fn new(slots: u32, room: usize) -> Option<Self> {
        let fits = (2..=Self::MAX_SLOTS).contains(&slots) && (14..=Self::MAX_ROOM).contains(&room);
        (fits && slots.is_power_of_two()).then_some(Self { slots, room })
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the maximum length of a frame in bytes.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Returns the distance between slots in bytes: whole cache lines.
    pub fn stride(&self) -> usize {
        (SlotHeader::BYTES + self.room).next_multiple_of(64)
    }

    /// Returns the length of the ring's memory in bytes, a multiple of [`Word::STRIDE`].
    pub fn bytes(&self) -> usize {
        (Word::COUNT * Word::STRIDE + self.slots as usize * self.stride()).next_multiple_of(Word::STRIDE)
    }

    /// Returns the offset of the slot of frame number `index`. It is in bounds for every `index`.
    pub(super) fn slot_offset(&self, index: u32) -> usize {
        Word::COUNT * Word::STRIDE + (index & (self.slots - 1)) as usize * self.stride()
    }
}

/// The memory of a ring, which the other end may change at any time.
///
/// [`Region`](super::Region) is shared memory; model checkers implement their own.
pub trait Shared {
    /// Returns the layout that both ends agreed on, which is stored outside the shared memory.
    fn layout(&self) -> Layout;
    /// Reads a control word.
    fn load(&self, word: Word, order: Ordering) -> u32;
    /// Writes a control word.
    fn store(&self, word: Word, value: u32, order: Ordering);
    /// Writes a control word and returns its previous value.
    fn swap(&self, word: Word, value: u32, order: Ordering) -> u32;
    /// Sets bits of a control word.
    fn fetch_or(&self, word: Word, bits: u32, order: Ordering) -> u32;
    /// Executes a sequentially consistent fence.
    fn fence(&self);
    /// Writes the slot of frame number `index` (modulo the number of slots).
    ///
    /// # Panics
    /// When the frame is longer than a slot.
    fn write_slot(&self, index: u32, header: SlotHeader, frame: &[u8]);
    /// Reads the header of the slot of frame number `index`, once.
    fn read_header(&self, index: u32) -> SlotHeader;
    /// Copies the first bytes of the frame in the slot of frame number `index`.
    ///
    /// # Panics
    /// When `into` is longer than a slot.
    fn read_slot(&self, index: u32, into: &mut [u8]);
}
