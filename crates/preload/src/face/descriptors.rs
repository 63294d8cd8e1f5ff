//! The runtime's own descriptors: out of the program's way, and not the program's to close.
//!
//! Programs rely on numbers: that what is opened next has the lowest one that is free, that `dup2` to a number of their
//! choice hits nobody, that everything above 2 may be closed at the start. So while the runtime is built all low numbers
//! are taken, what it opens lies above, and those numbers are remembered: closing one fails with `EBADF`, as if nobody had
//! it. Another thread that opens something at that very moment gets a high number as well, which costs it nothing unless
//! it is never closed again: what it opens is taken for the runtime's.
//!
//! What the runtime opens later (an epoll's eventfds, the socket of a port that a connection is made from) has numbers
//! like any other.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, c_uint};

use crate::{real, state};

/// The numbers that are looked at: 2048, above the first of [`floor`].
const WORDS: usize = 32;

static OURS: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Below which number everything is the program's; none where there are too few numbers to be choosy.
fn floor() -> Option<c_int> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives through the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    match limit.rlim_cur {
        1024.. if known => Some(512),
        256.. if known => Some(128),
        _ => None,
    }
}

/// Does something whose descriptors shall be out of the program's way.
pub(super) fn out_of_the_way<R>(work: impl FnOnce() -> R) -> R {
    let Some(floor) = floor() else { return work() };
    let fillers = state::keep_errno(|| Fillers::up_to(floor));
    let before = open_ones(floor);
    let result = work();
    for (at, after) in open_ones(floor).into_iter().enumerate() {
        OURS[at].fetch_or(after & !before[at], Ordering::Relaxed);
    }
    drop(fillers);
    result
}

/// Descriptors that stand for nothing.
struct Fillers(Vec<c_int>);

impl Fillers {
    fn up_to(floor: c_int) -> Self {
        // SAFETY: takes no pointers.
        let first = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        let mut fillers = Self(Vec::new());
        let mut last = first;
        while (0..floor).contains(&last) {
            fillers.0.push(last);
            // SAFETY: takes no pointers.
            last = unsafe { real::FCNTL.get()(first, libc::F_DUPFD_CLOEXEC, 0) };
        }
        if last >= 0 {
            close(last);
        }
        fillers
    }
}

impl Drop for Fillers {
    fn drop(&mut self) {
        state::keep_errno(|| self.0.iter().for_each(|filler| close(*filler)));
    }
}

fn close(fd: c_int) {
    // SAFETY: takes no pointers. Not through the C library, as this also runs in a child of a threaded process.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Which numbers from `floor` on are open.
fn open_ones(floor: c_int) -> [u64; WORDS] {
    let is_open = |fd: c_int| {
        // SAFETY: takes no pointers.
        state::keep_errno(|| unsafe { real::FCNTL.get()(fd, libc::F_GETFD, 0) >= 0 })
    };
    let mut open = [0; WORDS];
    // Numbers are given out from below, so that there is nothing above a long gap.
    let mut gap = 0;
    for fd in floor..(WORDS * 64) as c_int {
        if is_open(fd) {
            open[fd as usize / 64] |= 1 << (fd % 64);
            gap = 0;
        } else {
            gap += 1;
        }
        if gap > 128 {
            break;
        }
    }
    open
}

/// Whether the descriptor is the runtime's.
#[inline]
pub(super) fn is_ours(fd: c_int) -> bool {
    let word = usize::try_from(fd).ok().and_then(|fd| OURS.get(fd / 64));
    word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (fd % 64) != 0)
}

/// The parts of a range that are not the runtime's.
pub(super) fn not_ours(first: c_uint, last: c_uint) -> impl Iterator<Item = RangeInclusive<c_uint>> {
    let mut next = first;
    let ours = (0..(WORDS * 64) as c_uint).filter(move |fd| (first..=last).contains(fd) && is_ours(*fd as c_int));
    let ends = ours.map(Some).chain([None]);
    ends.filter_map(move |stop| {
        let part = match stop {
            Some(0) => None,
            Some(stop) => Some(next..=stop - 1),
            None => Some(next..=last),
        };
        next = stop.map_or(next, |stop| stop + 1);
        part.filter(|part| !part.is_empty())
    })
}

/// In a child that was forked: what the runtime left there goes.
pub(super) fn close_all() {
    for (at, word) in OURS.iter().enumerate() {
        let mut left = word.swap(0, Ordering::Relaxed);
        while left != 0 {
            close((at * 64) as c_int + left.trailing_zeros() as c_int);
            left &= left - 1;
        }
    }
}
