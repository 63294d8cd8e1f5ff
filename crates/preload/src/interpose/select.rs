//! Interposed `select(2)` and `pselect(2)`, converted to a `poll` of the descriptors in the sets.

use std::time::Duration;

use libc::{c_int, c_short, c_ulong, fd_set, pollfd, sigset_t, timespec, timeval};

use super::error_codes::fail;
use super::fd_table;
use super::poll::{self, EXCEPTS, READS, WRITES};
use super::process;
use crate::real;
use crate::timeout::{self, Timeout, duration_from_timespec, duration_from_timeval};

/// Number of descriptors in a word of a set.
const BITS: usize = c_ulong::BITS as usize;

/// A set of descriptors, as long as the caller says; the type in C is long enough for 1024 only.
#[derive(Clone, Copy)]
struct FdSet(*mut c_ulong);

impl FdSet {
    /// # Safety
    /// The pointer is null, or the set is long enough for `fd`.
    unsafe fn has(self, fd: usize) -> bool {
        // SAFETY: guaranteed by the caller.
        !self.0.is_null() && unsafe { self.0.add(fd / BITS).read() } & (1 << (fd % BITS)) != 0
    }

    /// # Safety
    /// The same as for [`Self::has`], for each descriptor below `count`.
    unsafe fn clear(self, count: usize) {
        for word in 0..count.div_ceil(BITS) {
            if !self.0.is_null() {
                // SAFETY: guaranteed by the caller.
                unsafe { self.0.add(word).write(0) };
            }
        }
    }

    /// # Safety
    /// The pointer is not null, and the set is long enough for `fd`.
    unsafe fn add(self, fd: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { *self.0.add(fd / BITS) |= 1 << (fd % BITS) };
    }
}

/// The three sets of a call, each with the bits of `revents` that it counts.
type Sets = [(FdSet, c_short); 3];

fn sets(reads: *mut fd_set, writes: *mut fd_set, excepts: *mut fd_set) -> Sets {
    let set = |set: *mut fd_set| FdSet(set.cast());
    [(set(reads), READS), (set(writes), WRITES), (set(excepts), EXCEPTS)]
}

/// Returns the `events` to poll for; POLLHUP and POLLERR are always reported.
fn requested(counts: c_short) -> c_short {
    counts & !(libc::POLLHUP | libc::POLLERR)
}

/// Returns the descriptors of the sets.
///
/// # Safety
/// The sets are long enough for `count` descriptors.
unsafe fn descriptors(sets: &Sets, count: usize) -> Vec<pollfd> {
    let mut all = Vec::new();
    for fd in 0..count {
        // SAFETY: guaranteed by the caller.
        let of = sets.iter().filter(|(set, _)| unsafe { set.has(fd) });
        let events = of.fold(0, |events, (_, counts)| events | requested(*counts));
        if events != 0 {
            all.push(pollfd { fd: fd as c_int, events, revents: 0 });
        }
    }
    all
}

/// Returns in how many sets a descriptor is ready.
fn bit_count(descriptor: &pollfd) -> usize {
    let counted = |counts: &c_short| descriptor.events & requested(*counts) != 0 && descriptor.revents & counts != 0;
    [READS, WRITES, EXCEPTS].iter().filter(|counts| counted(counts)).count()
}

/// Waits as `pselect(2)`. Returns `None` if no descriptor is a datapath socket; otherwise the number of bits in the sets, or
/// -1 and errno.
///
/// # Safety
/// The same as for `pselect`.
unsafe fn datapath_pselect(
    count: c_int,
    sets: &Sets,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let count = usize::try_from(count).ok().filter(|count| (1..=fd_table::SLOTS).contains(count))?;
    if !process::may_have_entries() {
        return None;
    }
    super::signals::test_cancel();
    // SAFETY: guaranteed by the caller.
    let (mut all, mask) = unsafe { (descriptors(sets, count), mask.as_ref()) };
    let deadline = Timeout::new(timeout);
    let answer = loop {
        match poll::wait(&mut all, deadline.remaining(), mask)? {
            Err(number) => return Some(fail(number)),
            Ok(0) => break 0,
            Ok(_) => {}
        }
        if all.iter().any(|descriptor| descriptor.revents & libc::POLLNVAL != 0) {
            return Some(fail(libc::EBADF));
        }
        let found: usize = all.iter().map(bit_count).sum();
        if found > 0 {
            break found;
        }
        // A descriptor may be ready in a way that `select` does not count, such as POLLHUP in the write set. It stays so,
        // and is left out.
        all.iter_mut().filter(|descriptor| descriptor.revents != 0).for_each(|descriptor| descriptor.fd = -1);
        if all.iter().all(|descriptor| descriptor.fd < 0) {
            // Without descriptors, only the timeout or a signal ends the call.
            all.truncate(0);
            return Some(wait_without_descriptors(deadline.remaining(), mask, sets, count));
        }
    };
    // SAFETY: guaranteed by the caller; only descriptors that were in a set are added to it.
    unsafe {
        for (set, counts) in sets {
            set.clear(count);
            for descriptor in all.iter().filter(|descriptor| descriptor.fd >= 0 && descriptor.revents & counts != 0) {
                if descriptor.events & requested(*counts) != 0 {
                    set.add(descriptor.fd as usize);
                }
            }
        }
    }
    Some(answer as c_int)
}

fn wait_without_descriptors(left: Option<Duration>, mask: Option<&sigset_t>, sets: &Sets, count: usize) -> c_int {
    match super::kernel_wait::ppoll(&mut [], left.map(timeout::to_timespec), mask) {
        Ok(_) => {
            // SAFETY: the caller of the only caller guarantees that the sets are this long.
            sets.iter().for_each(|(set, _)| unsafe { set.clear(count) });
            0
        }
        Err(number) => fail(number),
    }
}

/// `select(2)`. Writes the remaining time to `timeout`, as Linux does.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn select(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: guaranteed by the caller: null, or a time.
    let given = unsafe { timeout.as_ref() }.map(duration_from_timeval);
    let deadline = Timeout::new(given.flatten());
    // The kernel fails an invalid time with EINVAL.
    if !matches!(given, Some(None))
        // SAFETY: the caller's guarantees are passed on.
        && let Some(answer) = unsafe { datapath_pselect(count, &sets(reads, writes, excepts), given.flatten(), std::ptr::null()) }
    {
        if let Some(left) = deadline.remaining() {
            // SAFETY: a timeout that can expire was not null.
            unsafe { timeout.write(timeout::to_timeval(left)) };
        }
        return poll::check_cancelled(answer);
    }
    // SAFETY: the caller's guarantees are passed on.
    unsafe { real::SELECT.get()(count, reads, writes, excepts, timeout) }
}

/// `pselect(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn pselect(
    count: c_int,
    reads: *mut fd_set,
    writes: *mut fd_set,
    excepts: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's guarantees are passed on; among them, `timeout` is null or points to a time.
    unsafe {
        let given = timeout.as_ref();
        if given.is_none_or(|given| duration_from_timespec(given).is_some())
            && let Some(answer) =
                datapath_pselect(count, &sets(reads, writes, excepts), given.and_then(duration_from_timespec), mask)
        {
            return poll::check_cancelled(answer);
        }
        real::PSELECT.get()(count, reads, writes, excepts, timeout, mask)
    }
}
