//! Epoll sets whose members are datapath sockets, kernel descriptors, or both.
//!
//! The program's epoll descriptor stays a kernel epoll instance, with the kernel's members in it. When the first datapath
//! socket is added, it gets an epoll of the datapath as well. A wait is then a wait of the datapath, which also sleeps on
//! the kernel's epoll descriptor: one system call for both sides, and none while events are ready.
//!
//! Neither side starves:
//!
//! * *While datapath sockets are busy*, no wait sleeps. The kernel members are then checked with a system call of their own,
//!   at most every [`KERNEL_CHECK_INTERVAL`] (10 000 times a second and epoll set: a thousandth of a CPU). That wait reports
//!   them first, with half of the room for events. A set without kernel members is never checked.
//! * *While kernel members are busy*, every wait still checks the datapath sockets first.
//! * *While both are idle*, either ends the sleep. In a mode that never sleeps (`fullbusy`), the datapath checks the kernel
//!   descriptor after each of its rounds of 1 ms.
//!
//! A wait with a timeout of zero that finds no event of the datapath checks the kernel members.
//!
//! The signal mask of `epoll_pwait(2)` is that of the system call that sleeps, so it is applied atomically. A signal that
//! the mask blocks and the thread does not may still run its handler before the sleep, as before any call.
//!
//! # Members
//!
//! * *A socket that is added before it becomes a datapath socket* (before `connect` or `listen`) is a kernel member first,
//!   and then moves ([`migrate`](super::member_table::migrate)).
//! * *A socket with two sides* (a listener that accepts from the kernel as well) is a member of both. Events of both sides
//!   in one wait are reported as one.
//! * *A duplicate* is a member of its own, by its descriptor, as in the kernel.
//! * *A socket that is closed* is removed from both sides with its last descriptor (`epoll(7)`).
//!
//! # Waits in the kernel only
//!
//! An epoll instance that has this one as a member, `poll(2)` on its descriptor, and a thread that was waiting before the
//! first datapath socket was added, sleep in the kernel only. For these the set has a [ready fd](super::ready_fd).

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use abey_datapath::{Epoll, Event, WaitOutcome};
use abey_delivery::{EpollBusyPoll, Nanos};
use libc::{c_int, epoll_event, pollfd, sigset_t};

use super::context::uninterposed;
use super::error_codes::{errno_of_epoll, fail};
use super::event_flags::{bits_of, epoll_events, interest_of};
use super::fd_table::{self, Entry};
use super::handover::{self, Reason};
use super::kernel_wait::PollSet;
use super::member_table::{self, MemberTable, Side};
use super::runtime::RUNTIME;
use super::socket::Socket;
use super::{accept_credit, listen, signals};
use crate::real;
use crate::syscall::raw;
use crate::timeout::Timeout;

/// Shortest interval between two checks of the kernel members while datapath sockets are busy, in nanoseconds.
const KERNEL_CHECK_INTERVAL: u64 = 100_000;

/// The datapath's part of an epoll instance.
#[derive(Debug)]
pub(crate) struct EpollSet {
    /// Set when the first datapath socket is added.
    datapath: OnceLock<Epoll>,
    /// The kernel instance may have members.
    pub(super) has_kernel_members: AtomicBool,
    pub(super) has_ready_fd: AtomicBool,
    /// A child of this process waits for the instance, too.
    is_shared: AtomicBool,
    /// Some member is in the member table.
    pub(super) has_tracked_members: AtomicBool,
    /// Number of threads that wait in the kernel only.
    kernel_waiters: AtomicU32,
    created: Instant,
    /// When the kernel members were checked last, in nanoseconds since the set was created.
    checked: AtomicU64,
    members: Mutex<MemberTable>,
}

/// The arguments of a wait: the epoll descriptor, and the program's buffer with its size.
#[derive(Clone, Copy)]
struct EventBuffer {
    epfd: c_int,
    events: *mut epoll_event,
    room: usize,
}

thread_local! {
    /// The thread's buffer for events, reused by the next wait.
    static EVENTS: Cell<Vec<Event>> = const { Cell::new(Vec::new()) };
}

pub(super) fn with_set<R>(epfd: c_int, work: impl FnOnce(&EpollSet) -> R) -> Option<R> {
    let found = fd_table::get(epfd)?;
    match found.as_deref()? {
        Entry::Epoll(set) => Some(work(set)),
        Entry::Socket(_) => None,
    }
}

/// Records an epoll instance that the program created.
pub(crate) fn created(epfd: c_int) {
    if epfd >= 0 && super::context::datapath_config().is_some() {
        register(epfd, false);
    }
}

