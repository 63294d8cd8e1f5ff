//! Which connections a process takes that shares its listener with other processes.
//!
//! A server that forks its workers lets them all accept from one listener, and a connection goes to a worker that is free. The
//! datapath gives it to the process that has the queue on which it arrives, free or not. A worker with an event loop (nginx)
//! is always free. One with a single connection at a time (Apache's prefork, gunicorn's sync worker, PHP-FPM) is not: clients
//! would wait for it while other workers, which may not even have a queue, wait for clients.
//!
//! So a process has to show which kind it is. A listener that it has inherited begins with a credit of one connection:
//!
//! | event | credit |
//! | --- | --- |
//! | the first wait for the listener | 1 |
//! | a connection was accepted | 0 |
//! | the next wait, and the connection was closed | 1 |
//! | the next wait, and the connection is still open: the process has several at a time | unlimited, from now on |
//! | a child of the process waits for the listener ([`shared_listener`](super::shared_listener)) | 0, from now on |
//!
//! Connections beyond the credit go to the kernel's listener, which every process polls, after a few milliseconds
//! ([`TcpListener::set_limit`]); an event loop is back before that.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use abey_datapath::TcpListener;
use libc::c_int;

use super::fd_table::{self, Entry};
use super::socket::Socket;
use crate::errno;

/// Some listener of this process has a credit.
static ANY: AtomicBool = AtomicBool::new(false);

const UNLIMITED: u8 = 0;
const WAITS: u8 = 1;
const IS_BUSY: u8 = 2;
const NONE: u8 = 3;

/// The credit of a listener.
#[derive(Debug, Default)]
pub(crate) struct AcceptCredit {
    state: AtomicU8,
    /// The descriptor and the inode of the connection that was accepted last.
    last: Mutex<Option<(c_int, libc::ino_t)>>,
}

impl AcceptCredit {
    /// Gives the listener, which the process has inherited, a credit of one connection.
    pub(super) fn limit(&self, listener: &TcpListener) {
        self.state.store(WAITS, Ordering::Relaxed);
        ANY.store(true, Ordering::Relaxed);
        listener.set_limit(1);
    }

    /// Takes the listener's credit away, for good.
    pub(super) fn end(&self, listener: &TcpListener) {
        self.state.store(NONE, Ordering::Relaxed);
        listener.set_limit(0);
    }

    /// Records a connection that was accepted.
    pub(super) fn accepted(&self, listener: &TcpListener, fd: c_int) {
        if self.state.load(Ordering::Relaxed) != WAITS {
            return;
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = inode(fd).map(|inode| (fd, inode));
        self.state.store(IS_BUSY, Ordering::Relaxed);
        listener.set_limit(0);
    }

    fn begin_wait(&self, listener: &TcpListener) {
        if self.state.load(Ordering::Relaxed) != IS_BUSY {
            return;
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        let has_connection = last.is_some_and(|(fd, before)| inode(fd) == Some(before));
        let (state, limit) = if has_connection { (UNLIMITED, usize::MAX) } else { (WAITS, 1) };
        self.state.store(state, Ordering::Relaxed);
        listener.set_limit(limit);
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
