//! The four rings an AF_XDP socket shares with the kernel, as mappings of the socket.
//!
//! The kernel reports the layout (`XDP_MMAP_OFFSETS`, Linux `Documentation/networking/af_xdp.rst`): free-running 32-bit
//! indices, entries addressed modulo the size, and a word of flags. The kernel is trusted to follow the protocol.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpRingFlags, XdpRingOffset};

/// The mapping of one ring with entries of type `T`.
struct Ring<T> {
    base: NonNull<u8>,
    bytes: usize,
    offsets: XdpRingOffset,
    flags: u64,
    size: u32,
    entries: PhantomData<T>,
}

// SAFETY: memory shared with the kernel, which does not care about threads; reached through atomics and through copies of
// entries that the protocol has passed to this process.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `size` entries at `page_offset` of the socket.
    fn map(socket: BorrowedFd<'_>, page_offset: u64, offsets: XdpRingOffset, size: u32) -> io::Result<Self> {
        let flags = offsets.flags.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        assert!(size.is_power_of_two(), "a ring of {size} entries");
        let bytes = offsets.desc as usize + size as usize * size_of::<T>();
        let (protection, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping where the kernel likes it.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, how, socket, page_offset)? };
        let base = NonNull::new(base.cast()).expect("a mapping is not at address 0");
        Ok(Self { base, bytes, offsets, flags, size, entries: PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        assert!(offset as usize + 4 <= self.bytes, "a word at {offset} lies outside the ring");
        // SAFETY: in bounds, aligned as the kernel lays rings out, and only ever reached through atomics.
        unsafe { AtomicU32::from_ptr(self.base.add(offset as usize).as_ptr().cast()) }
    }

    fn produced(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumed(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    fn needs_wakeup(&self) -> bool {
        let flags = self.word(self.flags).load(Ordering::Relaxed);
        XdpRingFlags::from_bits_retain(flags).contains(XdpRingFlags::XDP_RING_NEED_WAKEUP)
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = (index & (self.size - 1)) as usize * size_of::<T>();
        // SAFETY: in bounds for every index, as the mapping goes to the end of the last entry.
        unsafe { self.base.add(self.offsets.desc as usize + at).as_ptr().cast() }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nothing refers to it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping failed");
    }
}

/// A ring that this process writes: fill and transmit.
pub(super) struct Producer<T> {
    ring: Ring<T>,
    produced: u32,
    /// The kernel's index when it was last read.
    consumed: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn map(socket: BorrowedFd<'_>, page_offset: u64, offsets: XdpRingOffset, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(socket, page_offset, offsets, size)?, produced: 0, consumed: 0 })
    }

    /// Writes the next entry; `false` when the ring is full. The kernel reads it after [`publish`](Self::publish).
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.produced.wrapping_sub(self.consumed) == self.ring.size {
            // Acquire: the kernel has read the entries that it returns.
            self.consumed = self.ring.consumed().load(Ordering::Acquire);
            if self.produced.wrapping_sub(self.consumed) >= self.ring.size {
                return false;
            }
        }
        // SAFETY: the entry is beyond the published ones, and the kernel has taken its last content.
        unsafe { self.ring.entry(self.produced).write(entry) };
        self.produced = self.produced.wrapping_add(1);
        true
    }

    /// Publishes the entries that were pushed.
    pub(super) fn publish(&mut self) {
        // Release: the entries are written before the index.
        self.ring.produced().store(self.produced, Ordering::Release);
    }

    /// Returns the number of published entries that the kernel has not taken yet.
    pub(super) fn pending(&self) -> u32 {
        self.produced.wrapping_sub(self.ring.consumed().load(Ordering::Relaxed))
    }

    /// Returns whether the kernel needs a system call to continue.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// A ring that this process reads: receive and completion.
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    consumed: u32,
    /// The kernel's index when it was last read.
    produced: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn map(socket: BorrowedFd<'_>, page_offset: u64, offsets: XdpRingOffset, size: u32) -> io::Result<Self> {
        Ok(Self { ring: Ring::map(socket, page_offset, offsets, size)?, consumed: 0, produced: 0 })
    }

    /// Reads the next entry, if there is one. The kernel may overwrite it after [`release`](Self::release).
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.consumed == self.produced {
            // Acquire: the entries were written before the index.
            self.produced = self.ring.produced().load(Ordering::Acquire);
            if self.consumed == self.produced {
                return None;
            }
        }
        // SAFETY: the kernel has published the entry and we have not given it back.
        let entry = unsafe { self.ring.entry(self.consumed).read() };
        self.consumed = self.consumed.wrapping_add(1);
        Some(entry)
    }

    /// Returns the entries that were popped to the kernel.
    pub(super) fn release(&mut self) {
        // Release: the entries were read before they are written again.
        self.ring.consumed().store(self.consumed, Ordering::Release);
    }

    /// Returns whether there is an entry to pop.
    pub(super) fn is_ready(&self) -> bool {
        self.ring.produced().load(Ordering::Acquire) != self.consumed
    }
}
