//! Epoll sets that mix our sockets with descriptors of the kernel.
//!
//! The program's epoll descriptor stays what it is, with the kernel's members in it. From the first socket of ours on it has
//! an epoll of the datapath beside it, for ours. A wait is a wait of the datapath's, which sleeps on the kernel's epoll
//! descriptor as well: one system call for both sides, and none while there is something to do.
//!
//! Neither side starves:
//!
//! * *While our sockets are busy* no wait sleeps, so the kernel's members are looked at by a system call of their own, at
//!   most every [`LOOK_EVERY`] (10 000 a second and epoll set: a thousandth of a CPU), and before ours in that wait, with
//!   half of the room for events. A set without members of the kernel's is never looked at.
//! * *While the kernel's members are busy* every wait still looks at ours first, between any two looks at the kernel's.
//! * *While both are idle* the sleep ends by either. In a mode that never sleeps (`fullbusy`) the datapath looks after
//!   each of its rounds of 1 ms.
//!
//! A wait with a timeout of zero that finds nothing of ours looks at the kernel's: the program asked for just that.
//!
//! A mask for signals (`epoll_pwait`) is that of the system call that sleeps, so none comes between. Signals that the mask
//! blocks and the thread does not may still run their handlers before the sleep, as before any call.
//!
//! # Members
//!
//! * *A socket that is added before it is ours* (before `connect`, `listen`) is the kernel's member first, and moves over when
//!   it becomes ours ([`adopt`](super::members::adopt)). [`Set`]s take note of members that may do so: internet sockets without a peer.
//! * *A socket with two sides* (a listener that the kernel's connections come to as well) is a member of both, and what both
//!   say in one wait is one event: those with the same data are put together.
//! * *A duplicate* is a member of its own, by its number, as in the kernel.
//! * *A socket that is closed* leaves both sides with its last descriptor.
//!
//! # Those who wait in the kernel alone
//!
//! An epoll that has this one as a member, `poll` on its descriptor, and a thread that was waiting already when the first
//! socket of ours came, sleep where the datapath does not reach: for them the set has a [bell](super::bell).

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use abey_datapath::{Ended, Epoll, Event};
use abey_delivery::{EpollBusyPoll, Nanos};
use libc::{c_int, epoll_event, pollfd, sigset_t};

use super::conditions::{conditions, interest};
use super::errno::{fail, of_epoll};
use super::members::{Kept, Side};
use super::outside::Beside;
use super::table::{self, Object};
use super::{RUNTIME, inside, signals};
use crate::real;
use crate::times::Limit;

/// How often the kernel's members are looked at while ours are busy, in nanoseconds.
const LOOK_EVERY: u64 = 100_000;

/// What an epoll descriptor has beside it.
#[derive(Debug)]
pub(crate) struct Set {
    /// From the first socket of ours on.
    ours: OnceLock<Epoll>,
    /// It may have members of the kernel's.
    pub(super) has_kernel: AtomicBool,
    pub(super) has_bell: AtomicBool,
    /// It has members that are in `kept`.
    pub(super) has_kept: AtomicBool,
    /// Threads that wait in the kernel alone.
    plain: AtomicU32,
    began: Instant,
    /// When the kernel's members were looked at last, in nanoseconds since it began.
    looked: AtomicU64,
    kept: Mutex<Kept>,
}

thread_local! {
    /// The thread's room for events, kept from one wait to the next.
    static EVENTS: Cell<Vec<Event>> = const { Cell::new(Vec::new()) };
}

pub(super) fn with_set<R>(epfd: c_int, work: impl FnOnce(&Set) -> R) -> Option<R> {
    let found = table::get(epfd)?;
    match found.as_deref()? {
        Object::Epoll(set) => Some(work(set)),
        Object::Socket(_) => None,
    }
}

/// Takes note of an instance that the program made.
pub(crate) fn made(epfd: c_int) {
    if epfd >= 0 && super::config().is_some() {
        register(epfd, false);
    }
}

fn register(epfd: c_int, has_kernel: bool) -> Option<Arc<Object>> {
    let object = Arc::new(Object::Epoll(Set::new(has_kernel)));
    super::members::register(epfd, &object);
    table::put(epfd, object.clone()).then_some(object)
}

/// The set of an epoll descriptor, with an epoll of the datapath in it; `None` if it is no epoll descriptor at all.
pub(super) fn attach(epfd: c_int) -> Option<Arc<Object>> {
    static ATTACHING: Mutex<()> = Mutex::new(());
    let object = match table::share(epfd) {
        Some(object) => object,
        None => {
            let _one = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
            match table::share(epfd) {
                Some(object) => object,
                None => register(epfd, unseen_members(epfd)?)?,
            }
        }
    };
    let Object::Epoll(set) = &*object else { return None };
    set.begin(epfd)?;
    Some(object)
}

