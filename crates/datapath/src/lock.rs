//! Lock-and-pending: a lock that whoever finds it busy can leave a mark at, and the mark is seen when the lock is let go.
//!
//! An interrupt must not wait for a shard that an application has in its hands, and must not be lost either. So it leaves
//! a mark and goes; the holder, about to let go, finds the mark and does what the interrupt would have done, as a CPU
//! takes its interrupts when it enables them again.
//!
//! *Why no mark is lost.* Who marks first writes the mark, then tries the lock. Who lets go first unlocks, then reads the
//! marks. A full fence stands between the two halves of either, so at least one of them sees what the other wrote: the
//! marker finds the lock free, or the holder finds the mark (and tries the lock again; if that fails, there is a new
//! holder, who will let go later than that and look then).
//!
//! `tests/interleavings` runs this very file under loom.

use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, fence};

/// A set of marks: which bits mean what is the caller's business.
pub(crate) type Marks = u32;

/// A value under a lock at which marks can be left.
#[derive(Debug)]
pub(crate) struct PendingLock<T> {
    marks: AtomicU32,
    /// Threads that wait for the lock: a holder that would take it again at once lets them go first.
    waiting: AtomicU32,
    value: Mutex<T>,
}

/// The lock is held. Let go by [`Held::release`]; a plain drop (a panic) leaves marks to the next holder.
#[derive(Debug)]
pub(crate) struct Held<'a, T> {
    lock: &'a PendingLock<T>,
    guard: MutexGuard<'a, T>,
}

impl<T> PendingLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { marks: AtomicU32::new(0), waiting: AtomicU32::new(0), value: Mutex::new(value) }
    }

    /// Waits for the lock. `true` beside it: it was not free at once, which may have taken a system call.
    pub(crate) fn lock(&self) -> (Held<'_, T>, bool) {
        if let Some(held) = self.try_lock() {
            return (held, false);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // A panic of another holder was our bug and has been reported; the value is what the last step left.
        let guard = self.value.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        (Held { lock: self, guard }, true)
    }

    /// Takes the lock if it is free, else leaves `marks` for the holder. Taken, the marks are among those that
    /// [`Held::take_marks`] gives.
    pub(crate) fn lock_or_mark(&self, marks: Marks) -> Option<Held<'_, T>> {
        self.marks.fetch_or(marks, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.try_lock()
    }

    /// Whether somebody waits for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn try_lock(&self) -> Option<Held<'_, T>> {
        match self.value.try_lock() {
            Ok(guard) => Some(Held { lock: self, guard }),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(Held { lock: self, guard: poisoned.into_inner() }),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

impl<'a, T> Held<'a, T> {
    /// The marks left so far; they are left no more.
    pub(crate) fn take_marks(&mut self) -> Marks {
        // One that is left just now is found when the lock is let go.
        if self.lock.marks.load(Ordering::Relaxed) == 0 { 0 } else { self.lock.marks.swap(0, Ordering::SeqCst) }
    }

    /// Lets go. If a mark was left that nobody else will see, the lock is still, or again, held.
    #[must_use]
    pub(crate) fn release(self) -> Option<Self> {
        let Self { lock, guard } = self;
        drop(guard);
        fence(Ordering::SeqCst);
        if lock.marks.load(Ordering::SeqCst) == 0 {
            return None;
        }
        lock.try_lock()
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}
