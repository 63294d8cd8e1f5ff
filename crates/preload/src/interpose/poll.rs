//! Interposed `poll(2)` and `ppoll(2)` on datapath sockets and kernel descriptors.
//!
//! A call keeps no state for the next one. It checks its sockets; if none is ready, it registers with each, sleeps, and
//! unregisters, as the kernel does with its wait queues. The kernel descriptors are passed unchanged to the `ppoll` of
//! that sleep. So the kernel itself answers for them, whatever they are (regular files, closed descriptors), and handles
//! signals under the program's mask. A call that finds a datapath socket ready makes no system call unless there are
//! kernel descriptors to check.
//!
//! An idle call sleeps in every mode except `sockbusyX`, in which it first polls the queues of its sockets, as the kernel
//! does for SO_BUSY_POLL. The parameters of the other modes apply to epoll only, in the kernel too.
//!
//! An epoll descriptor is polled in the kernel, with its [ready fd](super::ready_fd) as a member.

use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

use abey_datapath::{Readiness, Source, WaitOutcome};
use libc::{c_int, c_short, nfds_t, pollfd, sigset_t, size_t, timespec};

use super::error_codes::fail;
use super::event_flags::{poll_readiness, poll_revents};
use super::fd_table::{self, Entry};
use super::kernel_wait::{PollSet, ppoll as kernel_ppoll};
use super::runtime::RUNTIME;
use super::socket::{Role, Socket};
use super::{accept_credit, listen, process, shared_listener, signals};
use crate::real;
use crate::timeout::{self, Timeout, duration_from_timespec};

/// More descriptors than a process can have. The kernel fails such a call.
const MAX_DESCRIPTORS: usize = 1 << 24;

/// A datapath socket of a call.
struct DatapathSocket {
    at: usize,
    object: Arc<Entry>,
}

impl DatapathSocket {
    fn socket(&self) -> Option<&Socket> {
        match &*self.object {
            Entry::Socket(socket) => Some(socket),
            Entry::Epoll(_) => None,
        }
    }

    fn role(&self) -> Option<&Role> {
        self.socket()?.role.get()
    }
}

/// The descriptors of a call, split by side.
struct PollSides {
    sockets: Vec<DatapathSocket>,
    /// The kernel descriptors, as the program gave them.
    kernel: Vec<pollfd>,
    /// Their indices in the program's array.
    indices: Vec<usize>,
}

/// Returns the entry of a descriptor that is a datapath socket.
fn datapath_entry(fd: c_int) -> Option<Arc<Entry>> {
    let object = fd_table::entry(fd)?;
    match &*object {
        Entry::Socket(socket) => {
            listen::open_deferred(socket, fd);
            accept_credit::begin_wait(socket);
            socket.role.get()?;
            Some(object)
        }
        Entry::Epoll(set) => {
            set.request_ready_fd(fd);
            set.sync_all_ready_fds();
            None
        }
    }
}

impl PollSides {
    /// Splits the descriptors. Returns `None` if none is a datapath socket.
    fn split(descriptors: &[pollfd]) -> Option<Self> {
        let mut sockets = Vec::new();
        for (at, descriptor) in descriptors.iter().enumerate().filter(|(_, descriptor)| descriptor.fd >= 0) {
            if let Some(object) = datapath_entry(descriptor.fd) {
                sockets.push(DatapathSocket { at, object });
            }
        }
        if sockets.is_empty() {
            return None;
        }
        let (mut kernel, mut indices) = (Vec::new(), Vec::new());
        let mut next = sockets.iter().peekable();
        for (at, descriptor) in descriptors.iter().enumerate() {
            let one = next.next_if(|sockets| sockets.at == at);
            let has_kernel_side = one.and_then(DatapathSocket::socket).is_none_or(Socket::has_kernel_side);
            if descriptor.fd >= 0 && has_kernel_side {
                kernel.push(pollfd { revents: 0, ..*descriptor });
                indices.push(at);
            }
        }
        Some(Self { sockets, kernel, indices })
    }

    /// Writes the `revents` of the datapath sockets. Returns how many are ready; `None` if one was handed over.
    fn check(&self, descriptors: &mut [pollfd]) -> Option<usize> {
        descriptors.iter_mut().for_each(|descriptor| descriptor.revents = 0);
        let mut count = 0;
        for one in &self.sockets {
            let Some(role) = one.role() else { continue };
            let descriptor = &mut descriptors[one.at];
            let readiness = role.readiness();
            if readiness == Readiness::ALL && one.socket().is_some_and(Socket::check_moved) {
                return None;
            }
            descriptor.revents = poll_revents(readiness, descriptor.events);
            count += usize::from(descriptor.revents != 0);
        }
        Some(count)
    }

    /// Writes the `revents` of the kernel descriptors. Returns how many descriptors are ready in all.
    fn add_kernel_results(&self, descriptors: &mut [pollfd]) -> usize {
        for (index, descriptor) in self.indices.iter().zip(&self.kernel) {
            descriptors[*index].revents |= descriptor.revents;
        }
        descriptors.iter().filter(|descriptor| descriptor.revents != 0).count()
    }

    fn wanted<'a>(&'a self, descriptors: &'a [pollfd]) -> Vec<(&'a dyn Source, Readiness)> {
        let one = |sockets: &'a DatapathSocket| {
            Some((sockets.role()?.source(), poll_readiness(descriptors[sockets.at].events)))
        };
        self.sockets.iter().filter_map(one).collect()
    }
}

