//! Waiting for a runtime's sockets and for the kernel's descriptors and signals in one system call.
//!
//! Only the caller of a wait has the kernel's descriptors that it also waits for. So the caller provides the system call
//! in which the wait sleeps, a [`KernelWait`]. One call then waits for both, with the program's signal mask if it has one
//! (`ppoll(2)`), and no signal arrives between two calls.

use std::sync::Arc;

use rustix::event::{PollFd, Timespec};

use crate::app_thread::AppThread;
use crate::error::SystemError;
use crate::parker::Parker;

/// The kernel's side of a wait: descriptors and signals that the runtime does not have.
pub trait KernelWait {
    /// Waits until one of `own` or one of the implementation's descriptors is ready, for at most `timeout`; `None` waits
    /// without a limit, and zero does not wait.
    ///
    /// Fills in the `revents` of `own`. Returns whether one of the implementation's descriptors is ready.
    ///
    /// # Errors
    /// [`Errno::INTR`](rustix::io::Errno::INTR) if a signal came and its handler has run. The wait treats any other error
    /// as if nothing were ready.
    fn poll(&self, own: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> rustix::io::Result<bool>;

    /// Blocks signals, except inside [`Self::poll`], until the wait ends.
    ///
    /// Called when a wait is going to spin: it would not notice a signal whose handler runs between two calls of `poll`.
    fn block_signals(&self);
}

/// The reason for which a wait with a [`KernelWait`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitOutcome {
    /// There are events, or a socket is ready.
    Events,
    /// The timeout expired, or another thread woke the wait.
    TimedOut,
    /// One of the kernel's descriptors is ready.
    Kernel,
    /// A signal came.
    Signal,
}

/// A handle that ends the sleep of one thread's wait, from any other thread.
///
/// A wait calls [`KernelWait::poll`] before it sleeps. A thread that first changes what that call returns, and then
/// [wakes](Self::wake) the waiting thread, is sure that the change is found, even if the thread was not asleep yet.
#[derive(Clone, Debug)]
pub struct ThreadWaker(Arc<Parker>);

impl ThreadWaker {
    /// Returns the waker of the calling thread, for all its waits.
    ///
    /// # Errors
    /// The process has no file descriptor left.
    pub fn of_this_thread() -> Result<Self, SystemError> {
        Ok(Self(AppThread::current().map_err(SystemError::Sleep)?.parker.clone()))
    }

    /// Makes the thread call [`KernelWait::poll`] once more before it sleeps again.
    pub fn wake(&self) {
        self.0.unpark();
    }
}
