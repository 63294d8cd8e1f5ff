//! The runtime's own descriptors, which have high numbers and cannot be closed by the program.
//!
//! Programs depend on descriptor numbers: a new descriptor has the lowest free number (POSIX), a server uses `dup2(2)` to a
//! number of its choice, and closes everything above 2 when it starts. So all low numbers are taken while the runtime is
//! built, the runtime's descriptors get higher ones, and these are recorded. Closing one of them fails with EBADF.
//!
//! # Other threads
//!
//! A descriptor that another thread of the program makes meanwhile gets a high number, too. It is distinguished from the
//! runtime's in two ways. The interposed calls that make descriptors report theirs ([`made`]), at any time: what such a call
//! returns is not the runtime's, whatever was recorded. Of the others, only those are recorded that are of a kind of which
//! the runtime has some, so files and pipes are not.
//!
//! A number that the program uses and closes in that time may become the runtime's afterwards, which is not recorded: the
//! program could then close it with a range.
//!
//! Descriptors that the runtime opens later (an epoll's eventfds, the socket that reserves a port of a connection) have
//! ordinary numbers.

use std::ops::RangeInclusive;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{c_int, c_uint};

use super::context::is_uninterposed;
use super::socket_options::int;
use crate::{errno, real};

/// Number of words of the bitmap: it covers 2048 descriptors.
const WORDS: usize = 32;

type Bitmap = [AtomicU64; WORDS];

static RUNTIME_FDS: Bitmap = [const { AtomicU64::new(0) }; WORDS];

/// True while the runtime is built.
static IS_BUILDING: AtomicBool = AtomicBool::new(false);

/// The descriptors that the program has made while the runtime was built.
static PROGRAM_FDS: Bitmap = [const { AtomicU64::new(0) }; WORDS];

/// Returns the number below which the runtime has no descriptors; `None` if RLIMIT_NOFILE leaves too few.
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

/// Runs `work`, and records the descriptors that it leaves open, which get numbers above the floor.
pub(super) fn above_floor<R>(work: impl FnOnce() -> R) -> R {
    let Some(floor) = floor() else { return work() };
    // Before `before`: a thread that finds it false has made its descriptor by then.
    IS_BUILDING.store(true, Ordering::SeqCst);
    let placeholders = errno::preserve_errno(|| Placeholders::up_to(floor));
    let before = open_fds(floor);
    let result = work();
    for (at, after) in open_fds(floor).into_iter().enumerate() {
        record(at, after & !before[at]);
    }
    IS_BUILDING.store(false, Ordering::SeqCst);
    drop(placeholders);
    result
}

/// Records those of the new descriptors in a word of the bitmap that are the runtime's.
fn record(at: usize, new: u64) {
    let bits = (0..u64::BITS).filter(|bit| new & 1 << bit != 0);
    let own =
        bits.filter(|bit| may_be_runtime_fd((at * 64) as c_int + *bit as c_int)).fold(0, |own, bit| own | 1 << bit);
    RUNTIME_FDS[at].fetch_or(own, Ordering::SeqCst);
    // Read after that: a thread that reports a descriptor later finds it recorded, and corrects it.
    RUNTIME_FDS[at].fetch_and(!PROGRAM_FDS[at].load(Ordering::SeqCst), Ordering::SeqCst);
}

/// Returns whether the descriptor is of a kind of which the runtime has some.
fn may_be_runtime_fd(fd: c_int) -> bool {
    let kind = errno::preserve_errno(|| std::fs::read_link(format!("/proc/self/fd/{fd}")));
    // Without procfs, every new descriptor is taken for the runtime's.
    let Ok(kind) = kind else { return true };
    let kind = kind.to_string_lossy();
    if kind.starts_with("socket:") {
        let domain = errno::preserve_errno(|| int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN));
        return !matches!(domain, Some(libc::AF_INET | libc::AF_INET6));
    }
    const KINDS: [&str; 7] = [
        "anon_inode:[eventfd]",
        "anon_inode:[eventpoll]",
        "anon_inode:[timerfd]",
        "anon_inode:bpf",
        "/memfd:abey",
        "/dev/net/tun",
        "/dev/vhost",
    ];
    KINDS.iter().any(|start| kind.starts_with(start))
}

fn bit(bitmap: &Bitmap, fd: c_int) -> Option<(&AtomicU64, u64)> {
    Some((bitmap.get(usize::try_from(fd).ok()? / 64)?, 1 << (fd % 64)))
}

/// Records a descriptor that a call of the program's has made: it is not the runtime's.
#[inline]
pub(super) fn made(fd: c_int) {
    if IS_BUILDING.load(Ordering::SeqCst) || is_runtime_fd(fd) {
        made_beside(fd);
    }
}