/// Polls as `ppoll(2)`. Returns `None`, with nothing done, if no descriptor is a datapath socket; otherwise the number of
/// ready descriptors, or an errno.
pub(super) fn wait(
    descriptors: &mut [pollfd],
    timeout: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Option<Result<usize, c_int>> {
    if let [one] = descriptors
        && let Some(count) = poll_single_ready(one)
    {
        return Some(Ok(count));
    }
    let Some(mut sides) = PollSides::split(descriptors) else {
        return if process::is_child() { shared_listener::poll(descriptors, timeout, mask) } else { None };
    };
    let timeout = Timeout::new(timeout);
    let runtime = RUNTIME.get()?.as_ref()?;
    Some(loop {
        let left = timeout.remaining();
        let is_over = left.is_some_and(|left| left.is_zero());
        let Some(count) = sides.check(descriptors) else {
            sides = PollSides::split(descriptors)?;
            continue;
        };
        if count > 0 || is_over {
            break sides.finish(descriptors, count, mask);
        }
        let mut kernel = std::mem::take(&mut sides.kernel);
        let outcome = runtime.wait_any(&sides.wanted(descriptors), left, &PollSet::new(&mut kernel, mask));
        sides.kernel = kernel;
        match outcome {
            Ok(WaitOutcome::Events | WaitOutcome::TimedOut) => {}
            // The sleep itself has filled in the kernel descriptors' `revents`.
            Ok(WaitOutcome::Kernel) => {
                if sides.check(descriptors).is_none() {
                    sides = PollSides::split(descriptors)?;
                    continue;
                }
                break Ok(sides.add_kernel_results(descriptors));
            }
            Ok(WaitOutcome::Signal) => break Err(libc::EINTR),
            Err(_) => break Err(libc::ENOMEM),
        }
    })
}

/// Polls a single descriptor that is ready, the most frequent call of clients, with one lookup.
fn poll_single_ready(one: &mut pollfd) -> Option<usize> {
    let ready = fd_table::with_socket(one.fd, |socket| {
        let readiness = socket.role.get().filter(|_| !socket.has_kernel_side())?.readiness();
        if readiness == Readiness::ALL && socket.check_moved() {
            return None;
        }
        Some(poll_revents(readiness, one.events))
    });
    one.revents = ready.flatten().filter(|revents| *revents != 0)?;
    Some(1)
}

impl PollSides {
    /// Checks the kernel descriptors and ends the call, with `count` datapath sockets ready or no time left.
    fn finish(&mut self, descriptors: &mut [pollfd], count: usize, mask: Option<&sigset_t>) -> Result<usize, c_int> {
        // Without events, a signal that the mask unblocks is delivered, and ends the call.
        let mask = mask.filter(|_| count == 0);
        if self.kernel.is_empty() && mask.is_none() {
            return Ok(count);
        }
        match kernel_ppoll(&mut self.kernel, Some(timeout::to_timespec(Duration::ZERO)), mask) {
            Err(number) if count == 0 => Err(number),
            _ => Ok(self.add_kernel_results(descriptors)),
        }
    }
}

/// # Safety
/// The same as for `ppoll`.
unsafe fn datapath_ppoll(
    at: *mut pollfd,
    count: nfds_t,
    timeout: Option<Duration>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let count = usize::try_from(count).ok().filter(|count| *count < MAX_DESCRIPTORS)?;
    if at.is_null() || count == 0 || !process::may_have_entries() {
        return None;
    }
    signals::test_cancel();
    // SAFETY: guaranteed by the caller.
    let (descriptors, mask) = unsafe { (std::slice::from_raw_parts_mut(at, count), mask.as_ref()) };
    Some(wait(descriptors, timeout, mask)?.map_or_else(fail, |count| count as c_int))
}

/// Returns the answer of a call that waits, unless the thread was cancelled.
pub(super) fn check_cancelled(answer: c_int) -> c_int {
    if answer < 0 && crate::errno::errno() == libc::EINTR {
        signals::test_cancel();
    }
    answer
}

/// `poll(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let span = u64::try_from(timeout).ok().map(Duration::from_millis);
    // SAFETY: the caller's guarantees are passed on.
    unsafe {
        match datapath_ppoll(descriptors, count, span, null()) {
            Some(answer) => check_cancelled(answer),
            None => real::POLL.get()(descriptors, count, timeout),
        }
    }
}

/// `ppoll(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn ppoll(
    descriptors: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's guarantees are passed on; among them, `timeout` is null or points to a time.
    unsafe {
        let given = timeout.as_ref();
        // The kernel fails an invalid time with EINVAL.
        if given.is_none_or(|given| duration_from_timespec(given).is_some())
            && let Some(answer) = datapath_ppoll(descriptors, count, given.and_then(duration_from_timespec), mask)
        {
            return check_cancelled(answer);
        }
        real::PPOLL.get()(descriptors, count, timeout, mask)
    }
}

/// `__poll_chk`, which programs built with `_FORTIFY_SOURCE` call.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(descriptors: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    abort_if_overflowing(count, room);
    // SAFETY: the caller's guarantees are passed on.
    unsafe { poll(descriptors, count, timeout) }
}

/// `__ppoll_chk`, as [`__poll_chk`].
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    descriptors: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    abort_if_overflowing(count, room);
    // SAFETY: the caller's guarantees are passed on.
    unsafe { ppoll(descriptors, count, timeout, mask) }
}

/// Aborts if the program's array is too small, as the C library does.
fn abort_if_overflowing(count: nfds_t, room: size_t) {
    if room / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
}

/// The bits that `select` counts as readable, writable and exceptional.
pub(super) const READS: c_short = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
pub(super) const WRITES: c_short = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
pub(super) const EXCEPTS: c_short = libc::POLLPRI;
