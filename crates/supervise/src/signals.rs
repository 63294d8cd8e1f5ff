//! Signals of this process, received through a descriptor (`signalfd(2)`) instead of handlers.
//!
//! A caught signal is blocked in the calling thread and in the threads it starts, and is delivered to the descriptor only.
//! System calls are therefore never interrupted, and a signal that was ignored when this process began (`nohup`) is still
//! ignored in the programs it starts. Child processes inherit the blocked signals;
//! [`unblock_signals`](abey_linux::spawn::CommandSetup::unblock_signals) unblocks them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use nix::sys::signal::{SigSet, Signal};

/// The signals that ask a command to end: Ctrl-C, and a service manager or `kill`.
pub const TERMINATION: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];

/// `si_code` of a signal sent by the kernel itself, such as by a terminal at Ctrl-C (`SI_KERNEL` in `sigaction(2)`).
const SI_KERNEL: i32 = 0x80;

/// A signal that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The signal.
    pub signal: Signal,
    /// Whether the kernel sent it, rather than a process.
    pub from_kernel: bool,
}

/// The descriptor that caught signals are delivered to. They stay blocked when it is dropped.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks these signals in the calling thread and opens a descriptor for them.
    ///
    /// To be called before the process has other threads: one that does not block them would still get them. The signals
    /// no longer end the process, so that the caller must.
    ///
    /// # Errors
    /// The system's.
    pub fn catch(signals: &[Signal]) -> io::Result<Self> {
        let set: SigSet = signals.iter().copied().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// Returns the next pending signal. Does not block.
    pub fn next(&self) -> Option<Signal> {
        self.next_delivered().map(|delivered| delivered.signal)
    }

    /// Returns the next pending signal with its origin. Does not block.
    pub fn next_delivered(&self) -> Option<Delivered> {
        let info = self.0.read_signal().ok()??;
        let signal = Signal::try_from(info.ssi_signo.cast_signed()).ok()?;
        Some(Delivered { signal, from_kernel: info.ssi_code == SI_KERNEL })
    }

    /// Blocks until a signal is pending, or `timeout` has passed.
    pub fn wait(&self, timeout: Option<Duration>) {
        // Rounded up to milliseconds, so that a caller with a deadline does not poll through the last of them.
        let timeout = timeout.map(|timeout| timeout + Duration::from_millis(1));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An error would be EINTR, by a signal that stops and continues the process: callers wait in a loop.
        let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref());
    }

    /// Blocks until a signal has been delivered, or until `deadline`. Returns whether there was a signal.
    pub fn wait_until(&self, deadline: Instant) -> bool {
        loop {
            if self.next().is_some() {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.wait(Some(left));
        }
    }

    /// Blocks until a signal has been delivered, and returns it.
    pub fn wait_for_signal(&self) -> Signal {
        loop {
            if let Some(signal) = self.next() {
                return signal;
            }
            self.wait(None);
        }
    }

    /// Calls `handler` for each signal, in a thread that runs as long as the process.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn handle(self, mut handler: impl FnMut(Signal) + Send + 'static) -> io::Result<()> {
        let receive = move || {
            loop {
                handler(self.wait_for_signal());
            }
        };
        std::thread::Builder::new().name("abey-signals".to_owned()).spawn(receive).map(drop)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    #[test]
    fn a_blocked_signal_is_delivered_to_the_descriptor() {
        let test = || {
            let signals = Signals::catch(&[Signal::SIGUSR1]).expect("a descriptor");
            assert_eq!(signals.next(), None);
            raise(Signal::SIGUSR1).expect("raise");
            let delivered = Delivered { signal: Signal::SIGUSR1, from_kernel: false };
            assert_eq!(signals.next_delivered(), Some(delivered));
            raise(Signal::SIGUSR1).expect("raise");
            assert_eq!(signals.wait_for_signal(), Signal::SIGUSR1);
            assert!(!signals.wait_until(Instant::now()));
        };
        std::thread::spawn(test).join().expect("no panic");
    }
}