fn register(epfd: c_int, has_kernel_members: bool) -> Option<Arc<Entry>> {
    let object = Arc::new(Entry::Epoll(EpollSet::new(has_kernel_members)));
    super::member_table::register(epfd, &object);
    fd_table::insert(epfd, object.clone()).then_some(object)
}

/// Returns the set of an epoll descriptor, with an epoll of the datapath in it. Returns `None` if `epfd` is not an epoll
/// descriptor.
pub(super) fn attach(epfd: c_int) -> Option<Arc<Entry>> {
    static ATTACHING: Mutex<()> = Mutex::new(());
    let object = match fd_table::entry(epfd) {
        Some(object) => object,
        None => {
            let _one = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
            match fd_table::entry(epfd) {
                Some(object) => object,
                None => register(epfd, has_unseen_members(epfd)?)?,
            }
        }
    };
    let Entry::Epoll(set) = &*object else { return None };
    set.attach_datapath(epfd)?;
    Some(object)
}

/// Returns whether an epoll instance that was created without this library has members. Returns `None` if `epfd` is not an
/// epoll descriptor.
fn has_unseen_members(epfd: c_int) -> Option<bool> {
    let kind = uninterposed(|| std::fs::read_link(format!("/proc/self/fd/{epfd}"))).ok()?;
    // The kernel has the errno for another kind of descriptor.
    if kind.as_os_str() != "anon_inode:[eventpoll]" {
        return None;
    }
    let about = uninterposed(|| std::fs::read_to_string(format!("/proc/self/fdinfo/{epfd}"))).unwrap_or_default();
    Some(about.lines().any(|line| line.starts_with("tfd:")))
}

/// How a wait in the kernel only starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelWaitStart {
    /// The wait may start; the set is not tracked.
    Untracked,
    /// The wait may start, and its end must be reported to [`end_kernel_wait`].
    Tracked,
    /// The set has datapath sockets; the wait must be the datapath's.
    Datapath,
}

/// Registers a wait for `epfd` in the kernel only, which is about to start.
#[inline]
pub(crate) fn begin_kernel_wait(epfd: c_int) -> KernelWaitStart {
    let start = with_set(epfd, |set| {
        set.kernel_waiters.fetch_add(1, Ordering::SeqCst);
        if set.datapath.get().is_some() {
            set.kernel_waiters.fetch_sub(1, Ordering::SeqCst);
            return KernelWaitStart::Datapath;
        }
        set.sync_nested_ready_fds();
        KernelWaitStart::Tracked
    });
    start.unwrap_or(KernelWaitStart::Untracked)
}

/// Ends a wait in the kernel only, which returned `answer`. Returns what the program's call returns. Returns `None` if the
/// only event was that of the ready fd: the wait must continue, now in the datapath.
///
/// # Safety
/// `answer` events, if it is positive, can be read and written at `to`.
pub(crate) unsafe fn end_kernel_wait(epfd: c_int, to: *mut epoll_event, answer: c_int) -> Option<c_int> {
    let start = with_set(epfd, |set| {
        set.kernel_waiters.fetch_sub(1, Ordering::SeqCst);
        if set.datapath.get().is_none() || answer <= 0 {
            return Some(answer);
        }
        // SAFETY: guaranteed by the caller.
        let left = unsafe { set.remove_ready_fd_events(to, answer as usize) };
        (left > 0).then_some(left as c_int)
    });
    start.unwrap_or(Some(answer))
}

impl EpollSet {
    fn new(has_kernel_members: bool) -> Self {
        Self {
            datapath: OnceLock::new(),
            has_kernel_members: AtomicBool::new(has_kernel_members),
            has_ready_fd: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            has_tracked_members: AtomicBool::new(false),
            kernel_waiters: AtomicU32::new(0),
            created: Instant::now(),
            checked: AtomicU64::new(0),
            members: Mutex::default(),
        }
    }

    pub(super) fn members(&self) -> MutexGuard<'_, MemberTable> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over the members of the datapath, which become the kernel's, and later ones when they are added. New connections of
    /// listeners are left to the kernel.
    pub(super) fn share(&self) {
        self.is_shared.store(true, Ordering::Relaxed);
        let Some(datapath) = self.datapath.get() else { return };
        for (fd, object) in fd_table::find(|object| matches!(object, Entry::Socket(_))) {
            let Entry::Socket(socket) = &*object else { continue };
            let entry = socket.role.get().and_then(|role| datapath.entry_as(role.source(), fd as u32));
            match entry {
                None => {}
                Some((token, interest)) if socket.listening.get().is_some() => {
                    self.add_waiting(socket, epoll_event { events: bits_of(interest), u64: token });
                }
                Some(_) => drop(handover::hand_over(fd, Reason::Child)),
            }
        }
    }

