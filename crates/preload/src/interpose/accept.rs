//! Interposed `accept(2)` and `accept4(2)` on a listener that accepts both from the datapath and from the kernel.
//!
//! A connection of the datapath is accepted first; its only system call is the one that makes its descriptor. The kernel
//! socket is checked if there is none, and after every [`MAX_CONSECUTIVE`] connections of the datapath, so that neither
//! side starves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use abey_datapath::{IoError, Readiness, TcpListener, TcpStream};
use libc::{c_int, sockaddr, socklen_t};

use super::context::uninterposed;
use super::error_codes::{errno_of, fail};
use super::fd_table::{self, Entry};
use super::kernel_wait::ppoll;
use super::listen_state::ListenState;
use super::socket::Socket;
use super::{accept_credit, direct_epoll, listen, process, shared_listener, signals, socket_address, socket_wait};
use crate::timeout::to_timespec;
use crate::{errno, real};

/// Number of datapath connections that are accepted in a row before the kernel socket is checked.
const MAX_CONSECUTIVE: u32 = 64;

/// `accept(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn accept(fd: c_int, peer: *mut sockaddr, length: *mut socklen_t) -> c_int {
    signals::test_cancel();
    // SAFETY: the caller's guarantees are passed on.
    unsafe {
        while let Some(answer) = accept_datapath(fd, peer, length, 0) {
            if !signals::should_restart(answer < 0) {
                return answer;
            }
        }
        if process::is_child()
            && let Some(new) = shared_listener::accept(fd, peer, length, 0)
        {
            return new;
        }
        let new = real::ACCEPT.get()(fd, peer, length);
        fd_table::made(new);
        new
    }
}

/// `accept4(2)`.
///
/// # Safety
/// The same as for the C library's function.
// SAFETY: same signature and semantics as the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    peer: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    signals::test_cancel();
    // SAFETY: the caller's guarantees are passed on.
    unsafe {
        while let Some(answer) = accept_datapath(fd, peer, length, flags) {
            if !signals::should_restart(answer < 0) {
                return answer;
            }
        }
        if process::is_child()
            && let Some(new) = shared_listener::accept(fd, peer, length, flags)
        {
            return new;
        }
        let new = real::ACCEPT4.get()(fd, peer, length, flags);
        fd_table::made(new);
        new
    }
}

/// Accepts on a datapath listener. Returns `None` if `fd` is not one, and the kernel shall accept.
///
/// # Safety
/// The same as for `accept4`.
unsafe fn accept_datapath(fd: c_int, peer: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> Option<c_int> {
    fd_table::with_socket(fd, |socket| {
        let listening = socket.listening.get()?;
        if socket.role.get().is_none() && direct_epoll::before_open() {
            return None;
        }
        listen::open_deferred(socket, fd);
        let Some(listener) = socket.listener() else {
            // Only the kernel listens. Without a kernel socket that does, the call fails.
            return (!listening.has_kernel_side).then(|| fail(libc::EINVAL));
        };
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Some(fail(libc::EINVAL));
        }
        let accept = Accept { fd, socket, listening, listener, peer, length, flags };
        // SAFETY: the caller's guarantees are passed on.
        let accepted = unsafe { accept.run() };
        direct_epoll::socket_made();
        if let Ok(new) = accepted {
            direct_epoll::accepted(new);
        }
        Some(accepted.unwrap_or_else(fail))
    })
    .flatten()
}

/// The arguments of one call of `accept4`.
struct Accept<'a> {
    fd: c_int,
    socket: &'a Socket,
    listening: &'a ListenState,
    listener: &'a TcpListener,
    peer: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
}

