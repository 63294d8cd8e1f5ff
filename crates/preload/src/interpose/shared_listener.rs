//! A listener that a forked child has inherited from a process in which the datapath listens as well.
//!
//! The kernel's socket underneath listens, and both processes have it. When the child waits for the listener for the first time,
//! its parent stops to accept new connections in the datapath, so that they go to the kernel. Those that wait in the datapath
//! already stay there, for whichever process is first: the child asks the parent for one at a time, and gets it in a kernel
//! socket. An eventfd of the parent's, which is readable while there are any, is waited for beside the listener.
//!
//! A program that the child executes does not know of it. A listener at its standard input (inetd) is left to the kernel with the
//! connections that wait in the datapath; those that the kernel cannot take are reset.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use libc::{c_int, epoll_event, pollfd, sigset_t, sockaddr, socklen_t};

use super::context::uninterposed;
use super::error_codes::fail;
use super::handover::{self, Reason};
use super::inherited::{self, Kind};
use super::kernel_wait::ppoll;
use super::signals;
use super::socket_options::{SocketOptions, int};
use crate::timeout::{Timeout, to_timespec};
use crate::{errno, real};

/// A listener of the parent's.
#[derive(Debug)]
struct SharedListener {
    /// Its name in the parent.
    object: u64,
    /// Readable while connections wait in the parent. `None` if the parent has no datapath listener.
    waiting: OnceLock<Option<OwnedFd>>,
}

/// The inherited listeners, by descriptor.
static SHARED: Mutex<Vec<(c_int, Arc<SharedListener>)>> = Mutex::new(Vec::new());
/// Whether there may be any.
static ANY: AtomicBool = AtomicBool::new(false);

/// Records that `fd` is the parent's listener `object`.
pub(super) fn record(fd: c_int, object: u64) {
    let shared = SharedListener { object, waiting: OnceLock::new() };
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).push((fd, Arc::new(shared)));
    ANY.store(true, Ordering::Relaxed);
}

/// Forgets a descriptor that is closed, or new.
pub(super) fn forget(fd: c_int) {
    if ANY.load(Ordering::Relaxed) {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let (gone, left) = std::mem::take(&mut *shared).into_iter().partition(|(at, _)| *at == fd);
        *shared = left;
        drop(shared);
        uninterposed(|| drop::<Vec<_>>(gone));
    }
}

/// Records that `new` is a duplicate of `fd`.
pub(super) fn duplicate(fd: c_int, new: c_int) {
    if let Some(listener) = find(fd) {
        SHARED.lock().unwrap_or_else(PoisonError::into_inner).push((new, listener));
    }
}

/// Forgets all.
pub(super) fn forget_all() {
    ANY.store(false, Ordering::Relaxed);
}

fn find(fd: c_int) -> Option<Arc<SharedListener>> {
    if !ANY.load(Ordering::Relaxed) {
        return None;
    }
    let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.iter().find(|(at, _)| *at == fd).map(|(_, listener)| listener.clone())
}

/// Makes an inherited listener the kernel's alone, before the program at whose standard stream it is is executed.
pub(super) fn leave(fd: c_int) {
    if let Some(listener) = find(fd) {
        // SAFETY: open, since it was recorded.
        let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
        // A parent that has ended has no listener.
        let _ = errno::preserve_errno(|| uninterposed(|| inherited::ask(Kind::Leave, listener.object, descriptor)));
    }
}

