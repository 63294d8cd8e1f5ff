//! Blocking calls on one datapath socket: attempt, sleep until the socket may be ready, and attempt again.

use std::time::Duration;

use abey_datapath::{EpollError, Error, Readiness, Runtime, WaitOutcome};
use libc::{c_int, pollfd};

use super::kernel_wait::PollSet;
use super::runtime::RUNTIME;
use super::signals;
use super::socket::Socket;
use crate::timeout::Timeout;

/// Repeats `attempt` until it does not fail with "would block", as a blocking call on socket `fd`. `timeout` is SO_RCVTIMEO
/// or SO_SNDTIMEO. A non-blocking socket has one attempt.
///
/// If the socket has a kernel side, the wait is for both sides; `attempt` tries both, and does not wait.
///
/// # Errors
/// Those of `attempt`; would-block after `timeout`; [`Error::Interrupted`] after a signal. The caller returns the last one to
/// the program as EINTR, or a partial result; the outermost function restarts the call if [`signals::should_restart`] says
/// so.
pub(crate) fn until_done<R>(
    fd: c_int,
    socket: &Socket,
    interest: Readiness,
    timeout: Option<Duration>,
    mut attempt: impl FnMut() -> Result<R, Error>,
) -> Result<R, Error> {
    let would_block = match attempt() {
        Err(error) if error.is_would_block() && socket.may_wait(fd) => error,
        done => return done,
    };
    let mut wait = SocketWait::new(fd, socket, interest, timeout);
    loop {
        match wait.wait(socket, None) {
            Err(Error::TimedOut) => return Err(would_block),
            end => end?,
        }
        match attempt() {
            Err(error) if error.is_would_block() => {}
            done => return done,
        }
    }
}

/// A call's wait for one socket, over several attempts.
pub(crate) struct SocketWait {
    sleeper: Sleeper,
    interest: Readiness,
    timeout: Timeout,
}

impl SocketWait {
    /// Starts the timeout; see [`until_done`].
    pub(crate) fn new(fd: c_int, socket: &Socket, interest: Readiness, timeout: Option<Duration>) -> Self {
        Self { sleeper: Sleeper::new(fd, socket, interest), interest, timeout: Timeout::new(timeout) }
    }

    /// Waits until the next attempt is worthwhile: the socket may be ready, or `at_most` is over.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after the timeout; [`Error::Interrupted`] after a signal; [`Error::RuntimeDropped`].
    pub(crate) fn wait(&mut self, socket: &Socket, at_most: Option<Duration>) -> Result<(), Error> {
        let left = self.timeout.remaining();
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Error::TimedOut);
        }
        match self.sleeper.sleep(socket, self.interest, left.into_iter().chain(at_most).min()) {
            SleepEnd::Retry => Ok(()),
            SleepEnd::Interrupted { restarts } => {
                signals::set_restart(restarts && !self.timeout.is_finite());
                Err(Error::Interrupted)
            }
            SleepEnd::Failed => Err(Error::RuntimeDropped),
        }
    }
}

/// How a sleep ended.
enum SleepEnd {
    /// The socket may be ready, or the time is over.
    Retry,
    Interrupted {
        restarts: bool,
    },
    Failed,
}

/// The sleeps of one call.
struct Sleeper {
    /// The kernel socket, if the socket has a kernel side, and the thread's signalfd; -1 for none.
    descriptors: [pollfd; 2],
    blocks_signals: bool,
}

impl Sleeper {
    fn new(fd: c_int, socket: &Socket, interest: Readiness) -> Self {
        let writes = interest.contains(Readiness::WRITABLE);
        let events = if writes { libc::POLLOUT } else { libc::POLLIN };
        let kernel = pollfd { fd: if socket.has_kernel_side() { fd } else { -1 }, events, revents: 0 };
        let signals = pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        // A signal would most often arrive during the busy poll before the sleep.
        let spins = crate::config::get()
            .datapath
            .as_ref()
            .is_some_and(|config| config.mode.settings().socket_busy_poll.is_some());
        Self { descriptors: [kernel, signals], blocks_signals: spins || signals::has_both_kinds() }
    }

    fn sleep(&mut self, socket: &Socket, interest: Readiness, left: Option<Duration>) -> SleepEnd {
        let (Some(Some(runtime)), Some(role)) = (RUNTIME.get(), socket.role.get()) else { return SleepEnd::Failed };
        let wanted = [(role.source(), interest)];
        if self.blocks_signals {
            return self.sleep_with_signals_blocked(runtime, &wanted, left);
        }
        let skip = usize::from(self.descriptors[0].fd < 0);
        let poll_set = PollSet::new(&mut self.descriptors[skip..1], None);
        match runtime.wait_any(&wanted, left, &poll_set) {
            Ok(WaitOutcome::Signal) => SleepEnd::Interrupted { restarts: !signals::fails_with_eintr() },
            outcome => sleep_end(&outcome),
        }
    }

    /// Sleeps with all signals blocked, to find out which one ends the sleep; see [`signals`].
    fn sleep_with_signals_blocked(
        &mut self,
        runtime: &Runtime,
        wanted: &[(&dyn abey_datapath::Source, Readiness)],
        left: Option<Duration>,
    ) -> SleepEnd {
        let before = crate::signal_mask::block_all();
        self.descriptors[1].fd = signals::pending_signalfd(&before).unwrap_or(-1);
        let poll_set = PollSet::new(&mut self.descriptors, None);
        let outcome = runtime.wait_any(wanted, left, &poll_set);
        let found = match outcome {
            Ok(WaitOutcome::Kernel) if poll_set.is_ready(1) => signals::first_pending_interrupts(&before),
            _ => None,
        };
        drop(poll_set);
        // Pending signals run their handlers here.
        crate::signal_mask::restore(&before);
        match (found, outcome) {
            (Some(interrupts), _) => SleepEnd::Interrupted { restarts: !interrupts },
            // One of the C library's internal signals.
            (None, Ok(WaitOutcome::Signal)) => SleepEnd::Interrupted { restarts: true },
            (None, outcome) => sleep_end(&outcome),
        }
    }
}

fn sleep_end(outcome: &Result<WaitOutcome, EpollError>) -> SleepEnd {
    if outcome.is_ok() { SleepEnd::Retry } else { SleepEnd::Failed }
}
