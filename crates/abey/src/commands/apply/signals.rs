//! The signals that end an apply or a watch, or make it read the policy again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// SIGHUP, SIGINT and SIGTERM, which from now on arrive here and have no other effect.
pub(super) struct Signals(SignalFd);

impl Signals {
    pub(super) fn catch() -> io::Result<Self> {
        let set = Self::caught();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// What is caught, for a child that is to have it again.
    pub(super) fn caught() -> SigSet {
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM].into_iter().collect()
    }

    /// The next signal that has arrived.
    pub(super) fn next(&self) -> Option<Signal> {
        let info = self.0.read_signal().ok()??;
        Signal::try_from(info.ssi_signo.cast_signed()).ok()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