impl Accept<'_> {
    /// Waits for a connection if the socket blocks. Returns the new descriptor, or an errno.
    ///
    /// # Safety
    /// The same as for `accept4`.
    unsafe fn run(&self) -> Result<c_int, c_int> {
        let attempt = || {
            if self.listening.is_shut_down.load(Ordering::Acquire) {
                return Ok(Err(libc::EINVAL));
            }
            // SAFETY: guaranteed by the caller.
            match unsafe { self.try_accept() } {
                Ok(new) => {
                    errno::preserve_errno(|| uninterposed(|| self.listening.credit.accepted(self.listener, new)));
                    Ok(Ok(new))
                }
                Err(libc::EAGAIN) => Err(IoError::WouldBlock.into()),
                done => Ok(done),
            }
        };
        if !self.socket.is_nonblocking() {
            accept_credit::begin_wait(self.socket);
        }
        let limit = self.socket.timeout(Readiness::READABLE);
        socket_wait::until_done(self.fd, self.socket, Readiness::READABLE, limit, attempt)
            .map_err(|error| errno_of(&error))?
    }

    /// Accepts from either side, without waiting.
    ///
    /// # Safety
    /// The same as for `accept4`.
    unsafe fn try_accept(&self) -> Result<c_int, c_int> {
        let kernel_first = self.listening.has_kernel_side
            && self.listening.balance.consecutive.load(Ordering::Relaxed) >= MAX_CONSECUTIVE;
        // SAFETY: guaranteed by the caller.
        unsafe {
            if kernel_first {
                match self.accept_from_kernel() {
                    Err(libc::EAGAIN) => {}
                    done => return done,
                }
            }
            match self.accept_from_datapath() {
                Err(libc::EAGAIN) if self.listening.has_kernel_side && !kernel_first => self.accept_from_kernel(),
                done => done,
            }
        }
    }

    /// Accepts a connection of the datapath.
    ///
    /// # Safety
    /// The same as for `accept4`.
    unsafe fn accept_from_datapath(&self) -> Result<c_int, c_int> {
        // The descriptor is made first, since a connection that was accepted and gets no descriptor would be lost. It is
        // made only if a connection is ready, since a server's accept loop ends with a call that finds none.
        if !self.socket.role.get().is_some_and(|role| role.readiness().contains(Readiness::READABLE)) {
            return Err(libc::EAGAIN);
        }
        let domain = if self.socket.is_v6 { libc::AF_INET6 } else { libc::AF_INET };
        // SAFETY: the call takes no pointers.
        let new = unsafe { real::SOCKET.get()(domain, libc::SOCK_STREAM | self.flags, 0) };
        if new < 0 {
            return Err(crate::errno::errno());
        }
        fd_table::made(new);
        let accepted = uninterposed(|| self.listener.try_accept()).map_err(|error| errno_of(&error));
        match accepted.and_then(|(stream, from)| self.insert(new, stream).map(|()| from)) {
            Ok(from) => {
                self.listening.balance.consecutive.fetch_add(1, Ordering::Relaxed);
                // SAFETY: guaranteed by the caller.
                unsafe { socket_address::write(from, self.socket.is_v6, self.peer, self.length) };
                Ok(new)
            }
            Err(number) => {
                // SAFETY: the call takes no pointers; no other thread has the descriptor yet.
                unsafe { real::CLOSE.get()(new) };
                Err(number)
            }
        }
    }

    fn insert(&self, new: c_int, stream: TcpStream) -> Result<(), c_int> {
        let connection = Socket::accepted(self.socket, new, stream, self.flags & libc::SOCK_NONBLOCK != 0);
        fd_table::insert(new, Arc::new(Entry::Socket(connection))).then_some(()).ok_or(libc::EMFILE)
    }

    /// Accepts a connection of the kernel, without waiting.
    ///
    /// # Safety
    /// The same as for `accept4`.
    unsafe fn accept_from_kernel(&self) -> Result<c_int, c_int> {
        self.listening.balance.consecutive.store(0, Ordering::Relaxed);
        let accept = || {
            // SAFETY: guaranteed by the caller.
            let new = unsafe { real::ACCEPT4.get()(self.fd, self.peer, self.length, self.flags) };
            fd_table::made(new);
            if new < 0 { Err(crate::errno::errno()) } else { Ok(new) }
        };
        if self.socket.is_nonblocking() {
            return accept();
        }
        // `accept4` has no flag for a single non-blocking call, so the socket itself is made non-blocking for the call, and
        // only if it is readable. Another process that shares the socket may get EAGAIN meanwhile, or accept first.
        let _one = self.listening.balance.accepting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut poll = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        // A direct system call is not a cancellation point.
        if !matches!(ppoll(std::slice::from_mut(&mut poll), Some(to_timespec(Duration::ZERO)), None), Ok(1..)) {
            return Err(libc::EAGAIN);
        }
        let flags = status_flags(self.fd)?;
        set_status_flags(self.fd, flags | libc::O_NONBLOCK);
        let accepted = accept();
        set_status_flags(self.fd, flags);
        accepted
    }
}

fn status_flags(fd: c_int) -> Result<c_int, c_int> {
    // SAFETY: the call takes no pointers.
    let flags = unsafe { real::FCNTL.get()(fd, libc::F_GETFL, 0) };
    if flags < 0 { Err(crate::errno::errno()) } else { Ok(flags) }
}

fn set_status_flags(fd: c_int, flags: c_int) {
    // SAFETY: the call takes no pointers.
    errno::preserve_errno(|| unsafe { real::FCNTL.get()(fd, libc::F_SETFL, flags as libc::c_ulong) });
}
