//! Going to sleep and being woken, without a system call when nobody sleeps.
//!
//! A thread that sleeps on descriptors is woken by writing to one of them, which is expensive and, while it is awake,
//! useless. A word says which it is: the sleeper announces that it is about to sleep, *then* looks a last time for
//! what it waits for; whoever brings that about does so first, *then* looks at the word. A wake-up that finds it awake
//! is remembered, and the next attempt to sleep finds it.
//!
//! `tests/interleavings` runs this very file under loom.

use crate::sync::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;
const WOKEN: u32 = 2;

/// The word.
#[derive(Debug)]
pub(crate) struct Parking(AtomicU32);

impl Parking {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(AWAKE))
    }

    /// The thread is about to sleep. False: it was woken meanwhile and must not.
    pub(crate) fn begin(&self) -> bool {
        let asleep = self.0.compare_exchange(AWAKE, SLEEPING, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        fence(Ordering::SeqCst);
        asleep
    }

    /// The thread is awake. Whether somebody woke it, since it began to sleep or was awake last.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(AWAKE, Ordering::SeqCst) == WOKEN
    }

    /// Wakes the thread. True: it sleeps, and its descriptor must be written to.
    pub(crate) fn wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.swap(WOKEN, Ordering::SeqCst) == SLEEPING
    }
}
