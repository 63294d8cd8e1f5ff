//! Waiting, for a while or until somebody wants it to end.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that end it, which from now on have no other effect.
pub(super) struct Ends(SignalFd);

impl Ends {
    pub(super) fn catch() -> io::Result<Self> {
        let set: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits until then. Whether a signal came.
    pub(super) fn wait_until(&self, until: Instant) -> bool {
        loop {
            if matches!(self.0.read_signal(), Ok(Some(_))) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            // Rounded up, so that it does not spin over the last of it.
            let timeout = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], timeout);
        }
    }
}
