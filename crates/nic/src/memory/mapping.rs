//! A memfd and its mapping, sealed so that neither end can shrink it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::ring::{Layout, Region};

/// Memory mapped from a memfd; unmapped when the last ring in it is dropped.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: memory is memory on every thread; all access goes through `Region`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates memory. Returns the memfd, for the peer, and its mapping.
    pub(super) fn create(bytes: usize) -> io::Result<(OwnedFd, Arc<Self>)> {
        let memfd = memfd_create("abey-nic", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memfd, bytes as u64)?;
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Self::map(memfd.as_fd(), bytes)?;
        Ok((memfd, mapping))
    }

    /// Maps the memfd of a peer, if it has this size and cannot shrink: an access beyond the end of a mapped file raises
    /// SIGBUS.
    pub(super) fn of_peer(memfd: &OwnedFd, bytes: usize) -> io::Result<Arc<Self>> {
        let seals = fcntl_get_seals(memfd)?;
        if !seals.contains(SealFlags::SHRINK) || fstat(memfd)?.st_size as u64 != bytes as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the memory has the wrong size or is not sealed"));
        }
        Self::map(memfd.as_fd(), bytes)
    }

    fn map(memfd: BorrowedFd<'_>, bytes: usize) -> io::Result<Arc<Self>> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes it; nothing else lives there.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, memfd, 0)? };
        let base = NonNull::new(base.cast()).expect("a mapping is not at address 0");
        Ok(Arc::new(Self { base, bytes }))
    }

    /// Returns the ring at position `index`.
    pub(super) fn ring(self: &Arc<Self>, layout: Layout, index: usize) -> Region {
        assert!((index + 1) * layout.bytes() <= self.bytes, "ring {index} lies outside the memory");
        // SAFETY: in bounds, as just checked; pages are aligned, and so is a ring's size; `Region` keeps us alive.
        unsafe { Region::new(self.base.add(index * layout.bytes()), layout, self.clone()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping, and no ring in it is left.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an own mapping failed");
    }
}
