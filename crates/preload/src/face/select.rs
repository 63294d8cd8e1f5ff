//! `select` on sockets of ours: a poll, with its sets translated.

use std::time::Duration;

use libc::{c_int, c_short, c_ulong, fd_set, pollfd, sigset_t, timespec, timeval};

use super::errno::fail;
use super::poll::{self, EXCEPTS, READS, WRITES};
use super::table;
use crate::real;
use crate::times::{self, Limit, of_timespec, of_timeval};

/// Descriptors in a word of a set.
const BITS: usize = c_ulong::BITS as usize;

/// A set of descriptors, of as many as the caller says: its type in C is only long enough for 1024.
#[derive(Clone, Copy)]
struct Set(*mut c_ulong);

impl Set {
    /// # Safety
    /// The set is null, or long enough for `fd`.
    unsafe fn has(self, fd: usize) -> bool {
        // SAFETY: the caller's promise.
        !self.0.is_null() && unsafe { self.0.add(fd / BITS).read() } & (1 << (fd % BITS)) != 0
    }

    /// # Safety
    /// As of [`Self::has`], for each descriptor below `count`.
    unsafe fn clear(self, count: usize) {
        for word in 0..count.div_ceil(BITS) {
            if !self.0.is_null() {
                // SAFETY: the caller's promise.
                unsafe { self.0.add(word).write(0) };
            }
        }
    }

    /// # Safety
    /// As of [`Self::has`].
    unsafe fn add(self, fd: usize) {
        // SAFETY: the caller's promise; a set that is null has none, and gets none.
        unsafe { *self.0.add(fd / BITS) |= 1 << (fd % BITS) };
    }
}

/// The three sets of a call, with what their descriptors are asked for.
type Sets = [(Set, c_short); 3];

fn sets(reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set) -> Sets {
    let set = |set: *mut fd_set| Set(set.cast());
    [(set(reads), READS), (set(writes), WRITES), (set(excepts), EXCEPTS)]
}

/// What is asked of the kernel for a set: errors and hang-ups are told anyway.
fn asked(counts: c_short) -> c_short {
    counts & !(libc::POLLHUP | libc::POLLERR)
}

/// The descriptors of the sets.
///
/// # Safety
/// The sets are long enough for `count` descriptors.
unsafe fn descriptors(sets: &Sets, count: usize) -> Vec<pollfd> {
    let mut all = Vec::new();
    for fd in 0..count {
        // SAFETY: the caller's promise.
        let of = sets.iter().filter(|(set, _)| unsafe { set.has(fd) });
        let events = of.fold(0, |events, (_, counts)| events | asked(*counts));
        if events != 0 {
            all.push(pollfd { fd: fd as c_int, events, revents: 0 });
        }
    }
    all
}

/// How many bits the answer has.
fn bits(descriptor: &pollfd) -> usize {
    let counted = |counts: &c_short| descriptor.events & asked(*counts) != 0 && descriptor.revents & counts != 0;
    [READS, WRITES, EXCEPTS].iter().filter(|counts| counted(counts)).count()
}

/// `pselect(2)`. `None`: no descriptor is ours. Else how many bits are in the answer, or errno.
///
/// # Safety
/// As of `pselect`.
unsafe fn ours(count: c_int, sets: &Sets, timeout: Option<Duration>, mask: *const sigset_t) -> Option<c_int> {
    let count = usize::try_from(count).ok().filter(|count| (1..=table::SLOTS).contains(count))?;
    if !table::is_active() {
        return None;
    }
    super::signals::test_cancel();
    // SAFETY: the caller's promises.
    let (mut all, mask) = unsafe { (descriptors(sets, count), mask.as_ref()) };
    let limit = Limit::new(timeout);
    let answer = loop {
        match poll::wait(&mut all, limit.left(), mask)? {
            Err(number) => return Some(fail(number)),
            Ok(0) => break 0,
            Ok(_) => {}
        }
        if all.iter().any(|descriptor| descriptor.revents & libc::POLLNVAL != 0) {
            return Some(fail(libc::EBADF));
        }
        let found: usize = all.iter().map(bits).sum();
        if found > 0 {
            break found;
        }
        // Ready in ways that select does not count (a hang-up, for one who wants to write), for good.
        all.iter_mut().filter(|descriptor| descriptor.revents != 0).for_each(|descriptor| descriptor.fd = -1);
        if all.iter().all(|descriptor| descriptor.fd < 0) {
            // What is left is to let the time pass, or a signal come.
            all.truncate(0);
            return Some(idle(limit.left(), mask, sets, count));
        }
    };
    // SAFETY: the caller's promises; only descriptors that were in a set are put there.
    unsafe {
        for (set, counts) in sets {
            set.clear(count);
            for descriptor in all.iter().filter(|descriptor| descriptor.fd >= 0 && descriptor.revents & counts != 0) {
                if descriptor.events & asked(*counts) != 0 {
                    set.add(descriptor.fd as usize);
                }
            }
        }
    }
    Some(answer as c_int)
}

fn idle(left: Option<Duration>, mask: Option<&sigset_t>, sets: &Sets, count: usize) -> c_int {
    match super::outside::call(&mut [], left.map(times::timespec), mask) {
        Ok(_) => {
            // SAFETY: the promises of the caller's caller.
            sets.iter().for_each(|(set, _)| unsafe { set.clear(count) });
            0
        }
        Err(number) => fail(number),
    }
}

/// `select(2)`. What is left of the time is written back, as by the kernel.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promises: null, or a time.
    let given = unsafe { timeout.as_ref() }.map(of_timeval);
    let limit = Limit::new(given.flatten());
    // One that is no time is the kernel's to refuse.
    if !matches!(given, Some(None))
        // SAFETY: the caller's promises are passed on.
        && let Some(answer) = unsafe { ours(count, &sets(reads, writes, excepts), given.flatten(), std::ptr::null()) }
    {
        if let Some(left) = limit.left() {
            // SAFETY: it was not null.
            unsafe { timeout.write(times::timeval(left)) };
        }
        return poll::answered(answer);
    }
    // SAFETY: the caller's promises are passed on.
    unsafe { real::SELECT.get()(count, reads, writes, excepts, timeout) }
}

/// `pselect(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promises are passed on; among them, that `timeout` is null or points to a time.
    unsafe {
        let given = timeout.as_ref();
        if given.is_none_or(|given| of_timespec(given).is_some())
            && let Some(answer) = ours(count, &sets(reads, writes, excepts), given.and_then(of_timespec), mask)
        {
            return poll::answered(answer);
        }
        real::PSELECT.get()(count, reads, writes, excepts, timeout, mask)
    }
}
