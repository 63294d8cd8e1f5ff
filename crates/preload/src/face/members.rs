//! What an epoll set knows of its members beside what the datapath and the kernel know: those that may become ours, those
//! that have two sides, epolls within it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use abey_datapath::EpollError;
use abey_delivery::EpollBusyPoll;
use libc::{c_int, c_ulong, epoll_event};

use super::conditions::interest;
use super::epoll::{Set, attach, with_set};
use super::errno::{fail, of_epoll};
use super::kept::number;
use super::socket::Socket;
use super::table::{self, Object};
use crate::{real, state};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Members in the kernel, by their numbers, that may become ours, as they were added.
    early: HashMap<c_int, Added>,
    /// Members of both sides.
    double: HashMap<c_int, Added>,
    /// Epolls that are members of this one.
    pub(super) nested: Vec<Weak<Object>>,
    /// The busy-poll parameters that the program set.
    pub(super) busy: Option<Option<EpollBusyPoll>>,
    pub(super) wants_bell: bool,
    /// The number of this set's descriptor, where it was made.
    epfd: c_int,
}

/// How a member was added.
#[derive(Clone, Copy, Debug)]
struct Added {
    events: u32,
    data: u64,
}

impl From<epoll_event> for Added {
    fn from(event: epoll_event) -> Self {
        Self { events: event.events, data: event.u64 }
    }
}

impl From<Added> for epoll_event {
    fn from(added: Added) -> Self {
        Self { events: added.events, u64: added.data }
    }
}

/// The sides of a member that has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Kernel,
    Ours,
}

/// All sets, for sockets that become ours.
static SETS: Mutex<Vec<Weak<Object>>> = Mutex::new(Vec::new());

/// Some set has a member that may become ours.
static ANY_EARLY: AtomicBool = AtomicBool::new(false);

/// A new set.
pub(super) fn register(epfd: c_int, object: &Arc<Object>) {
    if let Object::Epoll(set) = &**object {
        set.kept().epfd = epfd;
    }
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.retain(|set| set.strong_count() > 0);
    sets.push(Arc::downgrade(object));
}

/// A socket has become ours: in the epolls that it was added to before, it moves from the kernel's side to ours, or is on
/// both from now on.
pub(crate) fn adopt(fd: c_int) {
    if ANY_EARLY.load(Ordering::Acquire) {
        state::keep_errno(|| adopt_noted(fd));
    }
}

#[cold]
fn adopt_noted(fd: c_int) {
    let Some(object) = table::share(fd) else { return };
    let Object::Socket(socket) = &*object else { return };
    let sets: Vec<_> = SETS.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
    for object in sets {
        let Object::Epoll(set) = &*object else { continue };
        let (added, epfd) = {
            let kept = set.kept();
            (kept.early.get(&fd).copied(), kept.epfd)
        };
        let Some(added) = added else { continue };
        // Whoever added it is going to wait for it.
        socket.prepare(fd);
        if socket.role.get().is_none() {
            return;
        }
        set.kept().early.remove(&fd);
        // The set's own number may have been closed, and be another one's by now.
        if !table::share(epfd).is_some_and(|now| Arc::ptr_eq(&now, &object)) {
            continue;
        }
        let mut event = epoll_event::from(added);
        let op = if socket.has_kernel_side() { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_DEL };
        // SAFETY: the event lives through the call. If it fails, the member was another socket's, which is closed.
        if unsafe { real::EPOLL_CTL.get()(epfd, op, fd, &raw mut event) } == 0 && attach(epfd).is_some() {
            let _ = set.change_ours(socket, libc::EPOLL_CTL_ADD, fd, added);
            set.note_double(socket, fd, Some(added));
        }
    }
}

