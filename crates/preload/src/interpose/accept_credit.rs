//! Which connections a process takes that shares its listener with other processes.
//!
//! A server that forks its workers lets them all accept from one listener, and a connection goes to a worker that is free. The
//! datapath gives it to the process that has the queue on which it arrives, free or not. A worker with an event loop (nginx)
//! is always free. One with a single connection at a time (Apache's prefork, gunicorn's sync worker, PHP-FPM) is not: clients
//! would wait for it while other workers, which may not even have a queue, wait for clients.
//!
//! The kernel's listener is the queue that all of them share, and what a process has no time for goes there: SYNs, and also
//! connections that are established already ([`TcpListener::set_overflow`]). Any process then accepts them, with the peer's
//! name and with what the peer has sent; its `accept`, `poll` and `epoll` wait for that listener anyway. So no connection
//! waits for a certain process. What remains is to give a process the connections that it will take at once, since one that
//! goes through the kernel is not accelerated. A process has to show how many that are. A listener that it has inherited begins
//! with a credit of one connection:
//!
//! | event | credit | accept timeout |
//! | --- | --- | --- |
//! | the first wait for the listener | 1 | 100 ms |
//! | a connection was accepted, from either side | 0 | 5 ms |
//! | the next wait, and the connection was closed | 1 | 100 ms |
//! | the next wait, and the connection is still open: the process has several at a time | unlimited, from now on | 100 ms |
//! | a child of the process waits for the listener ([`shared_listener`](super::shared_listener)) | 0, from now on | 5 ms |
//!
//! Connections beyond the credit go to the kernel's listener after a few milliseconds; an event loop is back before that. An
//! established one does when it was not accepted within the timeout. That covers the race of a process that accepts from the
//! kernel while another client has its handshake with the datapath, and a process that all its connections keep busy. New
//! connections go to the kernel as well then, until the process waits for the listener again.
//!
//! The process that has called `listen` may be one of several too: its credit is unlimited, but it has the timeout. That is so if
//! it forked before its first `accept`, or if a child executes a program that inherits the listener: that may have no
//! libabey.so, which would speak for it. A parent that accepts in time notices nothing.
//!
//! *The end of a process.* A process that closes its listener, exits or executes another program leaves what it has not accepted
//! to the others ([`leave_all`]). One that is killed cannot; the kernel resets these, as it
//! resets the accepted ones.
//!
//! *Kernels before Linux 6.9*, or with `net.ipv4.tcp_syncookies` 0, take SYNs, but no established connections. There a process
//! has no credit at all until it has shown, by connections of the kernel, that it has several at a time.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use abey_datapath::{Overflow, TcpListener};
use libc::c_int;

use super::fd_table::{self, Entry};
use super::listen_state::ListenState;
use super::process;
use super::socket::{Role, Socket};
use crate::errno;

/// Some listener of this process has a credit.
static ANY: AtomicBool = AtomicBool::new(false);

const UNLIMITED: u8 = 0;
const WAITS: u8 = 1;
const IS_BUSY: u8 = 2;
const NONE: u8 = 3;

/// How long a connection waits for a process that has shown to be busy.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5);
/// How long a connection waits for any other process.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(100);

/// The credit of a listener.
#[derive(Debug, Default)]
pub(crate) struct AcceptCredit {
    state: AtomicU8,
    /// Other processes may have the listener.
    has_begun: AtomicBool,
    /// Connections go to the kernel's listener after the timeout.
    has_timeout: AtomicBool,
    /// The descriptor and the inode of the connection that was accepted last.
    last: Mutex<Option<(c_int, libc::ino_t)>>,
}

impl AcceptCredit {
    /// Gives the listener, which the process has inherited, a credit of one connection.
    pub(super) fn limit(&self, listener: &TcpListener) {
        self.begin(WAITS, listener);
    }

    /// Gives the listener, which other processes may have inherited, an accept timeout, unless it has a credit already.
    pub(super) fn share(&self, listener: &TcpListener) {
        if !self.has_begun.load(Ordering::Relaxed) {
            self.begin(UNLIMITED, listener);
        }
    }

    fn begin(&self, state: u8, listener: &TcpListener) {
        self.has_begun.store(true, Ordering::Relaxed);
        self.has_timeout.store(listener.can_leave_connections(), Ordering::Relaxed);
        ANY.store(true, Ordering::Relaxed);
        self.enter(state, listener);
    }