/// Whether an epoll that we did not see being made has members.
fn unseen_members(epfd: c_int) -> Option<bool> {
    let kind = inside(|| std::fs::read_link(format!("/proc/self/fd/{epfd}"))).ok()?;
    // Another kind of descriptor is the kernel's to refuse, in words of its own.
    if kind.as_os_str() != "anon_inode:[eventpoll]" {
        return None;
    }
    let about = inside(|| std::fs::read_to_string(format!("/proc/self/fdinfo/{epfd}"))).unwrap_or_default();
    Some(about.lines().any(|line| line.starts_with("tfd:")))
}

/// What a thread that is about to wait in the kernel alone is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plain {
    /// Go ahead; nobody needs to know.
    Unknown,
    /// Go ahead, and say when it is over ([`end_plain`]).
    Noted,
    /// The set has got sockets of ours this moment.
    Ours,
}

/// A thread is about to wait for `epfd` in the kernel alone.
#[inline]
pub(crate) fn begin_plain(epfd: c_int) -> Plain {
    let told = with_set(epfd, |set| {
        set.plain.fetch_add(1, Ordering::SeqCst);
        if set.ours.get().is_some() {
            set.plain.fetch_sub(1, Ordering::SeqCst);
            return Plain::Ours;
        }
        set.settle_nested();
        Plain::Noted
    });
    told.unwrap_or(Plain::Unknown)
}

/// It is over with this `answer`. `None`: the set has got sockets of ours meanwhile, and there is nothing to tell yet.
///
/// # Safety
/// `answer` events, if there are any, can be read and written at `to`.
pub(crate) unsafe fn end_plain(epfd: c_int, to: *mut epoll_event, answer: c_int) -> Option<c_int> {
    let told = with_set(epfd, |set| {
        set.plain.fetch_sub(1, Ordering::SeqCst);
        if set.ours.get().is_none() || answer <= 0 {
            return Some(answer);
        }
        // SAFETY: the caller's promise.
        let left = unsafe { set.without_bell(to, answer as usize) };
        (left > 0).then_some(left as c_int)
    });
    told.unwrap_or(Some(answer))
}

