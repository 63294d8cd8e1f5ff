//! The table from descriptors to datapath sockets and epoll sets, which is read without a lock.
//!
//! A slot holds a reference-counted pointer. A lookup holds a reference for the duration of the call, so that a descriptor
//! that another thread closes, and that the kernel reuses, is never mistaken for the old one within a call. Several
//! descriptors may share an entry (`dup(2)`); the last one that is closed drops it.
//!
//! A slot is emptied *before* the kernel descriptor is closed, and every interposed call that makes a descriptor empties
//! the new slot first. So a descriptor that was closed without this library (`fclose(3)`, a direct system call) leaves no
//! stale entry.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use arc_swap::{ArcSwapOption, Guard};
use libc::c_int;

use super::context::uninterposed;
use super::epoll_set::EpollSet;
use super::socket::Socket;
use super::{accept_credit, handover, inherited, linger, process, runtime_fds, unknown_options};

/// Number of slots; descriptors above it stay the kernel's. Empty slots are zero pages that are never touched.
pub(crate) const SLOTS: usize = 1 << 18;

static TABLE: [ArcSwapOption<Entry>; SLOTS] = [const { ArcSwapOption::const_empty() }; SLOTS];

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
        inherited::prepare_use(fd);
        return None;
    }
    let found = slot(fd)?.load();
    match found.as_ref()? {
        object if is_moved(object) => {
            handover::settle_moved(object, fd);
            None
        }
        _ => Some(found),
    }
}

/// Returns whether the entry is a connection that a call has found handed over.
#[inline]
fn is_moved(object: &Entry) -> bool {
    matches!(object, Entry::Socket(socket) if socket.is_moved())
}

/// Runs `work` with the datapath socket of `fd`, if it is one.
#[inline]
pub(crate) fn with_socket<R>(fd: c_int, work: impl FnOnce(&Socket) -> R) -> Option<R> {
    let found = get(fd)?;
    match found.as_deref()? {
        Entry::Socket(socket) => Some(work(socket)),
        Entry::Epoll(_) => None,
    }
}

/// Inserts an entry. Returns false if the descriptor is too high for the table, or the table is another process's.
pub(crate) fn insert(fd: c_int, object: Arc<Entry>) -> bool {
    let Some(slot) = slot(fd) else { return false };
    if !process::own_table() {
        return false;
    }
    // A child made by `fork` has its own copy from then on. A child made by `vfork` does not run fork handlers.
    FORKS.call_once(|| {
        // SAFETY: the handlers take no arguments and only store words.
        unsafe { libc::pthread_atfork(None, Some(process::after_fork), Some(process::own_copy)) };
    });
    slot.store(Some(object));
    HIGH_WATER.fetch_max(fd.max(0) as usize + 1, Ordering::Relaxed);
    process::activate_table();
    true
}

/// Returns the number of descriptors whose entry satisfies `is`.
pub(crate) fn count(is: impl Fn(&Entry) -> bool) -> usize {
    let used = HIGH_WATER.load(Ordering::Relaxed).min(SLOTS);
    TABLE[..used].iter().filter(|slot| slot.load().as_deref().is_some_and(&is)).count()
}

/// Returns the descriptors whose entry satisfies `is`.
pub(super) fn find(is: impl Fn(&Entry) -> bool) -> Vec<(c_int, Arc<Entry>)> {
    let used = HIGH_WATER.load(Ordering::Relaxed).min(SLOTS);
    let found = TABLE[..used].iter().enumerate().filter_map(|(fd, slot)| Some((fd as c_int, slot.load_full()?)));
    found.filter(|(_, object)| is(object)).collect()
}

/// Returns the descriptors of an entry.
pub(super) fn descriptors_of(object: &Arc<Entry>) -> Vec<c_int> {
    find(|other| std::ptr::eq(other, &raw const **object)).into_iter().map(|(fd, _)| fd).collect()
}

/// Takes a descriptor's entry out of the table of a forked child.
pub(super) fn take(fd: c_int) -> Option<Arc<Entry>> {
    slot(fd)?.swap(None)
}

/// Puts an entry back that [`take`] has taken.
pub(super) fn put(fd: c_int, object: Arc<Entry>) {
    if let Some(slot) = slot(fd) {
        slot.store(Some(object));
    }
}

/// Removes the entry of a descriptor if it is still this one.
pub(super) fn remove_if(fd: c_int, object: &Arc<Entry>) {
    if let Some(slot) = slot(fd) {
        let current = Some(object.clone());
        slot.compare_and_swap(&current, None);
    }
}

/// Returns a descriptor's entry.
pub(crate) fn entry(fd: c_int) -> Option<Arc<Entry>> {
    get(fd).and_then(|found| found.clone())
}

/// Records a descriptor that a call of the program's has made, unless the call failed. It has no entry yet.
#[inline]
pub(crate) fn made(fd: c_int) {
    runtime_fds::made(fd);
    unknown_options::forget(fd);
    remove(fd);
}

/// Removes the entry of a descriptor that is about to be closed, or that is new.
#[inline]
pub(crate) fn remove(fd: c_int) {
    if !process::is_table_active() {
        inherited::forget(fd);
    } else if slot(fd).is_some_and(|slot| slot.load().is_some()) {
        remove_now(fd);
    }
}

#[cold]
fn remove_now(fd: c_int) {
    // A child that shares the memory (`vfork`) closes its own descriptors only.
    if process::own_table()
        && let Some(slot) = slot(fd)
    {
        uninterposed(|| drop(slot.swap(None)));
    }
}

/// Removes the entry of a descriptor that the program closes. Must precede the closing.
#[inline]
pub(super) fn close(fd: c_int) {
    if let Some(object) = entry_unless_child(fd) {
        handover::before_close(fd, &object);
        accept_credit::before_close(&object);
        linger::before_close(fd, &object);
    }
    remove(fd);
}

/// Removes the entries of all descriptors from `first` to `last`, which the program closes.
pub(super) fn close_range(first: c_int, last: c_int) {
    if process::may_have_entries() {
        let high_water = HIGH_WATER.load(Ordering::Relaxed).min(SLOTS) as c_int;
        (first..=last.min(high_water - 1)).for_each(close);
    }
}

/// Returns a descriptor's entry if the table is this process's.
#[inline]
fn entry_unless_child(fd: c_int) -> Option<Arc<Entry>> {
    if process::is_table_active() { entry(fd) } else { None }
}
