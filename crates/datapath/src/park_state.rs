//! The state of a thread that parks, with which a wake-up costs a system call only if the thread sleeps.
//!
//! A parked thread sleeps on descriptors, and a write to one of them wakes it. That write is expensive, and useless while
//! the thread runs. An atomic word distinguishes the two cases:
//!
//! - The thread sets the word to PARKED, *then* checks its condition a last time, then sleeps.
//! - A notifier makes the condition true, *then* sets the word to NOTIFIED, and writes only if the word was PARKED.
//!
//! A notification of a running thread is stored, and the thread's next attempt to park finds it.
//!
//! `tests/interleavings` runs this file under loom.

use crate::sync::{AtomicU32, Ordering, fence};

/// The thread runs, and was not notified.
const EMPTY: u32 = 0;
/// The thread sleeps, or is about to.
const PARKED: u32 = 1;
/// The thread was notified since it last ran or parked.
const NOTIFIED: u32 = 2;

/// The atomic word.
#[derive(Debug)]
pub(crate) struct ParkState(AtomicU32);

impl ParkState {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(EMPTY))
    }

    /// Announces that the calling thread is about to sleep. Returns `false` if it was notified and must not sleep.
    pub(crate) fn park(&self) -> bool {
        let parked = self.0.compare_exchange(EMPTY, PARKED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        fence(Ordering::SeqCst);
        parked
    }

    /// Marks the calling thread as running. Returns whether it was notified since the last call.
    pub(crate) fn finish(&self) -> bool {
        self.0.swap(EMPTY, Ordering::SeqCst) == NOTIFIED
    }

    /// Notifies the thread. Returns `true` if it is parked, and the caller must write to its descriptor.
    pub(crate) fn unpark(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.swap(NOTIFIED, Ordering::SeqCst) == PARKED
    }
}
