//! Which connections a forked child may still have: those that were there when it was forked, as long as it lives.
//!
//! A lifeline is a pipe that is made before a fork. The child and its own children keep the end that writes, and the parent
//! the one that reads: a hang-up says that all of them have ended, or execute another program. No process ID is watched, since
//! a child that ends may leave children that have the same descriptors.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::{c_int, pollfd};

use super::fd_table::{self, Entry};
use super::kernel_wait::ppoll;
use super::{process, runtime_fds};
use crate::errno;
use crate::timeout::to_timespec;

/// The most lifelines. Of more children that live at the same time, none is watched, and all count as alive.
const MAX_LIFELINES: usize = 256;

/// Number of forks in this process while it had connections.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The state between two forks.
#[derive(Debug)]
struct Lifelines {
    /// The reading ends, and the number of the fork.
    alive: Vec<(u64, OwnedFd)>,
    /// The latest fork that is not watched.
    unwatched: u64,
    /// The pipe of the fork that is happening: reads, writes.
    now: Option<(OwnedFd, OwnedFd)>,
}

/// The end that the next child keeps, or that this child has; -1 for none.
static IN_CHILD: AtomicI32 = AtomicI32::new(-1);

static LIFELINES: Mutex<Lifelines> = Mutex::new(Lifelines { alive: Vec::new(), unwatched: 0, now: None });

fn lifelines() -> MutexGuard<'static, Lifelines> {
    LIFELINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of forks so far. A connection that begins now was inherited by none of them.
pub(super) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Returns whether a child that was forked after the first `forks` forks may be alive.
pub(super) fn is_shared(forks: u64) -> bool {
    if FORKS.load(Ordering::Relaxed) == forks {
        return false;
    }
    errno::preserve_errno(|| {
        let mut lifelines = lifelines();
        lifelines.forget_dead();
        lifelines.unwatched > forks || lifelines.alive.iter().any(|(fork, _)| *fork > forks)
    })
}

/// Makes a lifeline, before a fork. Only a process that has connections or UDP sockets does.
pub(super) extern "C" fn before_fork() {
    let is_handed_over = |object: &Entry| matches!(object, Entry::Socket(socket) if socket.stream().is_some() || socket.datagram().is_some());
    if process::is_child() || fd_table::count(is_handed_over) == 0 {
        return;
    }
    errno::preserve_errno(|| {
        let mut lifelines = lifelines();
        lifelines.forget_dead();
        let fork = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
        // Two threads may fork at the same time.
        let is_first = lifelines.now.is_none();
        if is_first && lifelines.alive.len() < MAX_LIFELINES {
            lifelines.now = runtime_fds::pipe();
        }
        if !is_first || lifelines.now.is_none() {
            lifelines.unwatched = fork;
        }
        IN_CHILD.store(lifelines.now.as_ref().map_or(-1, |(_, writes)| writes.as_raw_fd()), Ordering::Relaxed);
    });
}

pub(super) extern "C" fn after_fork_in_parent() {
    if process::is_child() {
        return;
    }
    errno::preserve_errno(|| {
        let mut lifelines = lifelines();
        IN_CHILD.store(-1, Ordering::Relaxed);
        if let Some((reads, writes)) = lifelines.now.take() {
            runtime_fds::forget(writes.as_raw_fd());
            drop(writes);
            lifelines.alive.push((FORKS.load(Ordering::Relaxed), reads));
        }
    });
}

/// Returns the end that a forked child keeps until it ends; -1 if it has none. Takes no lock.
pub(super) fn in_child() -> c_int {
    IN_CHILD.load(Ordering::Relaxed)
}

impl Lifelines {
    fn forget_dead(&mut self) {
        self.alive.retain(|(_, reads)| {
            let mut poll = [pollfd { fd: reads.as_raw_fd(), events: 0, revents: 0 }];
            let is_alive = !matches!(ppoll(&mut poll, Some(to_timespec(Duration::ZERO)), None), Ok(1..));
            if !is_alive {
                runtime_fds::forget(reads.as_raw_fd());
            }
            is_alive
        });
    }
}