impl Set {
    fn new(has_kernel: bool) -> Self {
        Self {
            ours: OnceLock::new(),
            has_kernel: AtomicBool::new(has_kernel),
            has_bell: AtomicBool::new(false),
            has_kept: AtomicBool::new(false),
            plain: AtomicU32::new(0),
            began: Instant::now(),
            looked: AtomicU64::new(0),
            kept: Mutex::default(),
        }
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ours(&self) -> Option<&Epoll> {
        self.ours.get()
    }

    /// The datapath's epoll, made if there is none yet.
    fn begin(&self, epfd: c_int) -> Option<&Epoll> {
        if let Some(ours) = self.ours.get() {
            return Some(ours);
        }
        let runtime = RUNTIME.get()?.as_ref()?;
        let mut kept = self.kept();
        let ours = self.ours.get_or_init(|| {
            let epoll = runtime.epoll();
            if let Some(busy) = kept.busy {
                // The kernel has checked them.
                let _ = epoll.set_busy_poll(busy);
            }
            epoll
        });
        // Whoever waits in the kernel by now has been counted, or finds `ours`.
        if kept.wants_bell || self.plain.load(Ordering::SeqCst) > 0 {
            self.hang_bell(epfd, ours, &mut kept);
        }
        Some(ours)
    }

    /// Whether it is time to look at the kernel's members. Of several threads one does.
    fn is_due(&self) -> bool {
        if !self.has_kernel.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.began.elapsed().as_nanos() as u64;
        let last = self.looked.load(Ordering::Relaxed);
        now.saturating_sub(last) >= LOOK_EVERY
            && self.looked.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// # Safety
    /// `room` events can be written at `to`.
    unsafe fn wait(
        &self,
        ours: &Epoll,
        epfd: c_int,
        to: *mut epoll_event,
        room: usize,
        timeout: Option<Duration>,
        mask: Option<&sigset_t>,
    ) -> c_int {
        let limit = Limit::new(timeout);
        let mut descriptors = [pollfd { fd: epfd, events: libc::POLLIN, revents: 0 }];
        let beside = Beside::new(&mut descriptors, mask);
        let mut events = EVENTS.take();
        self.settle_nested();
        let answer = loop {
            let mut found = 0;
            if self.is_due() {
                // SAFETY: the caller's promise.
                match unsafe { self.look(epfd, to, room.div_ceil(2)) } {
                    Ok(count) => found = count,
                    Err(number) => break fail(number),
                }
            }
            if found == room {
                break found as c_int;
            }
            let left = if found > 0 { Some(Duration::ZERO) } else { limit.left() };
            match ours.wait_with(&mut events, room - found, left, &beside) {
                Ok(Ended::Events) => {
                    for (at, event) in events.iter().enumerate() {
                        let event = epoll_event { events: conditions(event.readiness), u64: event.token };
                        // SAFETY: the caller's promise; there are at most `room - found` events.
                        unsafe { to.add(found + at).write_unaligned(event) };
                    }
                    // SAFETY: as above.
                    break unsafe { self.told(to, found, found + events.len()) } as c_int;
                }
                // SAFETY: as above.
                _ if found > 0 => break unsafe { self.told(to, found, found) } as c_int,
                Ok(Ended::Signal) => break fail(libc::EINTR),
                Err(error) => break fail(of_epoll(&error)),
                Ok(ended) => {
                    let is_over = ended == Ended::TimedOut;
                    if is_over && !self.has_kernel.load(Ordering::Relaxed) {
                        break 0;
                    }
                    // SAFETY: the caller's promise.
                    match unsafe { self.look(epfd, to, room) } {
                        Ok(0) if !is_over => self.settle_bell(),
                        // SAFETY: as above.
                        Ok(count) => break unsafe { self.told(to, count, count) } as c_int,
                        Err(number) => break fail(number),
                    }
                }
            }
        };
        EVENTS.set(events);
        crate::state::keep_errno(|| self.settle_bell());
        answer
    }

    /// Takes events of the kernel's members, without waiting. By the system call itself, which cancels no thread.
    ///
    /// # Safety
    /// `room` events can be written at `to`.
    unsafe fn look(&self, epfd: c_int, to: *mut epoll_event, room: usize) -> Result<usize, c_int> {
        let none = null_mut::<sigset_t>();
        // SAFETY: the caller's promise; no mask.
        let answer = unsafe { libc::syscall(libc::SYS_epoll_pwait, epfd, to, room as c_int, 0, none, 8) };
        let count = usize::try_from(answer).map_err(|_| crate::wait::errno())?;
        // SAFETY: they were just written there.
        Ok(unsafe { self.without_bell(to, count) })
    }

    /// The events that are told: `kernel` of the kernel's, and then ours, up to `count`. Those of a member that both sides
    /// have are put together. How many are left.
    unsafe fn told(&self, to: *mut epoll_event, kernel: usize, count: usize) -> usize {
        if !self.has_kept.load(Ordering::Relaxed) {
            return count;
        }
        // SAFETY: the caller's promise; nobody else looks at the program's events. The structure is packed on x86-64.
        let events = unsafe { std::slice::from_raw_parts_mut(to, count) };
        self.put_together(events, kernel)
    }

    /// A member that is told once is told by one side.
    pub(super) fn spend(&self, epfd: c_int, fd: c_int, event: epoll_event, side: Side) {
        match side {
            Side::Kernel => {
                if let (Some(ours), Some(object)) = (self.ours.get(), table::share(fd))
                    && let Object::Socket(socket) = &*object
                    && let Some(role) = socket.role.get()
                {
                    let silent = interest(event.events & (libc::EPOLLONESHOT | libc::EPOLLET) as u32);
                    let _ = ours.modify_as(role.source(), fd as u32, event.u64, silent);
                }
            }
            Side::Ours => {
                let mut silent = epoll_event { events: libc::EPOLLONESHOT as u32, u64: event.u64 };
                // SAFETY: the event lives through the call.
                unsafe { real::EPOLL_CTL.get()(epfd, libc::EPOLL_CTL_MOD, fd, &raw mut silent) };
            }
        }
    }

    /// The busy-poll parameters of ours, if there is such an epoll.
    pub(super) fn busy_poll(&self) -> Option<Option<EpollBusyPoll>> {
        Some(self.ours.get()?.busy_poll())
    }

    /// The program sets the busy-poll parameters.
    pub(super) fn set_busy_poll(&self, busy: Option<EpollBusyPoll>) {
        self.kept().busy = Some(busy);
        if let Some(ours) = self.ours.get() {
            // Parameters that are out of range are refused by the kernel before.
            let _ = ours.set_busy_poll(busy);
        }
    }
}

/// A wait on a set with sockets of ours.
///
/// # Safety
/// As of `epoll_pwait`.
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
        let ours = set.ours.get()?;
        let Some(room) = usize::try_from(max).ok().filter(|room| *room > 0) else { return Some(fail(libc::EINVAL)) };
        // SAFETY: the caller's promises: null, or a mask.
        let mask = unsafe { mask.as_ref() };
        // SAFETY: the caller's promises.
        Some(unsafe { set.wait(ours, epfd, to, room, timeout.map(Duration::from), mask) })
    });
    let answer = answer.flatten()?;
    if answer < 0 && crate::wait::errno() == libc::EINTR {
        signals::test_cancel();
    }
    Some(answer)
}
