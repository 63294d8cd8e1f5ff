//! What a thread of the runtime, or an application's thread inside a call, sleeps with.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::parking::Parking;

/// A [`Parking`] with an eventfd that wakes its thread.
#[derive(Debug)]
pub(crate) struct Sleeper {
    parking: Parking,
    event: OwnedFd,
}

impl Sleeper {
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { parking: Parking::new(), event })
    }

    /// See [`Parking::begin`].
    pub(crate) fn begin(&self) -> bool {
        self.parking.begin()
    }

    /// The thread is awake, and its descriptor is `readable`; how many system calls clearing that took.
    pub(crate) fn end(&self, readable: bool) -> u64 {
        self.parking.end();
        if !readable {
            return 0;
        }
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        1
    }

    /// The thread is awake and is going to look at everything that it may have been woken for: whether it was, since
    /// [`Self::end`].
    pub(crate) fn forget(&self) -> bool {
        self.parking.end()
    }

    /// Wakes the thread; how many system calls that took.
    pub(crate) fn wake(&self) -> u64 {
        if !self.parking.wake() {
            return 0;
        }
        // Would-block means that the counter is full: then it is readable anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        1
    }
}

impl AsFd for Sleeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
