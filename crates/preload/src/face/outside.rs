//! What a wait of the datapath's sleeps in: one `ppoll` for its own descriptors, the kernel's that the program waits for
//! too, and the program's mask for signals.
//!
//! By the system call itself: the C library's function is this library's own `ppoll`, and cancels threads in the middle.

use std::cell::{Cell, RefCell};
use std::ptr::null;

use abey_datapath::Outside;
use libc::{c_int, pollfd, sigset_t, timespec};
use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;

/// The kernel's side of one wait.
pub(crate) struct Beside<'a> {
    descriptors: RefCell<&'a mut [pollfd]>,
    mask: Option<&'a sigset_t>,
    /// The mask of the program's thread, while its signals are held.
    held: Cell<Option<sigset_t>>,
}

/// How many descriptors are put together without an allocation.
const FEW: usize = 16;

const NOTHING: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

const _: () = assert!(size_of::<PollFd<'_>>() == size_of::<pollfd>());

impl<'a> Beside<'a> {
    /// Descriptors, whose `revents` tell in the end what they are ready for, and a mask for signals.
    pub(crate) fn new(descriptors: &'a mut [pollfd], mask: Option<&'a sigset_t>) -> Self {
        Self { descriptors: RefCell::new(descriptors), mask, held: Cell::new(None) }
    }

    /// Whether one of them was found ready by the last look.
    pub(crate) fn is_ready(&self, at: usize) -> bool {
        self.descriptors.borrow().get(at).is_some_and(|descriptor| descriptor.revents != 0)
    }
}

/// `ppoll(2)`.
pub(crate) fn call(
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
        libc::syscall(libc::SYS_ppoll, descriptors.as_mut_ptr(), descriptors.len(), timeout, mask, SIGSET_BYTES)
    };
    usize::try_from(answer).map_err(|_| crate::wait::errno())
}

/// One call for both: `own` first, then the others. Whether any of the others is ready.
fn call_for_both(
    own: &mut [pollfd],
    others: &mut [pollfd],
    timeout: Option<timespec>,
    mask: Option<&sigset_t>,
) -> Result<bool, c_int> {
    if others.is_empty() {
        return call(own, timeout, mask).map(|_| false);
    }
    let (mut few, mut many) = ([NOTHING; FEW], Vec::new());
    let count = own.len() + others.len();
    let all = if count <= FEW {
        &mut few[..count]
    } else {
        many.resize(count, NOTHING);
        &mut many[..]
    };
    all[..own.len()].copy_from_slice(own);
    all[own.len()..].copy_from_slice(others);
    let answer = call(all, timeout, mask);
    let (first, second) = all.split_at(own.len());
    own.copy_from_slice(first);
    others.copy_from_slice(second);
    answer.map(|_| others.iter().any(|other| other.revents != 0))
}

impl Outside for Beside<'_> {
    fn poll(&self, own: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> rustix::io::Result<bool> {
        if super::cancel::is_cancelled() {
            return Err(Errno::INTR);
        }
        // SAFETY: the type is C's structure with a descriptor that is borrowed, of the same size and with the same layout;
        // only `revents` is changed.
        let own = unsafe { std::slice::from_raw_parts_mut(own.as_mut_ptr().cast::<pollfd>(), own.len()) };
        let timeout = timeout.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec });
        let held = self.held.get();
        let mask = self.mask.or(held.as_ref());
        crate::state::keep_errno(|| call_for_both(own, &mut self.descriptors.borrow_mut(), timeout, mask))
            .map_err(Errno::from_raw_os_error)
    }

    fn hold_signals(&self) {
        if self.held.get().is_none() {
            self.held.set(Some(crate::wait::block_signals()));
        }
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.held.take() {
            crate::state::keep_errno(|| crate::wait::restore_signals(&before));
        }
    }
}
