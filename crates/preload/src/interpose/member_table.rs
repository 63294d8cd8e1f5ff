//! The members of an epoll set that need tracking beside the kernel's and the datapath's own lists.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use abey_datapath::{EpollError, Event, Readiness};
use abey_delivery::EpollBusyPoll;
use libc::{c_int, epoll_event};

use super::epoll_set::{EpollSet, attach};
use super::event_flags::{bits_of, interest_of};
use super::fd_table::{self, Entry};
use super::handover;
use super::socket::Socket;
use super::socket_options::int;
use crate::{errno, real};

/// What an epoll set records of its members and parameters.
#[derive(Debug, Default)]
pub(super) struct MemberTable {
    /// Kernel members that may become datapath sockets, by descriptor.
    pub(super) candidates: HashMap<c_int, Added>,
    /// Members on both sides, by descriptor.
    dual: HashMap<c_int, Added>,
    /// Epoll sets that are members of this one.
    pub(super) nested: Vec<Weak<Entry>>,
    /// Busy-poll parameters that the program has set.
    pub(super) busy_poll: Option<Option<EpollBusyPoll>>,
    pub(super) wants_ready_fd: bool,
    /// The descriptor with which the set was created.
    epfd: c_int,
}

impl MemberTable {
    /// Returns the descriptor with which the set was created.
    pub(super) fn epfd(&self) -> c_int {
        self.epfd
    }

    /// Returns the descriptors of the members on both sides, listeners among them.
    pub(super) fn dual_descriptors(&self) -> Vec<c_int> {
        self.dual.keys().copied().collect()
    }
}

/// Events and data with which a member was added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Added {
    pub(super) events: u32,
    pub(super) data: u64,
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

/// A side of a member that is on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Kernel,
    Datapath,
}

/// All sets, for sockets that become datapath sockets after they were added.
static SETS: Mutex<Vec<Weak<Entry>>> = Mutex::new(Vec::new());

/// True once any set has a member that may become a datapath socket.
static ANY_CANDIDATE: AtomicBool = AtomicBool::new(false);

/// Registers a new set.
pub(super) fn register(epfd: c_int, object: &Arc<Entry>) {
    if let Entry::Epoll(set) = &**object {
        set.members().epfd = epfd;
    }
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.retain(|set| set.strong_count() > 0);
    sets.push(Arc::downgrade(object));
}

/// Returns the sets that still exist.
fn live_sets() -> Vec<Arc<Entry>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
}

/// Returns whether some set has the kernel socket `fd` as a member that may become a datapath socket.
pub(super) fn is_candidate(fd: c_int) -> bool {
    let is_in =
        |object: &Arc<Entry>| matches!(&**object, Entry::Epoll(set) if set.members().candidates.contains_key(&fd));
    ANY_CANDIDATE.load(Ordering::Acquire) && errno::preserve_errno(|| live_sets().iter().any(is_in))
}

/// Moves a socket that has become a datapath socket from the kernel's side to the datapath's, in all sets that it was added
/// to before. A socket with two sides becomes a member of both.
pub(crate) fn migrate(fd: c_int) {
    if ANY_CANDIDATE.load(Ordering::Acquire) {
        errno::preserve_errno(|| migrate_registered(fd));
    }
}

#[cold]
fn migrate_registered(fd: c_int) {
    let Some(object) = fd_table::entry(fd) else { return };
    let Entry::Socket(socket) = &*object else { return };
    if socket.role.get().is_none() {
        return;
    }
    for object in live_sets() {
        let Entry::Epoll(set) = &*object else { continue };
        let (added, epfd) = {
            let members = set.members();
            (members.candidates.get(&fd).copied(), members.epfd)
        };
        let Some(added) = added else { continue };
        set.members().candidates.remove(&fd);
        // The descriptor may have been closed and reused since.
        if !fd_table::entry(epfd).is_some_and(|now| Arc::ptr_eq(&now, &object)) {
            continue;
        }
        let mut event = epoll_event::from(added);
        let op = if socket.has_kernel_side() { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_DEL };
        // SAFETY: the event lives through the call. The call fails if the member was another socket, now closed.
        if unsafe { real::EPOLL_CTL.get()(epfd, op, fd, &raw mut event) } == 0 && attach(epfd).is_some() {
            let _ = set.ctl_datapath(socket, libc::EPOLL_CTL_ADD, fd, added);
            set.record_dual(socket, fd, Some(added));
        }
    }
}

