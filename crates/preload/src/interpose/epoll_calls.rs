//! The interposed part of `epoll_ctl(2)` and of `ioctl_eventpoll(2)`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abey_delivery::EpollBusyPoll;
use libc::{c_int, c_ulong, epoll_event};

use super::context::datapath_config;
use super::epoll_set::{EpollSet, attach, with_set};
use super::error_codes::{errno_of_epoll, fail};
use super::fd_table::{self, Entry};
use super::handover::{self, Reason};
use super::member_table::Added;
use super::{direct_epoll, listen, process, shared_listener};
use crate::{errno, real};

/// Changes a member that is a datapath socket. Returns `None` if the kernel shall do it.
///
/// # Safety
/// The same as for `epoll_ctl`.
pub(crate) unsafe fn ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> Option<c_int> {
    let object = fd_table::entry(fd)?;
    let Entry::Socket(socket) = &*object else { return None };
    direct_epoll::uses_library();
    listen::open_deferred(socket, fd);
    socket.role.get()?;
    let set = errno::preserve_errno(|| attach(epfd))?;
    let Entry::Epoll(set) = &*set else { return None };
    if op == libc::EPOLL_CTL_ADD && set.is_shared() && handover::hand_over(fd, Reason::Child) {
        return None;
    }
    // SAFETY: guaranteed by the caller: null, or an event.
    let given = (!event.is_null()).then(|| Added::from(unsafe { event.read_unaligned() }));
    let added = match (op, given) {
        (libc::EPOLL_CTL_DEL, _) => Added { events: 0, data: 0 },
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(added)) => added,
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => return Some(fail(libc::EFAULT)),
        _ => return Some(fail(libc::EINVAL)),
    };
    if added.events & libc::EPOLLEXCLUSIVE as u32 != 0 && added.events & !WITH_EXCLUSIVE != 0 {
        return Some(fail(libc::EINVAL));
    }
    if socket.has_kernel_side() {
        // SAFETY: the caller's guarantees are passed on.
        let answer = unsafe { real::EPOLL_CTL.get()(epfd, op, fd, event) };
        if answer != 0 {
            return Some(answer);
        }
        set.has_kernel_members.store(true, Ordering::Relaxed);
    }
    let answer = set.ctl_datapath(socket, op, fd, added).map_or_else(|error| fail(errno_of_epoll(&error)), |()| 0);
    if answer == 0 {
        set.record_dual(socket, fd, (op != libc::EPOLL_CTL_DEL).then_some(added));
    } else if socket.has_kernel_side() && op == libc::EPOLL_CTL_ADD {
        // SAFETY: as above. The member that was just added is removed again.
        errno::preserve_errno(|| unsafe { real::EPOLL_CTL.get()(epfd, libc::EPOLL_CTL_DEL, fd, event) });
    }
    Some(answer)
}

/// Records a change of a member that the kernel has made.
///
/// # Safety
/// The same as for `epoll_ctl`.
pub(crate) unsafe fn after_kernel_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) {
    if process::is_child() {
        // SAFETY: the caller's guarantees are passed on.
        return unsafe { shared_listener::mirror_ctl(epfd, op, fd, event) };
    }
    if datapath_config().is_none() {
        return;
    }
    // SAFETY: guaranteed by the caller: null, or an event.
    let added = (!event.is_null()).then(|| Added::from(unsafe { event.read_unaligned() }));
    with_set(epfd, |set| match (op, added) {
        (libc::EPOLL_CTL_ADD, Some(added)) => set.record_kernel_member(epfd, fd, added),
        (libc::EPOLL_CTL_MOD, Some(added)) if set.has_tracked_members.load(Ordering::Relaxed) => {
            set.members().candidates.entry(fd).and_modify(|candidate| *candidate = added);
        }
        (libc::EPOLL_CTL_DEL, _) if set.has_tracked_members.load(Ordering::Relaxed) => {
            let removed = fd_table::entry(fd);
            let mut members = set.members();
            members.candidates.remove(&fd);
            members.nested.retain(|nested| !nested.upgrade().is_some_and(|nested| is_same(&removed, &nested)));
        }
        _ => {}
    });
}

/// The events that are possible with EPOLLEXCLUSIVE (`epoll_ctl(2)`).
const WITH_EXCLUSIVE: u32 = (libc::EPOLLIN
    | libc::EPOLLOUT
    | libc::EPOLLERR
    | libc::EPOLLHUP
    | libc::EPOLLWAKEUP
    | libc::EPOLLET
    | libc::EPOLLEXCLUSIVE) as u32;

fn is_same(one: &Option<Arc<Entry>>, other: &Arc<Entry>) -> bool {
    one.as_ref().is_some_and(|one| Arc::ptr_eq(one, other))
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

/// Gets and sets the busy-poll parameters of an epoll set, as `ioctl(2)`. The datapath's epoll gets the same parameters as
/// the kernel's instance, and reports its own. Returns `None` if the kernel shall answer.
///
/// # Safety
/// The same as for `ioctl`.
pub(crate) unsafe fn ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> Option<c_int> {
    let at = argument as *mut Parameters;
    if at.is_null() {
        return None;
    }
    match request {
        GET_PARAMETERS => {
            let busy = with_set(fd, EpollSet::busy_poll)??;
            let busy = busy.map(|busy| (busy.usecs, busy.budget, busy.prefer)).unwrap_or_default();
            let parameters = Parameters { usecs: busy.0, budget: busy.1, prefer: u8::from(busy.2), padding: 0 };
            // SAFETY: the request's argument points to a `struct epoll_params`.
            unsafe { at.write_unaligned(parameters) };
            Some(0)
        }
        SET_PARAMETERS => {
            with_set(fd, |_| ())?;
            // SAFETY: the caller's guarantees are passed on.
            let answer = unsafe { real::IOCTL.get()(fd, request, argument) };
            // Kernels before 6.9 do not have these parameters; the datapath does.
            if answer != 0 && crate::errno::errno() != libc::ENOTTY {
                return Some(answer);
            }
            // SAFETY: the request's argument points to a `struct epoll_params`, which the kernel has just read.
            let Parameters { usecs, budget, prefer, .. } = unsafe { at.read_unaligned() };
            let busy = EpollBusyPoll { usecs, budget, prefer: prefer != 0 };
            with_set(fd, |set| set.set_busy_poll((usecs != 0 || budget != 0 || prefer != 0).then_some(busy)));
            Some(0)
        }
        _ => None,
    }
}
