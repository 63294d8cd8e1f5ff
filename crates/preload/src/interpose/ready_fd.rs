//! The ready fd of an epoll set: an eventfd that mirrors the readiness of the set's datapath sockets, for threads that wait
//! for the set in the kernel only.
//!
//! Such threads are in a wait for another epoll instance that has this one as a member, in a `poll(2)` on its descriptor,
//! or in a wait that began before the first datapath socket was added. For them the set gets an eventfd as a kernel
//! member. It is readable while the datapath's epoll may have events; its own event is never reported to the program. The
//! eventfd is brought up to date before each wait that it may end, since a socket that was emptied stays in the ready
//! queue until the queue is polled.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::Ordering;

use abey_datapath::Epoll;
use libc::{c_int, epoll_event};

use super::epoll_set::EpollSet;
use super::fd_table::Entry;
use super::member_table::MemberTable;
use crate::real;

/// How deep the kernel lets epoll instances be nested (`epoll_ctl(2)`, ELOOP).
const MAX_NESTING: usize = 5;

impl EpollSet {
    /// Adds a ready fd, or records that one is needed: a thread waits for the set's descriptor in the kernel.
    pub(super) fn request_ready_fd(&self, epfd: c_int) {
        if self.has_ready_fd.load(Ordering::Acquire) {
            return;
        }
        let mut members = self.members();
        members.wants_ready_fd = true;
        if let Some(datapath) = self.datapath() {
            self.add_ready_fd(epfd, datapath, &mut members);
        }
    }

    /// Adds the ready fd, unless there is one. `_locked` shows that the caller holds the lock of the member table, so that
    /// only one is added.
    pub(super) fn add_ready_fd(&self, epfd: c_int, datapath: &Epoll, _locked: &mut MemberTable) {
        if self.has_ready_fd.load(Ordering::Acquire) {
            return;
        }
        crate::errno::preserve_errno(|| {
            // SAFETY: the call takes no pointers.
            let made = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if made < 0 {
                return;
            }
            // SAFETY: a new descriptor, which nothing else owns.
            let ready_fd = unsafe { OwnedFd::from_raw_fd(made) };
            let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: self.token() };
            // SAFETY: the event lives through the call.
            if unsafe { real::EPOLL_CTL.get()(epfd, libc::EPOLL_CTL_ADD, ready_fd.as_raw_fd(), &raw mut event) } == 0 {
                self.has_ready_fd.store(true, Ordering::Release);
                datapath.set_ready_fd(Some(ready_fd));
            }
        });
    }

    /// Returns the data of the ready fd's events, which is neither a descriptor nor an address of the program's.
    pub(super) fn token(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Updates the ready fd, if there is one, from the datapath's epoll.
    pub(super) fn sync_ready_fd(&self) {
        if self.has_ready_fd.load(Ordering::Acquire)
            && let Some(datapath) = self.datapath()
        {
            datapath.sync_ready_fd();
        }
    }

    /// Removes the ready fd's event from `count` events. Returns how many are left.
    ///
    /// # Safety
    /// `count` events can be read and written at `to`.
    pub(super) unsafe fn remove_ready_fd_events(&self, to: *mut epoll_event, count: usize) -> usize {
        if !self.has_ready_fd.load(Ordering::Acquire) {
            return count;
        }
        let mut left = 0;
        for at in 0..count {
            // SAFETY: guaranteed by the caller; `left` is at most `at`.
            unsafe {
                let event = to.add(at).read_unaligned();
                if event.u64 != self.token() {
                    to.add(left).write_unaligned(event);
                    left += 1;
                }
            }
        }
        left
    }

    /// Updates the ready fds of this set and of the sets that are members of it.
    pub(super) fn sync_all_ready_fds(&self) {
        self.sync_ready_fd();
        self.sync_nested_ready_fds();
    }

    /// Updates the ready fds of the sets that are members of this one.
    pub(super) fn sync_nested_ready_fds(&self) {
        self.sync_nested_to_depth(MAX_NESTING);
    }

    fn sync_nested_to_depth(&self, depth: usize) {
        if depth == 0 || !self.has_tracked_members.load(Ordering::Relaxed) {
            return;
        }
        let nested: Vec<_> = self.members().nested.iter().filter_map(Weak::upgrade).collect();
        for object in nested {
            if let Entry::Epoll(set) = &*object {
                set.sync_ready_fd();
                set.sync_nested_to_depth(depth - 1);
            }
        }
    }
}
