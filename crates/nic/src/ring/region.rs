//! The memory of a ring: part of a mapping shared with another process, or memory of a test.

use std::cell::UnsafeCell;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::shared::{Layout, Shared, SlotHeader, Word};

/// Memory of one ring, with a reference to its owner.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    layout: Layout,
    _owner: Arc<dyn Send + Sync>,
}

// SAFETY: the memory lives as long as `_owner`, which may move between threads, and is only reached through atomics and
// raw copies, never through references.
unsafe impl Send for Region {}
// SAFETY: as above; every access may race with another process anyway.
unsafe impl Sync for Region {}

impl Region {
    /// Returns the region at `base`.
    ///
    /// # Safety
    /// `base` is aligned to [`Word::STRIDE`], and `layout.bytes()` bytes from it stay mapped, readable and writable as
    /// long as `owner` lives. No references to them are formed.
    ///
    /// # Panics
    /// When `base` is not aligned.
    pub unsafe fn new(base: NonNull<u8>, layout: Layout, owner: Arc<dyn Send + Sync>) -> Self {
        assert!(base.as_ptr().addr().is_multiple_of(Word::STRIDE), "a ring at {base:?} is not aligned");
        Self { base, layout, _owner: owner }
    }

    /// Allocates zeroed memory of this process.
    pub fn allocate(layout: Layout) -> Self {
        /// Two cache lines.
        #[repr(align(128))]
        #[allow(dead_code, reason = "reached through raw pointers only")]
        struct Lines(UnsafeCell<[u8; Word::STRIDE]>);
        struct Memory(Box<[Lines]>);
        // SAFETY: the bytes are only reached through `Region`, which treats them as shared with other processes.
        unsafe impl Sync for Memory {}

        let lines = || Lines(UnsafeCell::new([0; Word::STRIDE]));
        let memory = Arc::new(Memory((0..layout.bytes() / Word::STRIDE).map(|_| lines()).collect()));
        let base = NonNull::from(&*memory.0).cast();
        // SAFETY: the allocation has the size and alignment, does not move with the Arc, and lives as long as it.
        unsafe { Self::new(base, layout, memory) }
    }

    fn word(&self, word: Word) -> &AtomicU32 {
        // SAFETY: in bounds (the layout has all words at its beginning), aligned, and reached through atomics only. An
        // atomic is valid whatever the other process stores.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(word.offset()).cast()) }
    }

    fn header(&self, index: u32) -> &AtomicU64 {
        // SAFETY: `slot_offset` is in bounds for every index and a multiple of 64; otherwise as `word`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(self.layout.slot_offset(index)).cast()) }
    }

    fn data(&self, index: u32) -> NonNull<u8> {
        // SAFETY: in bounds: a slot is at least its header and `room` bytes long.
        unsafe { self.base.add(self.layout.slot_offset(index) + SlotHeader::BYTES) }
    }
}

impl Shared for Region {
    #[inline]
    fn layout(&self) -> Layout {
        self.layout
    }

    #[inline]
    fn load(&self, word: Word, order: Ordering) -> u32 {
        self.word(word).load(order)
    }

    #[inline]
    fn store(&self, word: Word, value: u32, order: Ordering) {
        self.word(word).store(value, order);
    }

    #[inline]
    fn swap(&self, word: Word, value: u32, order: Ordering) -> u32 {
        self.word(word).swap(value, order)
    }

    #[inline]
    fn fetch_or(&self, word: Word, bits: u32, order: Ordering) -> u32 {
        self.word(word).fetch_or(bits, order)
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn write_slot(&self, index: u32, header: SlotHeader, frame: &[u8]) {
        assert!(frame.len() <= self.layout.room(), "a frame of {} bytes does not fit its slot", frame.len());
        self.header(index).store(header.pack(), Ordering::Relaxed);
        // SAFETY: checked just now to fit the slot. The other process may write any bytes there at the same
        // time; no references to them exist.
        unsafe { frame.as_ptr().copy_to_nonoverlapping(self.data(index).as_ptr(), frame.len()) }
    }

    #[inline]
    fn read_header(&self, index: u32) -> SlotHeader {
        SlotHeader::unpack(self.header(index).load(Ordering::Relaxed))
    }

    #[inline]
    fn read_slot(&self, index: u32, into: &mut [u8]) {
        assert!(into.len() <= self.layout.room(), "{} bytes are longer than a slot", into.len());
        // SAFETY: checked just now to lie in the slot. If the other process writes at the same time the copy is a
        // mixture, and any bytes are a valid frame here.
        unsafe { self.data(index).as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Region").field("layout", &self.layout).finish_non_exhaustive()
    }
}
