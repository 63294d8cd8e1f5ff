//! Interposed `epoll_wait(2)`, `epoll_pwait(2)` and `epoll_pwait2(2)`.
//!
//! If the epoll instance contains datapath sockets, the wait is the datapath's ([`crate::interpose::epoll_set`]). Otherwise
//! the kernel waits, with two changes that a mode or the user may ask for.
//!
//! # Waiting in slices
//!
//! With a maximum wait (`fullbusy`: 1 ms), a longer wait is split into slices, each of which busy polls anew. The program
//! sees one wait: it ends with events, with its timeout, or with an error, `EINTR` included. A signal that arrives between
//! two slices would run its handler without ending the wait. So after the first slice all signals are blocked, and the
//! mask argument of `epoll_pwait` unblocks them during the slices only. A signal between the first slice and the blocking
//! does not end the wait, as for any program that gets a signal just before it waits without a mask.
//!
//! # A timeout of zero
//!
//! The kernel returns from such a wait without a busy poll, and so neither polls nor resumes interrupts that it suspended.
//! The interposed call waits with the shortest timeout instead, 1 ns: events that are ready are delivered as before;
//! otherwise the kernel polls once, resumes interrupts, and times out. With nothing to poll this takes 0.37 us instead of
//! 0.10. Kernels before 6.16 also sleep for the thread's timer slack (50 us by default); later ones return at once. The
//! change is for busy polling of 0 us (`suspendX`): with a longer one the wait would last as long as the busy poll, and
//! `abey_linux::library` rejects the combination.
//!
//! These functions are cancellation points (`pthreads(7)`), and a cancelled thread unwinds through them. So their ABI is
//! `C-unwind`, and no value in them needs a destructor.

use std::ptr::null;

use abey_delivery::Nanos;
use libc::{c_int, epoll_event, sigset_t, timespec};

use crate::epoll_ctl::has_connections;
use crate::errno::{errno, set_errno};
use crate::interpose::epoll_set::KernelWaitStart;
use crate::report::Topic;
use crate::{config, interpose, real, signal_mask, timeout};

const NANOS_PER_MILLI: u64 = 1_000_000;

/// The arguments that are the same in each slice of a wait.
#[derive(Clone, Copy)]
struct Target {
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
}

/// How the kernel waits.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// As the program called.
    Unchanged,
    /// Polls once, without waiting.
    PollOnce,
    /// Waits in slices of at most `slice`, for `total` or without a timeout.
    Slices { slice: Nanos, total: Option<Nanos> },
}

/// `epoll_wait(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    let target = Target { epfd, events, max };
    // SAFETY: the caller's guarantees are passed on.
    unsafe {
        target.wait_for_members(from_millis(timeout), null(), |plan, left| match plan {
            Plan::Unchanged => real::EPOLL_WAIT.get()(epfd, events, max, left.map_or(timeout, to_millis)),
            Plan::PollOnce => target.poll_once(null()),
            Plan::Slices { slice, total } => target.wait_in_slices(slice, total, null()),
        })
    }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let target = Target { epfd, events, max };
    // SAFETY: the caller's guarantees are passed on.
    unsafe {
        target.wait_for_members(from_millis(timeout), mask, |plan, left| match plan {
            Plan::Unchanged => real::EPOLL_PWAIT.get()(epfd, events, max, left.map_or(timeout, to_millis), mask),
            Plan::PollOnce => target.poll_once(mask),
            Plan::Slices { slice, total } => target.wait_in_slices(slice, total, mask),
        })
    }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let target = Target { epfd, events, max };
    // SAFETY: the caller's guarantees are passed on; among them, `timeout` is null or points to a time.
    unsafe {
        let given = timeout.as_ref();
        if given.is_some_and(|given| from_timespec(given).is_none()) {
            // The kernel fails with EINVAL.
            return real::EPOLL_PWAIT2.get()(epfd, events, max, timeout, mask);
        }
        target.wait_for_members(given.and_then(from_timespec), mask, |plan, left| match plan {
            Plan::Unchanged => {
                let left = left.map(to_timespec);
                let timeout = left.as_ref().map_or(timeout, |left| &raw const *left);
                real::EPOLL_PWAIT2.get()(epfd, events, max, timeout, mask)
            }
            Plan::PollOnce => target.poll_once(mask),
            Plan::Slices { slice, total } => target.wait_in_slices(slice, total, mask),
        })
    }
}

/// Converts a timeout in milliseconds. A negative one, such as -1, means no timeout.
#[inline]
fn from_millis(timeout: c_int) -> Option<Nanos> {
    u64::try_from(timeout).ok().map(Nanos::from_millis)
}

/// Converts a timeout; `None` if the `timespec` is invalid.
fn from_timespec(timeout: &timespec) -> Option<Nanos> {
    timeout::duration_from_timespec(timeout).map(timeout::to_nanos)
}

fn to_timespec(span: Nanos) -> timespec {
    timeout::to_timespec(span.into())
}

/// Converts the remaining time to milliseconds, to_millis up.
fn to_millis(left: Nanos) -> c_int {
    c_int::try_from(left.as_nanos().div_ceil(NANOS_PER_MILLI)).unwrap_or(c_int::MAX)
}