#[cold]
fn made_beside(fd: c_int) {
    if is_uninterposed() {
        return;
    }
    if let (Some((program, bit)), Some((runtime, _))) = (bit(&PROGRAM_FDS, fd), bit(&RUNTIME_FDS, fd)) {
        if IS_BUILDING.load(Ordering::SeqCst) {
            program.fetch_or(bit, Ordering::SeqCst);
        }
        runtime.fetch_and(!bit, Ordering::SeqCst);
    }
}

/// Descriptors that occupy the numbers below the floor.
struct Placeholders(Vec<c_int>);

impl Placeholders {
    fn up_to(floor: c_int) -> Self {
        // SAFETY: the call takes no pointers.
        let first = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        let mut placeholders = Self(Vec::new());
        let mut last = first;
        while (0..floor).contains(&last) {
            placeholders.0.push(last);
            // SAFETY: the call takes no pointers.
            last = unsafe { real::FCNTL.get()(first, libc::F_DUPFD_CLOEXEC, 0) };
        }
        if last >= 0 {
            close(last);
        }
        placeholders
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        errno::preserve_errno(|| self.0.iter().for_each(|placeholder| close(*placeholder)));
    }
}

fn close(fd: c_int) {
    // SAFETY: the call takes no pointers. A direct system call, since this also runs in a forked child.
    unsafe { crate::syscall::raw(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Returns a bitmap of the open descriptors from `floor` on.
fn open_fds(floor: c_int) -> [u64; WORDS] {
    let is_open = |fd: c_int| {
        // SAFETY: the call takes no pointers.
        errno::preserve_errno(|| unsafe { real::FCNTL.get()(fd, libc::F_GETFD, 0) >= 0 })
    };
    let mut open = [0; WORDS];
    // Numbers are given out in ascending order, so nothing is open above a long gap.
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

/// Gives up a descriptor of the runtime that the runtime closes. Returns whether this thread runs its code.
#[cold]
pub(super) fn give_up(fd: c_int) -> bool {
    let word = usize::try_from(fd).ok().and_then(|fd| RUNTIME_FDS.get(fd / 64));
    is_uninterposed()
        && word.is_some_and(|word| {
            word.fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
            true
        })
}

/// Returns whether the descriptor is the runtime's.
#[inline]
pub(super) fn is_runtime_fd(fd: c_int) -> bool {
    let word = usize::try_from(fd).ok().and_then(|fd| RUNTIME_FDS.get(fd / 64));
    word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (fd % 64) != 0)
}

/// Returns the parts of a range that contain no descriptor of the runtime.
pub(super) fn gaps(first: c_uint, last: c_uint) -> impl Iterator<Item = RangeInclusive<c_uint>> {
    let mut next = first;
    let runtime_fds =
        (0..(WORDS * 64) as c_uint).filter(move |fd| (first..=last).contains(fd) && is_runtime_fd(*fd as c_int));
    let ends = runtime_fds.map(Some).chain([None]);
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

/// Returns a pipe whose ends are the runtime's: the one that is read, and the one that is written.
pub(super) fn pipe() -> Option<(OwnedFd, OwnedFd)> {
    let floor = floor()?;
    let mut ends = [-1; 2];
    // SAFETY: the array has room for both.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return None;
    }
    // SAFETY: the call takes no pointers.
    let [reads, writes] =
        ends.map(|end| unsafe { real::FCNTL.get()(end, libc::F_DUPFD_CLOEXEC, floor as libc::c_ulong) });
    ends.into_iter().for_each(close);
    let is_covered = |fd: c_int| (0..(WORDS * 64) as c_int).contains(&fd);
    if !is_covered(reads) || !is_covered(writes) {
        [reads, writes].into_iter().filter(|fd| *fd >= 0).for_each(close);
        return None;
    }
    for fd in [reads, writes] {
        RUNTIME_FDS[fd as usize / 64].fetch_or(1 << (fd % 64), Ordering::Relaxed);
    }
    // SAFETY: new descriptors, which nothing else owns.
    unsafe { Some((OwnedFd::from_raw_fd(reads), OwnedFd::from_raw_fd(writes))) }
}

/// Records that a descriptor is no longer the runtime's, before it is closed.
pub(super) fn forget(fd: c_int) {
    if let Some(word) = usize::try_from(fd).ok().and_then(|fd| RUNTIME_FDS.get(fd / 64)) {
        word.fetch_and(!(1 << (fd % 64)), Ordering::Relaxed);
    }
}

/// Closes the copies of the runtime's descriptors in a forked child, except one; -1 for none.
pub(super) fn close_all_except(except: c_int) {
    for (at, word) in RUNTIME_FDS.iter().enumerate() {
        let mut left = word.load(Ordering::Relaxed);
        while left != 0 {
            let fd = (at * 64) as c_int + left.trailing_zeros() as c_int;
            if fd != except {
                close(fd);
                forget(fd);
            }
            left &= left - 1;
        }
    }
}
