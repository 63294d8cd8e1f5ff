//! Which descriptors are ours: a table from number to object, that is read without a lock.
//!
//! A slot holds a counted pointer. Whoever looks one up keeps the object for the call, so that a number that another
//! thread closes meanwhile, and that the kernel gives away again, is never taken for the old one within a call. Several
//! numbers may share an object (`dup`); the last one that is closed ends it.
//!
//! A slot is emptied *before* the kernel's descriptor is closed, and every call that we see making a descriptor empties
//! its slot first: one that was closed behind our back (`fclose`, a system call of the program's own) leaves nothing.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use arc_swap::{ArcSwapOption, Guard};
use libc::c_int;

use super::epoll::Set;
use super::socket::Socket;

/// Descriptors above stay the kernel's. Empty slots are zero pages that nobody touches.
pub(crate) const SLOTS: usize = 1 << 18;

static TABLE: [ArcSwapOption<Object>; SLOTS] = [const { ArcSwapOption::const_empty() }; SLOTS];

/// Something was put in. Until then, and in a child, no call looks further.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The process whose table this is.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// No slot from here on was ever filled.
static USED: AtomicUsize = AtomicUsize::new(0);

static FORKS: Once = Once::new();

/// What a descriptor of ours is.
#[derive(Debug)]
pub(crate) enum Object {
    Socket(Socket),
    Epoll(Set),
}

/// What is looked up.
pub(crate) type Found = Guard<Option<Arc<Object>>>;

fn slot(fd: c_int) -> Option<&'static ArcSwapOption<Object>> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Whether any descriptor may be ours.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.load(Ordering::Acquire)
}

/// The object of a descriptor.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Found> {
    if !is_active() {
        return None;
    }
    let found = slot(fd)?.load();
    found.is_some().then_some(found)
}

/// Does something with a socket, if the descriptor is one of ours.
#[inline]
pub(crate) fn with_socket<R>(fd: c_int, work: impl FnOnce(&Socket) -> R) -> Option<R> {
    let found = get(fd).or_else(|| orphan(fd))?;
    match found.as_deref()? {
        Object::Socket(socket) => Some(work(socket)),
        Object::Epoll(_) => None,
    }
}

/// A child that was forked uses what was its parent's: nothing is found, and that is said.
#[inline]
pub(crate) fn orphan(fd: c_int) -> Option<Found> {
    if super::process::is_child() && slot(fd).is_some_and(|slot| slot.load().is_some()) {
        super::process::say_orphaned();
    }
    None
}

/// Puts an object in. False: the number is too high.
pub(crate) fn put(fd: c_int, object: Arc<Object>) -> bool {
    let Some(slot) = slot(fd) else { return false };
    // A child made by `fork` has a copy, for good; one made by `vfork` does not come by here.
    FORKS.call_once(|| {
        // SAFETY: the handler takes no arguments, and does nothing but set a word.
        unsafe { libc::pthread_atfork(None, None, Some(inherited)) };
    });
    slot.store(Some(object));
    USED.fetch_max(fd.max(0) as usize + 1, Ordering::Relaxed);
    OWNER.store(std::process::id(), Ordering::Relaxed);
    ACTIVE.store(true, Ordering::Release);
    true
}

extern "C" fn inherited() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

/// How many numbers have an object that `is` so.
pub(crate) fn count(is: impl Fn(&Object) -> bool) -> usize {
    let used = USED.load(Ordering::Relaxed).min(SLOTS);
    TABLE[..used].iter().filter(|slot| slot.load().as_deref().is_some_and(&is)).count()
}

/// The object of a descriptor, to be put in under another number.
pub(crate) fn share(fd: c_int) -> Option<Arc<Object>> {
    get(fd).and_then(|found| found.clone())
}

/// The descriptor is being closed, or is a new one.
#[inline]
pub(crate) fn forget(fd: c_int) {
    if get(fd).is_some() {
        take(fd);
    }
}

#[cold]
fn take(fd: c_int) {
    // A child that shares our memory (`vfork`) closes its own copies only.
    if OWNER.load(Ordering::Relaxed) == std::process::id()
        && let Some(slot) = slot(fd)
    {
        super::inside(|| drop(slot.swap(None)));
    }
}

/// As [`forget`], for all numbers from `first` to `last`.
pub(crate) fn forget_range(first: c_int, last: c_int) {
    if is_active() {
        (first..=last.min(SLOTS as c_int - 1)).for_each(forget);
    }
}

/// In a child that was forked: nothing is ours. The objects stay as they are, since their threads and locks do not.
pub(crate) fn close_all() {
    ACTIVE.store(false, Ordering::Release);
}
