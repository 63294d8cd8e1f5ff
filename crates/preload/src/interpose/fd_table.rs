//! The table from descriptors to datapath sockets and epoll sets, which is read without a lock.
//!
//! A slot holds a reference-counted pointer. A lookup holds a reference for the duration of the call, so that a descriptor
//! that another thread closes, and that the kernel reuses, is never mistaken for the old one within a call. Several
//! descriptors may share an entry (`dup(2)`); the last one that is closed drops it.
//!
//! A slot is emptied *before* the kernel descriptor is closed, and every interposed call that makes a descriptor empties
//! the new slot first. So a descriptor that was closed without this library (`fclose(3)`, a direct system call) leaves no
//! stale entry.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use arc_swap::{ArcSwapOption, Guard};
use libc::c_int;

use super::context::uninterposed;
use super::epoll_set::EpollSet;
use super::process;
use super::socket::Socket;

/// Number of slots; descriptors above it stay the kernel's. Empty slots are zero pages that are never touched.
pub(crate) const SLOTS: usize = 1 << 18;

static TABLE: [ArcSwapOption<Entry>; SLOTS] = [const { ArcSwapOption::const_empty() }; SLOTS];

/// The ID of the process that owns the table.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// One above the highest slot that was ever filled.
static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);

static FORKS: Once = Once::new();

/// What a descriptor stands for.
#[derive(Debug)]
pub(crate) enum Entry {
    Socket(Socket),
    Epoll(EpollSet),
}

/// The result of a lookup, which keeps the entry alive.
pub(crate) type Found = Guard<Option<Arc<Entry>>>;

fn slot(fd: c_int) -> Option<&'static ArcSwapOption<Entry>> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Looks up a descriptor's entry.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Found> {
    if !process::is_table_active() {
        return None;
    }
    let found = slot(fd)?.load();
    found.is_some().then_some(found)
}

/// Runs `work` with the datapath socket of `fd`, if it is one.
#[inline]
pub(crate) fn with_socket<R>(fd: c_int, work: impl FnOnce(&Socket) -> R) -> Option<R> {
    let found = get(fd).or_else(|| report_if_orphaned(fd))?;
    match found.as_deref()? {
        Entry::Socket(socket) => Some(work(socket)),
        Entry::Epoll(_) => None,
    }
}

/// Reports the use of a socket of the parent process in a forked child. Always returns `None`.
#[inline]
pub(crate) fn report_if_orphaned(fd: c_int) -> Option<Found> {
    if process::is_child() && slot(fd).is_some_and(|slot| slot.load().is_some()) {
        process::report_orphaned_socket();
    }
    None
}

/// Inserts an entry. Returns false if the descriptor is too high for the table.
pub(crate) fn insert(fd: c_int, object: Arc<Entry>) -> bool {
    let Some(slot) = slot(fd) else { return false };
    // A child made by `fork` has its own copy from then on. A child made by `vfork` does not run fork handlers.
    FORKS.call_once(|| {
        // SAFETY: the handler takes no arguments and only stores a word.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    });
    slot.store(Some(object));
    HIGH_WATER.fetch_max(fd.max(0) as usize + 1, Ordering::Relaxed);
    OWNER.store(std::process::id(), Ordering::Relaxed);
    process::activate_table();
    true
}

/// Makes a forked child the owner of its copy of the table. Only stores words, as a fork handler must.
pub(super) extern "C" fn after_fork_in_child() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

/// Returns the number of descriptors whose entry satisfies `is`.
pub(crate) fn count(is: impl Fn(&Entry) -> bool) -> usize {
    let used = HIGH_WATER.load(Ordering::Relaxed).min(SLOTS);
    TABLE[..used].iter().filter(|slot| slot.load().as_deref().is_some_and(&is)).count()
}

/// Returns a descriptor's entry.
pub(crate) fn entry(fd: c_int) -> Option<Arc<Entry>> {
    get(fd).and_then(|found| found.clone())
}

/// Removes the entry of a descriptor that is about to be closed, or that is new.
#[inline]
pub(crate) fn remove(fd: c_int) {
    if get(fd).is_some() {
        remove_now(fd);
    }
}

#[cold]
fn remove_now(fd: c_int) {
    // A child that shares the memory (`vfork`) closes its own descriptors only.
    if OWNER.load(Ordering::Relaxed) == std::process::id()
        && let Some(slot) = slot(fd)
    {
        uninterposed(|| drop(slot.swap(None)));
    }
}

/// Removes the entries of all descriptors from `first` to `last`.
pub(crate) fn remove_range(first: c_int, last: c_int) {
    if process::is_table_active() {
        (first..=last.min(SLOTS as c_int - 1)).for_each(remove);
    }
}