    /// Adds the eventfd of a shared listener to the kernel's members.
    fn add_waiting(&self, socket: &Socket, mut event: epoll_event) {
        let epfd = self.members().epfd();
        if let Ok(Some(waiting)) = listen::share(socket) {
            // SAFETY: the event lives through the call.
            unsafe { real::EPOLL_CTL.get()(epfd, libc::EPOLL_CTL_ADD, waiting.as_raw_fd(), &raw mut event) };
            // The member goes with its last descriptor, of which the listener has one.
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    pub(super) fn datapath(&self) -> Option<&Epoll> {
        self.datapath.get()
    }

    /// Returns the datapath's epoll, created if there is none yet.
    fn attach_datapath(&self, epfd: c_int) -> Option<&Epoll> {
        if let Some(datapath) = self.datapath.get() {
            return Some(datapath);
        }
        let runtime = RUNTIME.get()?.as_ref()?;
        let mut members = self.members();
        let datapath = self.datapath.get_or_init(|| {
            let epoll = runtime.epoll();
            if let Some(busy) = members.busy_poll {
                // The kernel has accepted these parameters.
                let _ = epoll.set_busy_poll(busy);
            }
            epoll
        });
        // A thread that waits in the kernel has been counted by now, or will find `datapath`.
        if members.wants_ready_fd || self.kernel_waiters.load(Ordering::SeqCst) > 0 {
            self.add_ready_fd(epfd, datapath, &mut members);
        }
        Some(datapath)
    }

    /// Returns whether the kernel members shall be checked now. Returns true to only one of several threads.
    fn is_kernel_check_due(&self) -> bool {
        if !self.has_kernel_members.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.created.elapsed().as_nanos() as u64;
        let last = self.checked.load(Ordering::Relaxed);
        now.saturating_sub(last) >= KERNEL_CHECK_INTERVAL
            && self.checked.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Waits for events, as `epoll_pwait(2)`.
    ///
    /// # Safety
    /// `buffer` is the program's, and has room for that many events.
    unsafe fn wait(
        &self,
        datapath: &Epoll,
        buffer: EventBuffer,
        timeout: Option<Duration>,
        mask: Option<&sigset_t>,
    ) -> c_int {
        let timeout = Timeout::new(timeout);
        let mut descriptors = [pollfd { fd: buffer.epfd, events: libc::POLLIN, revents: 0 }];
        let poll_set = PollSet::new(&mut descriptors, mask);
        let mut events = EVENTS.take();
        accept_credit::begin_wait_for(|| self.members().dual_descriptors());
        self.sync_nested_ready_fds();
        let answer = loop {
            let mut found = 0;
            if self.is_kernel_check_due() {
                // SAFETY: guaranteed by the caller.
                match unsafe { self.take_kernel_events(buffer, buffer.room.div_ceil(2)) } {
                    Ok(count) => found = count,
                    Err(number) => break fail(number),
                }
            }
            if found == buffer.room {
                break found as c_int;
            }
            let left = if found > 0 { Some(Duration::ZERO) } else { timeout.remaining() };
            match datapath.wait_with(&mut events, buffer.room - found, left, &poll_set) {
                Ok(WaitOutcome::Events) if member_table::drop_moved(&mut events) && events.is_empty() => {
                    if timeout.has_expired() && found == 0 {
                        break 0;
                    }
                }
                // SAFETY: guaranteed by the caller; `found` events were written, and at most `room - found` were found.
                Ok(WaitOutcome::Events) => break unsafe { self.append(buffer, found, &events) } as c_int,
                // SAFETY: as above.
                _ if found > 0 => break unsafe { self.merge(buffer, found, found) } as c_int,
                Ok(WaitOutcome::Signal) => break fail(libc::EINTR),
                Err(error) => break fail(errno_of_epoll(&error)),
                Ok(outcome) => {
                    let is_over = outcome == WaitOutcome::TimedOut;
                    if is_over && !self.has_kernel_members.load(Ordering::Relaxed) {
                        break 0;
                    }
                    // SAFETY: guaranteed by the caller.
                    match unsafe { self.take_kernel_events(buffer, buffer.room) } {
                        Ok(0) if !is_over => self.sync_ready_fd(),
                        // SAFETY: as above.
                        Ok(count) => break unsafe { self.merge(buffer, count, count) } as c_int,
                        Err(number) => break fail(number),
                    }
                }
            }
        };
        EVENTS.set(events);
        crate::errno::preserve_errno(|| self.sync_ready_fd());
        answer
    }

    /// Takes at most `room` of the kernel members' events, without waiting. A direct system call is not a cancellation
    /// point.
    ///
    /// # Safety
    /// `room` events can be written to the buffer.
    unsafe fn take_kernel_events(&self, buffer: EventBuffer, room: usize) -> Result<usize, c_int> {
        let EventBuffer { epfd, events: to, .. } = buffer;
        // SAFETY: guaranteed by the caller; the timeout is 0, and there is no mask.
        let answer = unsafe { raw(libc::SYS_epoll_pwait, [epfd as usize, to as usize, room, 0, 0, 8]) };
        let count = usize::try_from(answer).map_err(|_| crate::errno::errno())?;
        // SAFETY: the kernel has written this many events.
        Ok(unsafe { self.remove_ready_fd_events(to, count) })
    }

    /// Appends events of the datapath to the first `kernel` events of the buffer, which are the kernel's, and merges them.
    /// Returns how many events are left.
    ///
    /// # Safety
    /// The buffer contains `kernel` events, and has room for `events` after them.
    unsafe fn append(&self, buffer: EventBuffer, kernel: usize, events: &[Event]) -> usize {
        for (at, event) in events.iter().enumerate() {
            let event = epoll_event { events: epoll_events(event.readiness), u64: event.token };
            // SAFETY: guaranteed by the caller.
            unsafe { buffer.events.add(kernel + at).write_unaligned(event) };
        }
        // SAFETY: all of these events were written.
        unsafe { self.merge(buffer, kernel, kernel + events.len()) }
    }

    /// Merges the events of members that are on both sides. The first `kernel` of the `count` events are the
    /// kernel's. Returns how many events are left.
    ///
    /// # Safety
    /// The buffer contains `count` events.
    unsafe fn merge(&self, buffer: EventBuffer, kernel: usize, count: usize) -> usize {
        if !self.has_tracked_members.load(Ordering::Relaxed) {
            return count;
        }
        // SAFETY: guaranteed by the caller; no other thread uses the program's buffer. The structure is packed on x86-64.
        let events = unsafe { std::slice::from_raw_parts_mut(buffer.events, count) };
        self.merge_dual(events, kernel)
    }

    /// Disarms the other side of an EPOLLONESHOT member after `side` has reported an event.
    pub(super) fn disarm_other_side(&self, epfd: c_int, fd: c_int, event: epoll_event, side: Side) {
        match side {
            Side::Kernel => {
                if let (Some(datapath), Some(object)) = (self.datapath.get(), fd_table::entry(fd))
                    && let Entry::Socket(socket) = &*object
                    && let Some(role) = socket.role.get()
                {
                    let disarmed = interest_of(event.events & (libc::EPOLLONESHOT | libc::EPOLLET) as u32);
                    let _ = datapath.modify_as(role.source(), fd as u32, event.u64, disarmed);
                }
            }
            Side::Datapath => {
                let mut disarmed = epoll_event { events: libc::EPOLLONESHOT as u32, u64: event.u64 };
                // SAFETY: the event lives through the call.
                unsafe { real::EPOLL_CTL.get()(epfd, libc::EPOLL_CTL_MOD, fd, &raw mut disarmed) };
            }
        }
    }

    /// Returns the busy-poll parameters of the datapath's epoll, if it exists.
    pub(super) fn busy_poll(&self) -> Option<Option<EpollBusyPoll>> {
        Some(self.datapath.get()?.busy_poll())
    }

    /// Sets the busy-poll parameters of the datapath's epoll, now or when it is created.
    pub(super) fn set_busy_poll(&self, busy: Option<EpollBusyPoll>) {
        self.members().busy_poll = Some(busy);
        if let Some(datapath) = self.datapath.get() {
            // The kernel has rejected parameters that are out of range before.
            let _ = datapath.set_busy_poll(busy);
        }
    }
}

/// Waits for events of a set with datapath sockets. Returns `None` if `epfd` has none, and the kernel shall wait.
///
/// # Safety
/// The same as for `epoll_pwait`.
#[inline]
pub(crate) unsafe fn wait(
    epfd: c_int,
    to: *mut epoll_event,
    max: c_int,
    timeout: Option<Nanos>,
    mask: *const sigset_t,
) -> Option<c_int> {
    signals::test_cancel();
    let answer = with_set(epfd, |set| {
        let datapath = set.datapath.get()?;
        let Some(room) = usize::try_from(max).ok().filter(|room| *room > 0) else { return Some(fail(libc::EINVAL)) };
        // SAFETY: guaranteed by the caller: null, or a mask.
        let mask = unsafe { mask.as_ref() };
        // SAFETY: guaranteed by the caller.
        Some(unsafe { set.wait(datapath, EventBuffer { epfd, events: to, room }, timeout.map(Duration::from), mask) })
    });
    let answer = answer.flatten()?;
    if answer < 0 && crate::errno::errno() == libc::EINTR {
        signals::test_cancel();
    }
    Some(answer)
}
