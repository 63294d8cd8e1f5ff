//! `poll` on sockets of ours, alone or among descriptors of the kernel.
//!
//! Nothing is kept from one call to the next: a call looks at its sockets, and if none is ready it leaves a note with each,
//! sleeps, and takes the notes back, as the kernel's does with its wait queues. The kernel's descriptors are in the `ppoll`
//! of that sleep as the program gave them, so what they answer is the kernel's own answer, whatever they are (files, which
//! no epoll takes, and numbers that are not open), and so is what happens to a signal under the program's mask. A call
//! that finds one of ours ready makes no system call unless there are descriptors of the kernel's to look at too.
//!
//! An idle poll sleeps, in every mode but `sockbusyX`, where it polls the queues of its sockets before, as the kernel does
//! for `SO_BUSY_POLL`; the parameters of the other modes are those of epoll contexts, there as here.
//!
//! An epoll descriptor is the kernel's, with its bell in it ([`super::epoll`]).

use std::ptr::null;
use std::sync::Arc;
use std::time::Duration;

use abey_datapath::{Ended, Readiness, Source};
use libc::{c_int, c_short, nfds_t, pollfd, sigset_t, size_t, timespec};

use super::conditions::{revents, wanted};
use super::errno::fail;
use super::outside::{Beside, call};
use super::socket::{Role, Socket};
use super::table::{self, Object};
use super::{RUNTIME, signals};
use crate::real;
use crate::times::{self, Limit, of_timespec};

/// More descriptors than any process may have, which is the kernel's to say.
const TOO_MANY: usize = 1 << 24;

/// A socket of ours in a poll.
struct Ours {
    at: usize,
    object: Arc<Object>,
}

impl Ours {
    fn socket(&self) -> Option<&Socket> {
        match &*self.object {
            Object::Socket(socket) => Some(socket),
            Object::Epoll(_) => None,
        }
    }

    fn role(&self) -> Option<&Role> {
        self.socket()?.role.get()
    }
}

/// A poll's descriptors, told apart.
struct Sides {
    ours: Vec<Ours>,
    /// The kernel's, as they were given.
    kernel: Vec<pollfd>,
    /// Where these were.
    places: Vec<usize>,
}

/// The object of a descriptor that the datapath has a part in.
fn look_up(fd: c_int) -> Option<Arc<Object>> {
    let object = table::share(fd)?;
    match &*object {
        Object::Socket(socket) => {
            socket.prepare(fd);
            socket.role.get()?;
            Some(object)
        }
        Object::Epoll(set) => {
            set.want_bell(fd);
            set.settle();
            None
        }
    }
}

impl Sides {
    /// `None`: none is ours.
    fn of(descriptors: &[pollfd]) -> Option<Self> {
        let mut ours = Vec::new();
        for (at, descriptor) in descriptors.iter().enumerate().filter(|(_, descriptor)| descriptor.fd >= 0) {
            if let Some(object) = look_up(descriptor.fd) {
                ours.push(Ours { at, object });
            }
        }
        if ours.is_empty() {
            return None;
        }
        let (mut kernel, mut places) = (Vec::new(), Vec::new());
        let mut next = ours.iter().peekable();
        for (at, descriptor) in descriptors.iter().enumerate() {
            let one = next.next_if(|ours| ours.at == at);
            let has_kernel_side = one.and_then(Ours::socket).is_none_or(Socket::has_kernel_side);
            if descriptor.fd >= 0 && has_kernel_side {
                kernel.push(pollfd { revents: 0, ..*descriptor });
                places.push(at);
            }
        }
        Some(Self { ours, kernel, places })
    }

    /// Writes what ours are ready for; how many are.
    fn look(&self, descriptors: &mut [pollfd]) -> usize {
        descriptors.iter_mut().for_each(|descriptor| descriptor.revents = 0);
        let mut count = 0;
        for one in &self.ours {
            let Some(role) = one.role() else { continue };
            let descriptor = &mut descriptors[one.at];
            descriptor.revents = revents(role.readiness(), descriptor.events);
            count += usize::from(descriptor.revents != 0);
        }
        count
    }

    /// Writes what the kernel's were found ready for; how many are ready now.
    fn add_kernels(&self, descriptors: &mut [pollfd]) -> usize {
        for (place, descriptor) in self.places.iter().zip(&self.kernel) {
            descriptors[*place].revents |= descriptor.revents;
        }
        descriptors.iter().filter(|descriptor| descriptor.revents != 0).count()
    }

    fn wanted<'a>(&'a self, descriptors: &'a [pollfd]) -> Vec<(&'a dyn Source, Readiness)> {
        let one = |ours: &'a Ours| Some((ours.role()?.source(), wanted(descriptors[ours.at].events)));
        self.ours.iter().filter_map(one).collect()
    }
}