#[inline]
fn plan(epfd: c_int, timeout: Option<Nanos>) -> Plan {
    let config = config::get();
    match (timeout, config.max_wait) {
        (Some(Nanos::ZERO), _) if config.poll_on_zero_timeout => Plan::PollOnce,
        (Some(total), Some(slice)) if total > slice && has_connections(epfd) => {
            Plan::Slices { slice, total: Some(total) }
        }
        (None, Some(slice)) if has_connections(epfd) => Plan::Slices { slice, total: None },
        _ => Plan::Unchanged,
    }
}

impl Target {
    /// Waits in the datapath if the set contains datapath sockets, and otherwise with `kernel`. Datapath sockets may be
    /// added while the kernel waits; the wait then continues in the datapath.
    ///
    /// `kernel` gets the plan and, if time has passed, the remaining timeout.
    #[inline]
    unsafe fn wait_for_members(
        self,
        timeout: Option<Nanos>,
        mask: *const sigset_t,
        kernel: impl Fn(Plan, Option<Nanos>) -> c_int,
    ) -> c_int {
        let Self { epfd, events, max } = self;
        let (mut left, mut deadline) = (None, None);
        loop {
            let time = left.map_or(timeout, Some);
            // SAFETY: the caller's guarantees are passed on.
            if let Some(answer) = unsafe { interpose::epoll_set::wait(epfd, events, max, time, mask) } {
                return answer;
            }
            let kernel_wait = interpose::epoll_set::begin_kernel_wait(epfd);
            if kernel_wait == KernelWaitStart::Untracked {
                return kernel(plan(epfd, time), None);
            }
            if kernel_wait == KernelWaitStart::Tracked {
                deadline = deadline.or_else(|| timeout.map(|timeout| now() + timeout));
                let answer = kernel(plan(epfd, time), left);
                // SAFETY: the kernel has just written this many events.
                if let Some(answer) = unsafe { interpose::epoll_set::end_kernel_wait(epfd, events, answer) } {
                    return answer;
                }
            }
            left = deadline.map(|deadline| deadline.saturating_sub(now()));
        }
    }

    /// Polls the queue once and returns the events that are ready, without waiting.
    unsafe fn poll_once(self, mask: *const sigset_t) -> c_int {
        static SHORTEST: timespec = timespec { tv_sec: 0, tv_nsec: 1 };
        let before = errno();
        // SAFETY: guaranteed by the caller; the time lives through the call.
        let answer = unsafe { real::EPOLL_PWAIT2.get()(self.epfd, self.events, self.max, &raw const SHORTEST, mask) };
        if answer >= 0 {
            return answer;
        }
        match errno() {
            // A wait with timeout 0 never fails with EINTR.
            libc::EINTR => {
                set_errno(before);
                0
            }
            error if is_unsupported(error) => {
                config::failed(
                    Topic::SocketWait,
                    &"the kernel or a sandbox does not allow epoll_pwait2, so that a wait with timeout 0 cannot poll",
                );
                set_errno(before);
                // SAFETY: guaranteed by the caller.
                unsafe { real::EPOLL_PWAIT.get()(self.epfd, self.events, self.max, 0, mask) }
            }
            _ => answer,
        }
    }

    /// Waits for `total`, or without a timeout, in slices of `slice`.
    unsafe fn wait_in_slices(self, slice: Nanos, total: Option<Nanos>, mask: *const sigset_t) -> c_int {
        let deadline = total.map(|total| Nanos::from_nanos(now().as_nanos().saturating_add(total.as_nanos())));
        // A busy server's wait ends here, before the two calls that block and unblock signals.
        // SAFETY: guaranteed by the caller.
        let answer = unsafe { self.wait(slice, mask) };
        if answer != 0 {
            return answer;
        }
        let own_mask = signal_mask::block_all();
        let mask = if mask.is_null() { &raw const own_mask } else { mask };
        let answer = loop {
            let left = deadline.map_or(slice, |deadline| deadline.saturating_sub(now()));
            if left.is_zero() {
                break 0;
            }
            // SAFETY: guaranteed by the caller; the mask is the caller's, or a local that outlives the loop.
            let answer = unsafe { self.wait(slice.min(left), mask) };
            if answer != 0 {
                break answer;
            }
        };
        let error = errno();
        signal_mask::restore(&own_mask);
        set_errno(error);
        answer
    }

    /// Waits for one slice. Uses the call with milliseconds where that is exact, since every sandbox allows it.
    unsafe fn wait(self, length: Nanos, mask: *const sigset_t) -> c_int {
        let nanos = length.as_nanos();
        if !nanos.is_multiple_of(NANOS_PER_MILLI) {
            let time = to_timespec(length);
            let before = errno();
            // SAFETY: guaranteed by the caller; the time lives through the call.
            let answer = unsafe { real::EPOLL_PWAIT2.get()(self.epfd, self.events, self.max, &raw const time, mask) };
            if answer >= 0 || !is_unsupported(errno()) {
                return answer;
            }
            set_errno(before);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { real::EPOLL_PWAIT.get()(self.epfd, self.events, self.max, to_millis(length), mask) }
    }
}

/// Returns whether the error means that the kernel or a sandbox does not provide the call.
fn is_unsupported(error: c_int) -> bool {
    matches!(error, libc::ENOSYS | libc::EPERM)
}

fn now() -> Nanos {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written by the call, which cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    from_timespec(&time).unwrap_or_default()
}