    fn enter(&self, state: u8, listener: &TcpListener) {
        self.state.store(state, Ordering::Relaxed);
        let has_timeout = self.has_timeout.load(Ordering::Relaxed);
        let (limit, accept_timeout) = match state {
            UNLIMITED => (usize::MAX, ACCEPT_TIMEOUT),
            // Without the timeout, the connection could wait for a process that accepts from the kernel meanwhile.
            WAITS => (usize::from(has_timeout), ACCEPT_TIMEOUT),
            _ => (0, BUSY_TIMEOUT),
        };
        listener.set_overflow(Overflow { limit, accept_timeout: has_timeout.then_some(accept_timeout) });
    }

    /// Takes the listener's credit away, for good.
    pub(super) fn end(&self, listener: &TcpListener) {
        self.begin(NONE, listener);
    }

    /// Records a connection that was accepted.
    pub(super) fn accepted(&self, listener: &TcpListener, fd: c_int) {
        if !matches!(self.state.load(Ordering::Relaxed), WAITS | IS_BUSY) {
            return;
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = inode(fd).map(|inode| (fd, inode));
        self.enter(IS_BUSY, listener);
    }

    fn begin_wait(&self, listener: &TcpListener) {
        let state = self.state.load(Ordering::Relaxed);
        if state != IS_BUSY {
            if state != NONE && listener.is_paused() {
                self.enter(state, listener);
            }
            return;
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        let has_connection = last.is_some_and(|(fd, before)| inode(fd) == Some(before));
        self.enter(if has_connection { UNLIMITED } else { WAITS }, listener);
    }
}

/// Gives the open listeners that a new child may have an accept timeout.
pub(super) fn share_all(has_child: impl Fn(c_int) -> bool) {
    if !process::is_table_active() {
        return;
    }
    errno::preserve_errno(|| {
        for (fd, object) in fd_table::find(|object| open_listener(object).is_some()) {
            if let Some((listening, listener)) = open_listener(&object)
                && has_child(fd)
            {
                super::context::uninterposed(|| listening.credit.share(listener));
            }
        }
    });
}

/// Returns an open listener that the kernel has as well.
fn open_listener(object: &Entry) -> Option<(&ListenState, &TcpListener)> {
    let Entry::Socket(socket) = object else { return None };
    let listening = socket.listening.get().filter(|listening| listening.has_kernel_side)?;
    Some((listening, socket.listener()?))
}

/// Leaves the connections of a listener that were not accepted to the kernel's listener.
fn leave(listener: &TcpListener, process_ends: bool) {
    // If the listener lives on, the next wait resumes it.
    ANY.store(true, Ordering::Relaxed);
    listener.leave_unaccepted(process_ends);
}

/// Leaves what this process has not accepted to others, before it ends.
pub(super) fn leave_all() {
    // A forked child has a copy of the table.
    if !process::is_table_active() {
        return;
    }
    let is_listener = |object: &Entry| matches!(object, Entry::Socket(socket) if socket.listener().is_some());
    for (_, object) in fd_table::find(is_listener) {
        if let Entry::Socket(socket) = &*object
            && let Some(listener) = socket.listener()
        {
            errno::preserve_errno(|| super::context::uninterposed(|| leave(listener, true)));
        }
    }
}

/// Leaves what a listener has not accepted to others, before the program closes its last descriptor here.
pub(super) fn before_close(object: &Arc<Entry>) {
    if let Entry::Socket(socket) = &**object
        && let Some(Role::Listener(listener)) = socket.role.get()
        // Members of a SO_REUSEPORT group share one.
        && Arc::strong_count(listener) == 1
        && !process::is_vforked()
        && fd_table::descriptors_of(object).len() == 1
    {
        errno::preserve_errno(|| super::context::uninterposed(|| leave(listener, false)));
    }
}

/// Restores the credit of a listener for which a wait begins.
#[inline]
pub(super) fn begin_wait(socket: &Socket) {
    if ANY.load(Ordering::Relaxed)
        && let (Some(listening), Some(listener)) = (socket.listening.get(), socket.listener())
    {
        errno::preserve_errno(|| super::context::uninterposed(|| listening.credit.begin_wait(listener)));
    }
}

/// Restores the credit of the listeners among descriptors.
pub(super) fn begin_wait_for(descriptors: impl FnOnce() -> Vec<c_int>) {
    if ANY.load(Ordering::Relaxed) {
        for object in descriptors().into_iter().filter_map(fd_table::entry) {
            if let Entry::Socket(socket) = &*object {
                begin_wait(socket);
            }
        }
    }
}

fn inode(fd: c_int) -> Option<libc::ino_t> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is written by the call, and read only when it succeeded.
    unsafe { (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| stat.assume_init().st_ino) }
}
