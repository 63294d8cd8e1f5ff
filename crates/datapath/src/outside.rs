//! What a thread that waits for sockets of a runtime waits for besides: descriptors of the kernel, and signals.
//!
//! The system call that a wait sleeps in belongs to whoever knows what else there is to wait for. So a sleep on both sides
//! is one call, with the program's mask for signals in it where it has one (`ppoll(2)`), and a signal cannot come between.

use std::sync::Arc;

use rustix::event::{PollFd, Timespec};

use crate::error::SystemError;
use crate::local::Local;
use crate::sleeper::Sleeper;

/// See the module.
pub trait Outside {
    /// Waits until one of `own`, or something of its own, is ready, for at most `timeout` (`None`: without end; zero: only
    /// looks). Fills in the `revents` of `own`. Whether something of its own is ready.
    ///
    /// # Errors
    /// [`Errno::INTR`](rustix::io::Errno::INTR): a signal came, and its handler has run. Any other is as if nothing were
    /// ready.
    fn poll(&self, own: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> rustix::io::Result<bool>;

    /// The wait is going to spin: from here to its end signals are to be let through in [`Self::poll`] only, since nobody
    /// would tell the wait of one whose handler ran between two of them.
    fn hold_signals(&self);
}

/// What ended a wait with an [`Outside`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// There are events, or a socket is ready.
    Events,
    /// The time is over, or somebody woke the wait.
    TimedOut,
    /// Something outside is ready.
    Outside,
    /// A signal came.
    Signal,
}

/// Ends the sleep of one thread's wait, from any other thread.
///
/// A wait asks its [`Outside`] before it sleeps, so whoever changes the answer first and then [wakes](Self::wake) is sure
/// that the thread finds it, whether it was asleep or on the way there.
#[derive(Clone, Debug)]
pub struct ThreadWaker(Arc<Sleeper>);

impl ThreadWaker {
    /// Of the calling thread, for all its waits.
    ///
    /// # Errors
    /// There is no descriptor left to sleep on.
    pub fn of_this_thread() -> Result<Self, SystemError> {
        Ok(Self(Local::get().map_err(SystemError::Sleep)?.sleeper.clone()))
    }

    /// The thread asks its [`Outside`] once more before it sleeps, or sleeps on.
    pub fn wake(&self) {
        self.0.wake();
    }
}