/// `epoll_ctl(2)` for a socket of ours. `None`: it is the kernel's affair.
///
/// # Safety
/// As of `epoll_ctl`.
pub(crate) unsafe fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Option<c_int> {
    let object = table::share(fd)?;
    let Object::Socket(socket) = &*object else { return None };
    socket.prepare(fd);
    socket.role.get()?;
    let set = state::keep_errno(|| attach(epfd))?;
    let Object::Epoll(set) = &*set else { return None };
    // SAFETY: the caller's promise: null, or an event.
    let given = (!event.is_null()).then(|| Added::from(unsafe { event.read_unaligned() }));
    let added = match (op, given) {
        (libc::EPOLL_CTL_DEL, _) => Added { events: 0, data: 0 },
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(added)) => added,
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => return Some(fail(libc::EFAULT)),
        _ => return Some(fail(libc::EINVAL)),
    };
    if socket.has_kernel_side() {
        // SAFETY: the caller's promises are passed on.
        let answer = unsafe { real::EPOLL_CTL.get()(epfd, op, fd, event) };
        if answer != 0 {
            return Some(answer);
        }
        set.has_kernel.store(true, Ordering::Relaxed);
    }
    let answer = set.change_ours(socket, op, fd, added).map_or_else(|error| fail(of_epoll(&error)), |()| 0);
    if answer == 0 {
        set.note_double(socket, fd, (op != libc::EPOLL_CTL_DEL).then_some(added));
    } else if socket.has_kernel_side() && op == libc::EPOLL_CTL_ADD {
        // SAFETY: as above; what was added a moment ago goes again.
        state::keep_errno(|| unsafe { real::EPOLL_CTL.get()(epfd, libc::EPOLL_CTL_DEL, fd, event) });
    }
    Some(answer)
}

/// The kernel has changed a member that is not ours.
///
/// # Safety
/// As of `epoll_ctl`.
pub(crate) unsafe fn changed(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) {
    if super::config().is_none() {
        return;
    }
    // SAFETY: the caller's promise: null, or an event.
    let added = (!event.is_null()).then(|| Added::from(unsafe { event.read_unaligned() }));
    with_set(epfd, |set| match (op, added) {
        (libc::EPOLL_CTL_ADD, Some(added)) => set.kernel_has(epfd, fd, added),
        (libc::EPOLL_CTL_MOD, Some(added)) if set.has_kept.load(Ordering::Relaxed) => {
            set.kept().early.entry(fd).and_modify(|early| *early = added);
        }
        (libc::EPOLL_CTL_DEL, _) if set.has_kept.load(Ordering::Relaxed) => {
            let gone = table::share(fd);
            let mut kept = set.kept();
            kept.early.remove(&fd);
            kept.nested.retain(|nested| !nested.upgrade().is_some_and(|nested| is(&gone, &nested)));
        }
        _ => {}
    });
}

fn is(one: &Option<Arc<Object>>, other: &Arc<Object>) -> bool {
    one.as_ref().is_some_and(|one| Arc::ptr_eq(one, other))
}

impl Set {
    fn change_ours(&self, socket: &Socket, op: c_int, fd: c_int, added: Added) -> Result<(), EpollError> {
        let (Some(ours), Some(role)) = (self.ours(), socket.role.get()) else { return Err(EpollError::RuntimeGone) };
        let (source, name, interest) = (role.source(), fd as u32, interest(added.events));
        match op {
            libc::EPOLL_CTL_ADD => ours.add_as(source, name, added.data, interest),
            libc::EPOLL_CTL_MOD => ours.modify_as(source, name, added.data, interest),
            _ => ours.remove_as(source, name),
        }
    }

    fn note_double(&self, socket: &Socket, fd: c_int, added: Option<Added>) {
        match added.filter(|_| socket.has_kernel_side()) {
            Some(added) => {
                self.kept().double.insert(fd, added);
                self.has_kept.store(true, Ordering::Relaxed);
            }
            None if self.has_kept.load(Ordering::Relaxed) => {
                self.kept().double.remove(&fd);
            }
            None => {}
        }
    }

    /// The kernel has a new member.
    fn kernel_has(&self, epfd: c_int, fd: c_int, added: Added) {
        self.has_kernel.store(true, Ordering::Relaxed);
        match table::share(fd) {
            Some(object) => {
                if let Object::Epoll(inner) = &*object
                    && fd != epfd
                {
                    inner.want_bell(fd);
                    let mut kept = self.kept();
                    kept.nested.retain(|nested| nested.strong_count() > 0);
                    kept.nested.push(Arc::downgrade(&object));
                } else {
                    self.note_early(fd, added);
                }
            }
            None if may_become_ours(fd) => self.note_early(fd, added),
            None => return,
        }
        self.has_kept.store(true, Ordering::Relaxed);
    }

