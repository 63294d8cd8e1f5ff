//! The bell of an epoll set with sockets of ours, for those who wait for it in the kernel alone.
//!
//! An epoll that has this one as a member, `poll` on its descriptor, and a thread that was waiting already when the first
//! socket of ours came, sleep where the datapath does not reach. For them the set gets a *bell*: an eventfd among its
//! members in the kernel, which rings while ours may have something. Its event is never told to the program. Whether it
//! rings for a reason is checked before each wait that it may end, since a socket that was emptied meanwhile is
//! noticed only when it is looked at.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::Ordering;

use abey_datapath::Epoll;
use libc::{c_int, epoll_event};

use super::epoll::Set;
use super::members::Kept;
use super::table::Object;
use crate::real;

/// How deep the kernel lets epolls be within each other (`epoll_ctl(2)`, ELOOP).
const DEPTH: usize = 5;

impl Set {
    /// Somebody waits for this set's descriptor in the kernel: sees to it that it is readable when ours are ready.
    pub(super) fn want_bell(&self, epfd: c_int) {
        if self.has_bell.load(Ordering::Acquire) {
            return;
        }
        let mut kept = self.kept();
        kept.wants_bell = true;
        if let Some(ours) = self.ours() {
            self.hang_bell(epfd, ours, &mut kept);
        }
    }

    pub(super) fn hang_bell(&self, epfd: c_int, ours: &Epoll, _kept: &mut Kept) {
        if self.has_bell.load(Ordering::Acquire) {
            return;
        }
        crate::state::keep_errno(|| {
            // SAFETY: takes no pointers.
            let made = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if made < 0 {
                return;
            }
            // SAFETY: new, and nobody else's.
            let bell = unsafe { OwnedFd::from_raw_fd(made) };
            let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: self.token() };
            // SAFETY: the event lives through the call.
            if unsafe { real::EPOLL_CTL.get()(epfd, libc::EPOLL_CTL_ADD, bell.as_raw_fd(), &raw mut event) } == 0 {
                self.has_bell.store(true, Ordering::Release);
                ours.set_bell(Some(bell));
            }
        });
    }

    /// What the bell's events are known by: no descriptor, and no address of the program's.
    pub(super) fn token(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Makes the bell, if there is one, say what is so.
    pub(super) fn settle_bell(&self) {
        if self.has_bell.load(Ordering::Acquire)
            && let Some(ours) = self.ours()
        {
            ours.settle_bell();
        }
    }

    /// Takes the bell's event out of `count` events. How many are left.
    pub(super) unsafe fn without_bell(&self, to: *mut epoll_event, count: usize) -> usize {
        if !self.has_bell.load(Ordering::Acquire) {
            return count;
        }
        let mut left = 0;
        for at in 0..count {
            // SAFETY: the caller's promise; `left` is not after `at`.
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

    /// Makes the bells of this set, and of those in it, say what is so.
    pub(super) fn settle(&self) {
        self.settle_bell();
        self.settle_nested();
    }

    /// Makes the bells of the sets in it say what is so.
    pub(super) fn settle_nested(&self) {
        self.settle_below(DEPTH);
    }

    fn settle_below(&self, depth: usize) {
        if depth == 0 || !self.has_kept.load(Ordering::Relaxed) {
            return;
        }
        let nested: Vec<_> = self.kept().nested.iter().filter_map(Weak::upgrade).collect();
        for object in nested {
            if let Object::Epoll(set) = &*object {
                set.settle_bell();
                set.settle_below(depth - 1);
            }
        }
    }
}