/// Moves the descriptor of a connection that was handed over from the datapath's side to the kernel's, in all sets.
pub(super) fn move_to_kernel(object: &Arc<Entry>, fd: c_int) {
    let Entry::Socket(socket) = &**object else { return };
    let Some(role) = socket.role.get() else { return };
    for set_object in live_sets() {
        let Entry::Epoll(set) = &*set_object else { continue };
        let Some(datapath) = set.datapath() else { continue };
        let Some((token, interest)) = datapath.entry_as(role.source(), fd as u32) else { continue };
        let epfd = set.members().epfd;
        let mut event = epoll_event { events: bits_of(interest), u64: token };
        let _ = datapath.remove_as(role.source(), fd as u32);
        set.members().dual.remove(&fd);
        set.has_kernel_members.store(true, Ordering::Relaxed);
        // SAFETY: the event lives through the call. The call fails if the descriptor of the set was closed, or if the socket is a
        // member on both sides.
        unsafe { real::EPOLL_CTL.get()(epfd, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }
}

/// Removes the events of connections that were handed over, which become members of the kernel's side. Returns whether there
/// were any.
pub(super) fn drop_moved(events: &mut Vec<Event>) -> bool {
    if !events.iter().any(|event| event.readiness == Readiness::ALL) {
        return false;
    }
    let moved = handover::find_moved();
    let tokens: Vec<_> = moved.iter().flat_map(|(fd, object)| tokens_of(object, *fd)).collect();
    let before = events.len();
    events.retain(|event| event.readiness != Readiness::ALL || !tokens.contains(&event.token));
    for (fd, object) in moved {
        handover::settle_moved(&object, fd);
    }
    events.len() != before
}

/// Returns the tokens under which a descriptor is in datapath epolls.
fn tokens_of(object: &Arc<Entry>, fd: c_int) -> Vec<u64> {
    let Entry::Socket(socket) = &**object else { return Vec::new() };
    let Some(role) = socket.role.get() else { return Vec::new() };
    let token = |set: &Arc<Entry>| match &**set {
        Entry::Epoll(set) => Some(set.datapath()?.entry_as(role.source(), fd as u32)?.0),
        Entry::Socket(_) => None,
    };
    live_sets().iter().filter_map(token).collect()
}

impl EpollSet {
    pub(super) fn ctl_datapath(&self, socket: &Socket, op: c_int, fd: c_int, added: Added) -> Result<(), EpollError> {
        let (Some(datapath), Some(role)) = (self.datapath(), socket.role.get()) else {
            return Err(EpollError::RuntimeDropped);
        };
        let (source, name, interest) = (role.source(), fd as u32, interest_of(added.events));
        match op {
            libc::EPOLL_CTL_ADD => datapath.add_as(source, name, added.data, interest),
            libc::EPOLL_CTL_MOD => datapath.modify_as(source, name, added.data, interest),
            _ => datapath.remove_as(source, name),
        }
    }

    pub(super) fn record_dual(&self, socket: &Socket, fd: c_int, added: Option<Added>) {
        match added.filter(|_| socket.has_kernel_side()) {
            Some(added) => {
                self.members().dual.insert(fd, added);
                self.has_tracked_members.store(true, Ordering::Relaxed);
            }
            None if self.has_tracked_members.load(Ordering::Relaxed) => {
                self.members().dual.remove(&fd);
            }
            None => {}
        }
    }

    /// Records a new kernel member.
    pub(super) fn record_kernel_member(&self, epfd: c_int, fd: c_int, added: Added) {
        self.has_kernel_members.store(true, Ordering::Relaxed);
        match fd_table::entry(fd) {
            Some(object) => {
                if let Entry::Epoll(inner) = &*object
                    && fd != epfd
                {
                    inner.request_ready_fd(fd);
                    let mut members = self.members();
                    members.nested.retain(|nested| nested.strong_count() > 0);
                    members.nested.push(Arc::downgrade(&object));
                } else {
                    self.record_candidate(fd, added);
                }
            }
            None if may_migrate(fd) => self.record_candidate(fd, added),
            None => return,
        }
        self.has_tracked_members.store(true, Ordering::Relaxed);
    }

    fn record_candidate(&self, fd: c_int, added: Added) {
        self.members().candidates.insert(fd, added);
        ANY_CANDIDATE.store(true, Ordering::Release);
    }

    /// Merges the events of each member that is on both sides. The first `kernel` of `events` are the kernel's. Returns how
    /// many events are left.
    pub(super) fn merge_dual(&self, events: &mut [epoll_event], kernel: usize) -> usize {
        let (dual, epfd) = {
            let members = self.members();
            if members.dual.is_empty() {
                return events.len();
            }
            (members.dual.clone(), members.epfd)
        };
        for (at, event) in events.iter().enumerate() {
            let (data, side) = (event.u64, if at < kernel { Side::Kernel } else { Side::Datapath });
            let once = |added: &Added| added.data == data && added.events & libc::EPOLLONESHOT as u32 != 0;
            for (fd, added) in dual.iter().filter(|(_, added)| once(added)) {
                self.disarm_other_side(epfd, *fd, (*added).into(), side);
            }
        }
        let mut left = kernel;
        for at in kernel..events.len() {
            let event = events[at];
            let data = event.u64;
            let is_dual = dual.values().any(|added| added.data == data);
            match events[..kernel].iter_mut().find(|other| is_dual && { other.u64 } == data) {
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

/// Returns whether `fd` is an IPv4 or IPv6 socket without a peer, which may still become a datapath socket.
fn may_migrate(fd: c_int) -> bool {
    errno::preserve_errno(|| {
        if !matches!(int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN), Some(libc::AF_INET | libc::AF_INET6)) {
            return false;
        }
        let mut peer = std::mem::MaybeUninit::<libc::sockaddr_storage>::uninit();
        let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: the buffer has room for any address.
        unsafe { real::GETPEERNAME.get()(fd, peer.as_mut_ptr().cast(), &raw mut length) != 0 }
    })
}
