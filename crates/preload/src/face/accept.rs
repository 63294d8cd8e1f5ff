//! Accepting from both sides of a listener.
//!
//! A connection of ours is taken first, without a system call but the one that makes its descriptor. The kernel's side is
//! looked at when there is none, and after every [`OURS_IN_A_ROW`] of ours, so that neither starves.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use abey_datapath::{IoError, Readiness, TcpListener, TcpStream};
use libc::{c_int, sockaddr, socklen_t};

use super::errno::{fail, of};
use super::listen::Listening;
use super::socket::Socket;
use super::table::{self, Object};
use super::{address, inside, watch};
use crate::{real, state};

/// How many connections of ours are accepted in a row before the kernel's side is looked at.
const OURS_IN_A_ROW: u32 = 64;

/// Whose turn it is at a listener, and who waits there.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    in_a_row: AtomicU32,
    /// One thread at a time accepts from a kernel's socket that would block.
    accepting: Mutex<()>,
}

/// `accept4(2)` at a listener of ours. `None`: the kernel's.
///
/// # Safety
/// As of `accept4`.
pub(crate) unsafe fn accept(fd: c_int, peer: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> Option<c_int> {
    table::with_socket(fd, |socket| {
        let listening = socket.listening.get()?;
        socket.prepare(fd);
        let Some(listener) = socket.listener() else {
            // The kernel's alone; without one there either nobody listens.
            return (!listening.has_kernel_side).then(|| fail(libc::EINVAL));
        };
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Some(fail(libc::EINVAL));
        }
        let accept = Accept { fd, socket, listening, listener, peer, length, flags };
        // SAFETY: the caller's promises are passed on.
        let accepted = unsafe { accept.run() };
        Some(accepted.unwrap_or_else(fail))
    })
    .flatten()
}

/// A call of `accept4`.
struct Accept<'a> {
    fd: c_int,
    socket: &'a Socket,
    listening: &'a Listening,
    listener: &'a TcpListener,
    peer: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
}

impl Accept<'_> {
    /// The new descriptor, or errno.
    ///
    /// # Safety
    /// As of `accept4`.
    unsafe fn run(&self) -> Result<c_int, c_int> {
        let attempt = || {
            if self.listening.is_shut.load(Ordering::Acquire) {
                return Ok(Err(libc::EINVAL));
            }
            // SAFETY: the caller's promises.
            match unsafe { self.once() } {
                Err(libc::EAGAIN) => Err(IoError::WouldBlock.into()),
                done => Ok(done),
            }
        };
        let limit = self.socket.limit(Readiness::READABLE);
        watch::until_done(self.fd, self.socket, Readiness::READABLE, limit, attempt).map_err(|error| of(&error))?
    }

    /// Takes what is there on either side.
    ///
    /// # Safety
    /// As of `accept4`.
    unsafe fn once(&self) -> Result<c_int, c_int> {
        let kernel_first =
            self.listening.has_kernel_side && self.listening.turns.in_a_row.load(Ordering::Relaxed) >= OURS_IN_A_ROW;
        // SAFETY: the caller's promises.
        unsafe {
            if kernel_first {
                match self.take_kernels() {
                    Err(libc::EAGAIN) => {}
                    done => return done,
                }
            }
            match self.take_ours() {
                Err(libc::EAGAIN) if self.listening.has_kernel_side && !kernel_first => self.take_kernels(),
                done => done,
            }
        }
    }

    /// # Safety
    /// As of `accept4`.
    unsafe fn take_ours(&self) -> Result<c_int, c_int> {
        // The descriptor comes first: a connection that was accepted and then has none would be lost. It is made only if
        // there is one to accept, since a server's loop ends with a call that finds none.
        if !self.socket.role.get().is_some_and(|role| role.readiness().contains(Readiness::READABLE)) {
            return Err(libc::EAGAIN);
        }
        let domain = if self.socket.is_v6 { libc::AF_INET6 } else { libc::AF_INET };
        // SAFETY: takes no pointers.
        let new = unsafe { real::SOCKET.get()(domain, libc::SOCK_STREAM | self.flags, 0) };
        if new < 0 {
            return Err(crate::wait::errno());
        }
        table::forget(new);
        let accepted = inside(|| self.listener.try_accept()).map_err(|error| of(&error));
        match accepted.and_then(|(stream, from)| self.keep(new, stream).map(|()| from)) {
            Ok(from) => {
                self.listening.turns.in_a_row.fetch_add(1, Ordering::Relaxed);
                // SAFETY: the caller's promises.
                unsafe { address::write(from, self.socket.is_v6, self.peer, self.length) };
                Ok(new)
            }
            Err(number) => {
                // SAFETY: takes no pointers; nobody else has the descriptor yet.
                unsafe { real::CLOSE.get()(new) };
                Err(number)
            }
        }
    }

    fn keep(&self, new: c_int, stream: TcpStream) -> Result<(), c_int> {
        let connection = Socket::accepted(self.socket, new, stream, self.flags & libc::SOCK_NONBLOCK != 0);
        table::put(new, Arc::new(Object::Socket(connection))).then_some(()).ok_or(libc::EMFILE)
    }

    /// # Safety
    /// As of `accept4`.
    unsafe fn take_kernels(&self) -> Result<c_int, c_int> {
        self.listening.turns.in_a_row.store(0, Ordering::Relaxed);
        let accept = || {
            // SAFETY: the caller's promises.
            let new = unsafe { real::ACCEPT4.get()(self.fd, self.peer, self.length, self.flags) };
            table::forget(new);
            if new < 0 { Err(crate::wait::errno()) } else { Ok(new) }
        };
        if self.socket.is_nonblocking() {
            return accept();
        }
        // A call cannot say that it will not wait, so the socket has to: only while this process looks, and only if there
        // is something. Another process that has the socket too may be told EAGAIN meanwhile, and may have been faster.
        let _one = self.listening.turns.accepting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut look = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, that lives through the call. The system call itself, which cancels no thread.
        if unsafe { libc::syscall(libc::SYS_poll, &raw mut look, 1, 0) } <= 0 {
            return Err(libc::EAGAIN);
        }
        let flags = state_flags(self.fd)?;
        set_state_flags(self.fd, flags | libc::O_NONBLOCK);
        let accepted = accept();
        set_state_flags(self.fd, flags);
        accepted
    }
}

fn state_flags(fd: c_int) -> Result<c_int, c_int> {
    // SAFETY: takes no pointers.
    let flags = unsafe { real::FCNTL.get()(fd, libc::F_GETFL, 0) };
    if flags < 0 { Err(crate::wait::errno()) } else { Ok(flags) }
}

fn set_state_flags(fd: c_int, flags: c_int) {
    // SAFETY: takes no pointers.
    state::keep_errno(|| unsafe { real::FCNTL.get()(fd, libc::F_SETFL, flags as libc::c_ulong) });
}
