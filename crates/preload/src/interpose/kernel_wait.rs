//! The system call that every wait for datapath sockets sleeps in: one `ppoll(2)` for the runtime's descriptors, the kernel
//! descriptors that the program waits for as well, and the program's signal mask.
//!
//! A direct system call, since the C library's function is interposed by this library, and is a cancellation point that
//! would unwind frames which hold locks.

use std::cell::{Cell, RefCell};
use std::ptr::null;

use abey_datapath::KernelWait;
use libc::{c_int, pollfd, sigset_t, timespec};
use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;

use crate::syscall::raw;

/// The kernel descriptors and the signal mask of one wait.
pub(crate) struct PollSet<'a> {
    descriptors: RefCell<&'a mut [pollfd]>,
    mask: Option<&'a sigset_t>,
    /// The thread's own mask, while its signals are blocked.
    saved_mask: Cell<Option<sigset_t>>,
}

/// Number of descriptors that are put together on the stack.
const INLINE: usize = 16;

const UNUSED: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

const _: () = assert!(size_of::<PollFd<'_>>() == size_of::<pollfd>());

impl<'a> PollSet<'a> {
    /// Returns a set of the program's descriptors, whose `revents` the wait fills in, and its signal mask.
    pub(crate) fn new(descriptors: &'a mut [pollfd], mask: Option<&'a sigset_t>) -> Self {
        Self { descriptors: RefCell::new(descriptors), mask, saved_mask: Cell::new(None) }
    }

    /// Returns whether the last wait found the descriptor at this index ready.
    pub(crate) fn is_ready(&self, at: usize) -> bool {
        self.descriptors.borrow().get(at).is_some_and(|descriptor| descriptor.revents != 0)
    }
}

/// `ppoll(2)`.
pub(crate) fn ppoll(
    descriptors: &mut [pollfd],
    timeout: Option<timespec>,
    mask: Option<&sigset_t>,
) -> Result<usize, c_int> {
    /// The size of the kernel's signal set, in bytes.
    const SIGSET_BYTES: usize = 8;
    let mut timeout = timeout;
    let timeout = timeout.as_mut().map_or(null(), |timeout| &raw const *timeout);
    let mask = mask.map_or(null(), |mask| &raw const *mask);
    // SAFETY: the descriptors, the time, which the kernel may change, and the mask live through the call.
    let answer = unsafe {
        let at = descriptors.as_mut_ptr() as usize;
        raw(libc::SYS_ppoll, [at, descriptors.len(), timeout as usize, mask as usize, SIGSET_BYTES, 0])
    };
    usize::try_from(answer).map_err(|_| crate::errno::errno())
}

/// Polls `own` and `others` in one call. Returns whether any of `others` is ready.
fn ppoll_both(
    own: &mut [pollfd],
    others: &mut [pollfd],
    timeout: Option<timespec>,
    mask: Option<&sigset_t>,
) -> Result<bool, c_int> {
    if others.is_empty() {
        return ppoll(own, timeout, mask).map(|_| false);
    }
    let (mut inline, mut heap) = ([UNUSED; INLINE], Vec::new());
    let count = own.len() + others.len();
    let all = if count <= INLINE {
        &mut inline[..count]
    } else {
        heap.resize(count, UNUSED);
        &mut heap[..]
    };
    all[..own.len()].copy_from_slice(own);
    all[own.len()..].copy_from_slice(others);
    let answer = ppoll(all, timeout, mask);
    let (first, second) = all.split_at(own.len());
    own.copy_from_slice(first);
    others.copy_from_slice(second);
    answer.map(|_| others.iter().any(|other| other.revents != 0))
}

impl KernelWait for PollSet<'_> {
    fn poll(&self, own: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> rustix::io::Result<bool> {
        if super::cancellation::is_cancelled() {
            return Err(Errno::INTR);
        }
        // SAFETY: `PollFd` is C's `pollfd` with a borrowed descriptor, with the same size and layout; the call changes only
        // `revents`.
        let own = unsafe { std::slice::from_raw_parts_mut(own.as_mut_ptr().cast::<pollfd>(), own.len()) };
        let timeout = timeout.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec });
        let saved_mask = self.saved_mask.get();
        let mask = self.mask.or(saved_mask.as_ref());
        crate::errno::preserve_errno(|| ppoll_both(own, &mut self.descriptors.borrow_mut(), timeout, mask))
            .map_err(Errno::from_raw_os_error)
    }

    fn block_signals(&self) {
        if self.saved_mask.get().is_none() {
            self.saved_mask.set(Some(crate::signal_mask::block_all()));
        }
    }
}

impl Drop for PollSet<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.saved_mask.take() {
            crate::errno::preserve_errno(|| crate::signal_mask::restore(&before));
        }
    }
}
