//! The calls that wait for events: never for longer than the mode allows in one piece, and never without a poll.
//!
//! # Waiting in pieces
//!
//! With a longest wait (`fullbusy`: 1 ms), a longer one is made of several, each of which busy polls anew. The program
//! sees one wait: it ends with events, when the time it gave is over, or with an error, `EINTR` included. A signal that
//! arrives between two pieces would run its handler without ending the wait, so after the first piece all signals are
//! blocked and let through, by the mask of `epoll_pwait`, within the pieces only. What is left is the moment between
//! the first piece and the blocking, which a program without a mask has before any wait as well.
//!
//! # A timeout of zero
//!
//! The kernel returns from such a wait before it would busy poll, and so neither polls nor resumes interrupts that it
//! suspended. The rewritten wait has the shortest timeout there is, 1 ns: events that are there are delivered as before;
//! otherwise the kernel polls once, resumes interrupts, and finds that the time is over. With nothing to poll that takes
//! 0.37 us instead of 0.10. Kernels before 6.16 then still
//! sleep for the thread's timer slack (50 us unless the program chose otherwise); later ones return at once.
//! The rewrite is for busy polling of 0 us (`suspendX`): with more, the wait would last as long as the busy polling, and
//! `abey_linux::library` refuses the combination.
//!
//! These functions are cancellation points of POSIX threads, and a cancelled thread unwinds through them: hence
//! `C-unwind`, and no value here needs to be dropped.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use abey_delivery::Nanos;
use libc::{c_int, epoll_event, sigset_t, timespec};

use crate::face::epoll::Plain;
use crate::members::has_connections;
use crate::report::Topic;
use crate::{face, real, state, times};

const NANOS_PER_MILLI: u64 = 1_000_000;

/// The part of a wait that stays the same in each of its pieces.
#[derive(Clone, Copy)]
struct Target {
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
}

/// What to do with a wait.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Nothing.
    Plain,
    /// Poll once, and do not wait.
    PollOnce,
    /// Wait in pieces of at most `piece`, for `total` or without end.
    Pieces { piece: Nanos, total: Option<Nanos> },
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    let target = Target { epfd, events, max };
    // SAFETY: the caller's promises are passed on.
    unsafe {
        target.wait_on_either_side(milliseconds(timeout), null(), |plan, left| match plan {
            Plan::Plain => real::EPOLL_WAIT.get()(epfd, events, max, left.map_or(timeout, rounded)),
            Plan::PollOnce => target.poll_once(null()),
            Plan::Pieces { piece, total } => target.wait_in_pieces(piece, total, null()),
        })
    }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let target = Target { epfd, events, max };
    // SAFETY: the caller's promises are passed on.
    unsafe {
        target.wait_on_either_side(milliseconds(timeout), mask, |plan, left| match plan {
            Plan::Plain => real::EPOLL_PWAIT.get()(epfd, events, max, left.map_or(timeout, rounded), mask),
            Plan::PollOnce => target.poll_once(mask),
            Plan::Pieces { piece, total } => target.wait_in_pieces(piece, total, mask),
        })
    }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let target = Target { epfd, events, max };
    // SAFETY: the caller's promises are passed on; among them, that `timeout` is null or points to a time.
    unsafe {
        let given = timeout.as_ref();
        if given.is_some_and(|given| nanoseconds(given).is_none()) {
            // No time at all: the kernel's to refuse.
            return real::EPOLL_PWAIT2.get()(epfd, events, max, timeout, mask);
        }
        target.wait_on_either_side(given.and_then(nanoseconds), mask, |plan, left| match plan {
            Plan::Plain => {
                let left = left.map(time);
                let timeout = left.as_ref().map_or(timeout, |left| &raw const *left);
                real::EPOLL_PWAIT2.get()(epfd, events, max, timeout, mask)
            }
            Plan::PollOnce => target.poll_once(mask),
            Plan::Pieces { piece, total } => target.wait_in_pieces(piece, total, mask),
        })
    }
}

/// A timeout in milliseconds; negative ones, of which -1 is customary, have no end.
#[inline]
fn milliseconds(timeout: c_int) -> Option<Nanos> {
    u64::try_from(timeout).ok().map(Nanos::from_millis)
}

/// A timeout as a time; `None` when it is not a valid one.
fn nanoseconds(timeout: &timespec) -> Option<Nanos> {
    times::of_timespec(timeout).map(times::nanos)
}

fn time(span: Nanos) -> timespec {
    times::timespec(span.into())
}

/// What is left of a timeout, in milliseconds, not less.
fn rounded(left: Nanos) -> c_int {
    c_int::try_from(left.as_nanos().div_ceil(NANOS_PER_MILLI)).unwrap_or(c_int::MAX)
}

#[inline]
fn plan(epfd: c_int, timeout: Option<Nanos>) -> Plan {
    let config = state::get();
    match (timeout, config.max_wait) {
        (Some(Nanos::ZERO), _) if config.poll_on_zero_timeout => Plan::PollOnce,
        (Some(total), Some(piece)) if total > piece && has_connections(epfd) => {
            Plan::Pieces { piece, total: Some(total) }
        }
        (None, Some(piece)) if has_connections(epfd) => Plan::Pieces { piece, total: None },
        _ => Plan::Plain,
    }
}