impl SharedListener {
    /// Returns the eventfd. The first call makes the parent leave new connections to the kernel.
    fn waiting(&self, fd: c_int) -> Option<c_int> {
        let waiting = self.waiting.get_or_init(|| {
            errno::preserve_errno(|| {
                // SAFETY: open for the rest of the program's call, which names it.
                let listener = unsafe { BorrowedFd::borrow_raw(fd) };
                let event = uninterposed(|| inherited::ask(Kind::Listener, self.object, listener)).ok()??;
                Reason::Child.report();
                Some(event)
            })
        });
        waiting.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Takes a connection that waits in the parent. Returns its descriptor.
    fn take(&self, fd: c_int, flags: c_int) -> io::Result<c_int> {
        let domain = int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(libc::AF_INET);
        // SAFETY: the call takes no pointers.
        let new = unsafe { real::SOCKET.get()(domain, libc::SOCK_STREAM | flags, 0) };
        if new < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor, which stays open.
        let socket = unsafe { BorrowedFd::borrow_raw(new) };
        match inherited::ask(Kind::Accept, self.object, socket) {
            Ok(None) => Ok(new),
            Ok(Some(end)) => {
                handover::replace(new, &end);
                Ok(new)
            }
            Err(error) => {
                // SAFETY: the call takes no pointers; no other thread has the descriptor.
                unsafe { real::CLOSE.get()(new) };
                Err(error)
            }
        }
    }
}

fn is_readable(fd: c_int) -> bool {
    let mut poll = [pollfd { fd, events: libc::POLLIN, revents: 0 }];
    matches!(ppoll(&mut poll, Some(to_timespec(Duration::ZERO)), None), Ok(1..))
}

/// Accepts a connection that waits in the parent, as `accept4(2)`. Returns `None` if the kernel shall accept: a connection waits
/// there, or none and the listener is non-blocking.
///
/// # Safety
/// The same as for `accept4`.
pub(super) unsafe fn accept(fd: c_int, peer: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> Option<c_int> {
    let listener = find(fd)?;
    let waiting = listener.waiting(fd)?;
    // SAFETY: the call takes no pointers.
    let is_nonblocking = unsafe { real::FCNTL.get()(fd, libc::F_GETFL, 0) } & libc::O_NONBLOCK != 0;
    let timeout = Timeout::new(SocketOptions::from_kernel_socket(fd).read_timeout);
    loop {
        if is_readable(waiting) {
            match errno::preserve_errno(|| uninterposed(|| listener.take(fd, flags))) {
                Ok(new) => {
                    if !peer.is_null() {
                        // SAFETY: guaranteed by the caller.
                        errno::preserve_errno(|| unsafe { real::GETPEERNAME.get()(new, peer, length) });
                    }
                    return Some(new);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    // The parent has ended.
                    forget(fd);
                    return None;
                }
            }
        }
        if is_nonblocking {
            return None;
        }
        let poll = |fd| pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [poll(fd), poll(waiting)];
        match ppoll(&mut both, timeout.remaining().map(to_timespec), None) {
            Ok(0) => return Some(fail(libc::EAGAIN)),
            Ok(_) if both[0].revents != 0 => return None,
            Err(libc::EINTR) if signals::fails_with_eintr() => return Some(fail(libc::EINTR)),
            Err(number) if number != libc::EINTR => return Some(fail(number)),
            _ => {}
        }
    }
}

/// Polls as `ppoll(2)`. Returns `None` if no descriptor is an inherited listener.
pub(super) fn poll(
    descriptors: &mut [pollfd],
    timeout: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Option<Result<usize, c_int>> {
    let waiting = |at: &pollfd| find(at.fd)?.waiting(at.fd);
    let beside: Vec<_> =
        descriptors.iter().enumerate().filter_map(|(at, one)| Some((at, waiting(one)?, one.events))).collect();
    if beside.is_empty() {
        return None;
    }
    let mut all = descriptors.to_vec();
    all.extend(beside.iter().map(|(_, fd, events)| pollfd { fd: *fd, events: events & libc::POLLIN, revents: 0 }));
    let answer = ppoll(&mut all, timeout.map(to_timespec), mask);
    let (own, events) = all.split_at(descriptors.len());
    descriptors.copy_from_slice(own);
    for ((at, ..), event) in beside.iter().zip(events) {
        descriptors[*at].revents |= event.revents;
    }
    Some(answer.map(|_| descriptors.iter().filter(|one| one.revents != 0).count()))
}

/// Does for the eventfd what the program has done for the listener.
///
/// # Safety
/// The same as for `epoll_ctl`.
pub(super) unsafe fn mirror_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) {
    if let Some(listener) = find(fd)
        && let Some(waiting) = listener.waiting(fd)
    {
        // SAFETY: guaranteed by the caller. For a duplicate it fails: its event is reported with that of the first.
        errno::preserve_errno(|| unsafe { real::EPOLL_CTL.get()(epfd, op, waiting, event) });
    }
}