/// `ppoll(2)`. `None`: no descriptor is ours, and nothing was done. Else how many are ready, or errno.
pub(super) fn wait(
    descriptors: &mut [pollfd],
    timeout: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Option<Result<usize, c_int>> {
    if let [one] = descriptors
        && let Some(count) = ready_alone(one)
    {
        return Some(Ok(count));
    }
    let mut sides = Sides::of(descriptors)?;
    let limit = Limit::new(timeout);
    let runtime = RUNTIME.get()?.as_ref()?;
    Some(loop {
        let left = limit.left();
        let is_over = left.is_some_and(|left| left.is_zero());
        let count = sides.look(descriptors);
        if count > 0 || is_over {
            break sides.finish(descriptors, count, mask);
        }
        let mut kernel = std::mem::take(&mut sides.kernel);
        let ended = runtime.wait_any(&sides.wanted(descriptors), left, &Beside::new(&mut kernel, mask));
        sides.kernel = kernel;
        match ended {
            Ok(Ended::Events | Ended::TimedOut) => {}
            // What is ready of the kernel's was told by the sleep itself.
            Ok(Ended::Outside) => {
                sides.look(descriptors);
                break Ok(sides.add_kernels(descriptors));
            }
            Ok(Ended::Signal) => break Err(libc::EINTR),
            Err(_) => break Err(libc::ENOMEM),
        }
    })
}

/// One descriptor that is ready: the most frequent call of clients needs no more than a look.
fn ready_alone(one: &mut pollfd) -> Option<usize> {
    let told = table::with_socket(one.fd, |socket| {
        let readiness = socket.role.get().filter(|_| !socket.has_kernel_side())?.readiness();
        Some(revents(readiness, one.events))
    });
    one.revents = told.flatten().filter(|revents| *revents != 0)?;
    Some(1)
}

impl Sides {
    /// With `count` of ours ready, or no time left: looks at the kernel's.
    fn finish(&mut self, descriptors: &mut [pollfd], count: usize, mask: Option<&sigset_t>) -> Result<usize, c_int> {
        // Without events a signal that the mask lets through is delivered, and told.
        let mask = mask.filter(|_| count == 0);
        if self.kernel.is_empty() && mask.is_none() {
            return Ok(count);
        }
        match call(&mut self.kernel, Some(times::timespec(Duration::ZERO)), mask) {
            Err(number) if count == 0 => Err(number),
            _ => Ok(self.add_kernels(descriptors)),
        }
    }
}

/// # Safety
/// As of `ppoll`.
unsafe fn ours(at: *mut pollfd, count: nfds_t, timeout: Option<Duration>, mask: *const sigset_t) -> Option<c_int> {
    let count = usize::try_from(count).ok().filter(|count| *count < TOO_MANY)?;
    if at.is_null() || count == 0 || !table::is_active() {
        return None;
    }
    signals::test_cancel();
    // SAFETY: the caller's promises.
    let (descriptors, mask) = unsafe { (std::slice::from_raw_parts_mut(at, count), mask.as_ref()) };
    Some(wait(descriptors, timeout, mask)?.map_or_else(fail, |count| count as c_int))
}

/// What a call that waits ends with: a cancelled thread goes no further.
pub(super) fn answered(answer: c_int) -> c_int {
    if answer < 0 && crate::wait::errno() == libc::EINTR {
        signals::test_cancel();
    }
    answer
}

/// `poll(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(descriptors: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let span = u64::try_from(timeout).ok().map(Duration::from_millis);
    // SAFETY: the caller's promises are passed on.
    unsafe {
        match ours(descriptors, count, span, null()) {
            Some(answer) => answered(answer),
            None => real::POLL.get()(descriptors, count, timeout),
        }
    }
}

/// `ppoll(2)`.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    descriptors: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promises are passed on; among them, that `timeout` is null or points to a time.
    unsafe {
        let given = timeout.as_ref();
        // One that is no time is the kernel's to refuse.
        if given.is_none_or(|given| of_timespec(given).is_some())
            && let Some(answer) = ours(descriptors, count, given.and_then(of_timespec), mask)
        {
            return answered(answer);
        }
        real::PPOLL.get()(descriptors, count, timeout, mask)
    }
}

/// `__poll_chk`, which a program calls that was built with checks of its buffers.
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(descriptors: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    check(count, room);
    // SAFETY: the caller's promises are passed on.
    unsafe { poll(descriptors, count, timeout) }
}

/// `__ppoll_chk`, as [`__poll_chk`].
///
/// # Safety
/// As the C library's function of this name.
// SAFETY: has the type and the meaning of the C library's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    descriptors: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    check(count, room);
    // SAFETY: the caller's promises are passed on.
    unsafe { ppoll(descriptors, count, timeout, mask) }
}

/// What the C library does too, with more words.
fn check(count: nfds_t, room: size_t) {
    if room / size_of::<pollfd>() < count as usize {
        std::process::abort();
    }
}

/// What `select` counts as readable, writable and exceptional of what a descriptor is ready for.
pub(super) const READS: c_short = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
pub(super) const WRITES: c_short = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
pub(super) const EXCEPTS: c_short = libc::POLLPRI;
