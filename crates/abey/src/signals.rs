//! The signals that end what runs until it is told to, or make it read its policy again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// SIGHUP, SIGINT and SIGTERM, which from now on arrive here and have no other effect.
pub(crate) struct Signals(SignalFd);

impl Signals {
    pub(crate) fn catch() -> io::Result<Self> {
        let set = Self::caught();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// What is caught, for a child that is to have it again.
    pub(crate) fn caught() -> SigSet {
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM].into_iter().collect()
    }

    /// The next signal that has arrived.
    pub(crate) fn next(&self) -> Option<Signal> {
        let info = self.0.read_signal().ok()??;
        Signal::try_from(info.ssi_signo.cast_signed()).ok()
    }

    /// Waits until then. Whether a signal came.
    pub(crate) fn wait_until(&self, until: Instant) -> bool {
        loop {
            if self.next().is_some() {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // Rounded up, so that it does not spin over the last of it.
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut [PollFd::new(self.as_fd(), PollFlags::POLLIN)], timeout);
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