impl Target {
    /// Waits where the set's members are: with sockets of ours the datapath does, and otherwise `kernel`, which is told
    /// how, and how long if that is not what the program said: sockets of ours may come while it waits.
    #[inline]
    unsafe fn wait_on_either_side(
        self,
        timeout: Option<Nanos>,
        mask: *const sigset_t,
        kernel: impl Fn(Plan, Option<Nanos>) -> c_int,
    ) -> c_int {
        let Self { epfd, events, max } = self;
        let (mut left, mut deadline) = (None, None);
        loop {
            let time = left.map_or(timeout, Some);
            // SAFETY: the caller's promises are passed on.
            if let Some(answer) = unsafe { face::epoll::wait(epfd, events, max, time, mask) } {
                return answer;
            }
            let noted = face::epoll::begin_plain(epfd);
            if noted == Plain::Unknown {
                return kernel(plan(epfd, time), None);
            }
            if noted == Plain::Noted {
                deadline = deadline.or_else(|| timeout.map(|timeout| now() + timeout));
                let answer = kernel(plan(epfd, time), left);
                // SAFETY: the events that the kernel has just told.
                if let Some(answer) = unsafe { face::epoll::end_plain(epfd, events, answer) } {
                    return answer;
                }
            }
            left = deadline.map(|deadline| deadline.saturating_sub(now()));
        }
    }

    /// Asks for events with one poll of the queue, and without a wait.
    unsafe fn poll_once(self, mask: *const sigset_t) -> c_int {
        static SHORTEST: timespec = timespec { tv_sec: 0, tv_nsec: 1 };
        let before = errno();
        // SAFETY: the caller's promises, and a time that lives through the call.
        let answer = unsafe { real::EPOLL_PWAIT2.get()(self.epfd, self.events, self.max, &raw const SHORTEST, mask) };
        if answer >= 0 {
            return answer;
        }
        match errno() {
            // A wait with timeout 0 is never interrupted.
            libc::EINTR => {
                set_errno(before);
                0
            }
            error if lacks_call(error) => {
                state::failed(Topic::Waiting, &"epoll_pwait2 is not available, so a timeout of 0 cannot poll");
                set_errno(before);
                // SAFETY: the caller's promises.
                unsafe { real::EPOLL_PWAIT.get()(self.epfd, self.events, self.max, 0, mask) }
            }
            _ => answer,
        }
    }

    /// Waits for `total`, or without end, in pieces.
    unsafe fn wait_in_pieces(self, piece: Nanos, total: Option<Nanos>, mask: *const sigset_t) -> c_int {
        let deadline = total.map(|total| Nanos::from_nanos(now().as_nanos().saturating_add(total.as_nanos())));
        // A busy server's wait ends here: it is spared the two calls that block signals.
        // SAFETY: the caller's promises.
        let answer = unsafe { self.wait(piece, mask) };
        if answer != 0 {
            return answer;
        }
        let own_mask = block_signals();
        let mask = if mask.is_null() { &raw const own_mask } else { mask };
        let answer = loop {
            let left = deadline.map_or(piece, |deadline| deadline.saturating_sub(now()));
            if left.is_zero() {
                break 0;
            }
            // SAFETY: the caller's promises; the mask is the caller's or our own, which outlives the loop.
            let answer = unsafe { self.wait(piece.min(left), mask) };
            if answer != 0 {
                break answer;
            }
        };
        let error = errno();
        restore_signals(&own_mask);
        set_errno(error);
        answer
    }

    /// One piece. By the call in milliseconds where that is exact: it is the one that every sandbox allows.
    unsafe fn wait(self, length: Nanos, mask: *const sigset_t) -> c_int {
        let nanos = length.as_nanos();
        if !nanos.is_multiple_of(NANOS_PER_MILLI) {
            let time = time(length);
            let before = errno();
            // SAFETY: the caller's promises, and a time that lives through the call.
            let answer = unsafe { real::EPOLL_PWAIT2.get()(self.epfd, self.events, self.max, &raw const time, mask) };
            if answer >= 0 || !lacks_call(errno()) {
                return answer;
            }
            set_errno(before);
        }
        // SAFETY: the caller's promises.
        unsafe { real::EPOLL_PWAIT.get()(self.epfd, self.events, self.max, rounded(length), mask) }
    }
}

/// Whether the kernel, or a sandbox, has no such call.
fn lacks_call(error: c_int) -> bool {
    matches!(error, libc::ENOSYS | libc::EPERM)
}

fn now() -> Nanos {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written by the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    nanoseconds(&time).unwrap_or_default()
}

pub(crate) fn errno() -> c_int {
    // SAFETY: every thread has its errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: every thread has its errno.
    unsafe { *libc::__errno_location() = value }
}

/// Blocks every signal but the C library's own, by which it cancels threads: it waits for that one after a call, and
/// would wait for ever. Returns those that were blocked.
pub(crate) fn block_signals() -> sigset_t {
    let (mut all, mut before) = (MaybeUninit::<sigset_t>::zeroed(), MaybeUninit::<sigset_t>::zeroed());
    // SAFETY: both sets live through the calls; zeroed sets are valid.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

pub(crate) fn restore_signals(before: &sigset_t) {
    // SAFETY: the set lives through the call; nothing is written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, null_mut()) };
}
