//! A lock with pending marks: a thread that finds the lock busy leaves a mark, and the holder finds the mark when it unlocks.
//!
//! An interrupt must neither wait for a shard that an application holds, nor be lost. So the thread that takes the
//! interrupt leaves a mark and returns. The holder finds the mark when it unlocks, and handles the interrupt: a CPU takes
//! its pending interrupts in the same way when it enables them again.
//!
//! *Why no mark is lost.* The marker writes the mark, then tries the lock. The holder unlocks, then reads the marks. Both
//! have a full fence between the two steps, so at least one of them sees the other's write. Either the marker finds the
//! lock free, or the holder finds the mark and tries the lock again. If that attempt fails, a third thread holds the lock,
//! and that thread reads the marks when it unlocks.
//!
//! `tests/interleavings` runs this file under loom.

use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering, fence};

/// A set of marks. The caller defines the meaning of each bit.
pub(crate) type Marks = u32;

/// A value under a lock at which other threads can leave marks.
#[derive(Debug)]
pub(crate) struct PendingLock<T> {
    marks: AtomicU32,
    /// The number of threads that wait for the lock. A holder that would lock again at once yields to them first.
    waiting: AtomicU32,
    value: Mutex<T>,
}

/// A guard of a held [`PendingLock`].
///
/// Unlock it with [`Held::release`]. A plain drop (a panic) leaves the marks to the next holder.
#[derive(Debug)]
pub(crate) struct Held<'a, T> {
    lock: &'a PendingLock<T>,
    guard: MutexGuard<'a, T>,
}

impl<T> PendingLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { marks: AtomicU32::new(0), waiting: AtomicU32::new(0), value: Mutex::new(value) }
    }

    /// Locks, and waits if necessary. The flag is `true` if the lock was busy, which may have cost a system call.
    pub(crate) fn lock(&self) -> (Held<'_, T>, bool) {
        if let Some(held) = self.try_lock() {
            return (held, false);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // The panic of another holder is a bug that was reported; the value is as the last completed step left it.
        let guard = self.value.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        (Held { lock: self, guard }, true)
    }

    /// Locks if the lock is free; otherwise leaves `marks` for the holder and returns `None`.
    ///
    /// If it locks, [`Held::take_marks`] returns `marks` among others.
    pub(crate) fn lock_or_mark(&self, marks: Marks) -> Option<Held<'_, T>> {
        self.marks.fetch_or(marks, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.try_lock()
    }

    /// Returns whether a thread waits for the lock.
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
    /// Returns and clears the marks that were left so far.
    pub(crate) fn take_marks(&mut self) -> Marks {
        // `release` finds a mark that is left at this moment.
        if self.lock.marks.load(Ordering::Relaxed) == 0 { 0 } else { self.lock.marks.swap(0, Ordering::SeqCst) }
    }

    /// Unlocks. Returns the lock, held again, if there is a mark that no other thread will find.
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
