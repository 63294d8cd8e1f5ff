//! Parking a thread on a descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::park_state::ParkState;

/// An eventfd for a thread that begins to wait when the process has no descriptor left. The first parkers, those of the
/// runtime, have made it.
static SPARE: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// Returns an eventfd, which is the spare one if no other can be made.
fn new_event() -> io::Result<OwnedFd> {
    let new = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let event = match new() {
        Ok(event) => event,
        Err(error) => return spare.take().ok_or(error.into()),
    };
    if spare.is_none() {
        *spare = new().ok();
    }
    Ok(event)
}

/// A [`ParkState`] with an eventfd that wakes its thread.
#[derive(Debug)]
pub(crate) struct Parker {
    state: ParkState,
    event: OwnedFd,
}

impl Parker {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { state: ParkState::new(), event: new_event()? })
    }

    /// Announces that the thread is about to sleep on the descriptor. Returns `false` if it must not ([`ParkState::park`]).
    pub(crate) fn park(&self) -> bool {
        self.state.park()
    }

    /// Marks the thread as running, and clears the descriptor if it is `readable`. Returns the number of system calls.
    pub(crate) fn finish(&self, readable: bool) -> u64 {
        self.state.finish();
        if !readable {
            return 0;
        }
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        1
    }

    /// Clears a stored notification. Returns whether there was one since [`Self::finish`].
    ///
    /// The caller must afterwards check every condition for which the thread may have been notified.
    pub(crate) fn take_notification(&self) -> bool {
        self.state.finish()
    }

    /// Notifies the thread, and wakes it if it sleeps. Returns the number of system calls.
    pub(crate) fn unpark(&self) -> u64 {
        if !self.state.unpark() {
            return 0;
        }
        // EAGAIN means that the counter is at its maximum. Then the descriptor is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        1
    }
}

impl AsFd for Parker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