    fn note_early(&self, fd: c_int, added: Added) {
        self.kept().early.insert(fd, added);
        ANY_EARLY.store(true, Ordering::Release);
    }

    /// One event for each member of both sides; of `events` the first `kernel` are the kernel's. How many are left.
    pub(super) fn put_together(&self, events: &mut [epoll_event], kernel: usize) -> usize {
        let (double, epfd) = {
            let kept = self.kept();
            if kept.double.is_empty() {
                return events.len();
            }
            (kept.double.clone(), kept.epfd)
        };
        for (at, event) in events.iter().enumerate() {
            let (data, side) = (event.u64, if at < kernel { Side::Kernel } else { Side::Ours });
            let once = |added: &Added| added.data == data && added.events & libc::EPOLLONESHOT as u32 != 0;
            for (fd, added) in double.iter().filter(|(_, added)| once(added)) {
                self.spend(epfd, *fd, (*added).into(), side);
            }
        }
        let mut left = kernel;
        for at in kernel..events.len() {
            let event = events[at];
            let data = event.u64;
            let is_double = double.values().any(|added| added.data == data);
            match events[..kernel].iter_mut().find(|other| is_double && { other.u64 } == data) {
                Some(other) => other.events |= event.events,
                None => {
                    events[left] = event;
                    left += 1;
                }
            }
        }
        left
    }
}

/// An internet socket that has no peer, and does not listen for the kernel alone.
fn may_become_ours(fd: c_int) -> bool {
    state::keep_errno(|| {
        if !matches!(number(fd, libc::SOL_SOCKET, libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6)) {
            return false;
        }
        let mut peer = std::mem::MaybeUninit::<libc::sockaddr_storage>::uninit();
        let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: there is room for any address.
        unsafe { real::GETPEERNAME.get()(fd, peer.as_mut_ptr().cast(), &raw mut length) != 0 }
    })
}

/// `_IOW(0x8a, 1, struct epoll_params)` and `_IOR(0x8a, 2, ...)`, of eight bytes (`ioctl_eventpoll(2)`).
const SET_PARAMETERS: c_ulong = 0x4008_8a01;
const GET_PARAMETERS: c_ulong = 0x8008_8a02;

/// `struct epoll_params`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    usecs: u32,
    budget: u16,
    prefer: u8,
    padding: u8,
}

/// `ioctl(2)` of an epoll of ours: its busy-poll parameters are those of the datapath's epoll, too, and what is read is what
/// that has. `None`: it is the kernel's affair.
///
/// # Safety
/// As of `ioctl`.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> Option<c_int> {
    let at = argument as *mut Parameters;
    if at.is_null() {
        return None;
    }
    match request {
        GET_PARAMETERS => {
            let busy = with_set(fd, Set::busy_poll)??;
            let busy = busy.map(|busy| (busy.usecs, busy.budget, busy.prefer)).unwrap_or_default();
            let told = Parameters { usecs: busy.0, budget: busy.1, prefer: u8::from(busy.2), padding: 0 };
            // SAFETY: the request's argument has room for the parameters.
            unsafe { at.write_unaligned(told) };
            Some(0)
        }
        SET_PARAMETERS => {
            with_set(fd, |_| ())?;
            // SAFETY: the caller's promises are passed on.
            let answer = unsafe { real::IOCTL.get()(fd, request, argument) };
            // A kernel that has no such parameters (before 6.9) does not keep us from it.
            if answer != 0 && crate::wait::errno() != libc::ENOTTY {
                return Some(answer);
            }
            // SAFETY: the request's argument are the parameters, which the kernel has just read.
            let Parameters { usecs, budget, prefer, .. } = unsafe { at.read_unaligned() };
            let busy = EpollBusyPoll { usecs, budget, prefer: prefer != 0 };
            with_set(fd, |set| set.set_busy_poll((usecs != 0 || budget != 0 || prefer != 0).then_some(busy)));
            Some(0)
        }
        _ => None,
    }
}
