//! Blocking calls: try, sleep until the socket may be ready, try again. All that a socket of ours waits for alone is here.

use std::time::Duration;

use abey_datapath::{Ended, EpollError, Error, Readiness, Runtime};
use libc::{c_int, pollfd};

use super::RUNTIME;
use super::outside::Beside;
use super::signals;
use super::socket::Socket;
use crate::times::Limit;

/// Does `attempt` until it does not fail with "would block", as a blocking call of the program's on socket `fd`. `limit` is
/// SO_RCVTIMEO or SO_SNDTIMEO; a socket that does not block has one attempt.
///
/// A socket that has a kernel's side is waited for there, too: `attempt` looks at both, and does not wait.
///
/// # Errors
/// What `attempt` said; would-block once `limit` is over; [`Error::Interrupted`] after a signal. The caller, which may have
/// something to tell by then, gives that to the program as EINTR, and its outermost function asks
/// [`signals::is_restarted`] whether the call is made again.
pub(crate) fn until_done<R>(
    fd: c_int,
    socket: &Socket,
    interest: Readiness,
    limit: Option<Duration>,
    mut attempt: impl FnMut() -> Result<R, Error>,
) -> Result<R, Error> {
    let would_block = match attempt() {
        Err(error) if error.is_would_block() && !socket.is_nonblocking() => error,
        done => return done,
    };
    let mut waiting = Waiting::new(fd, socket, interest, limit);
    loop {
        match waiting.wait(socket, None) {
            Err(Error::TimedOut) => return Err(would_block),
            slept => slept?,
        }
        match attempt() {
            Err(error) if error.is_would_block() => {}
            done => return done,
        }
    }
}

/// A call that waits for one socket, however often it has to look.
pub(crate) struct Waiting {
    sleeper: Sleeper,
    interest: Readiness,
    limit: Limit,
}

impl Waiting {
    /// See [`until_done`].
    pub(crate) fn new(fd: c_int, socket: &Socket, interest: Readiness, limit: Option<Duration>) -> Self {
        Self { sleeper: Sleeper::new(fd, socket, interest), interest, limit: Limit::new(limit) }
    }

    /// Waits until it is worth looking again: the socket may be ready, or it is `at_most` later.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: the limit is over; [`Error::Interrupted`], as there; the runtime is gone.
    pub(crate) fn wait(&mut self, socket: &Socket, at_most: Option<Duration>) -> Result<(), Error> {
        let left = self.limit.left();
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Error::TimedOut);
        }
        match self.sleeper.sleep(socket, self.interest, left.into_iter().chain(at_most).min()) {
            Slept::Look => Ok(()),
            Slept::Interrupted { restarts } => {
                signals::interrupted(restarts && !self.limit.is_set());
                Err(Error::Interrupted)
            }
            Slept::Failed => Err(Error::RuntimeGone),
        }
    }
}

/// How a sleep went.
enum Slept {
    /// The socket may be ready, or the time is over.
    Look,
    Interrupted {
        restarts: bool,
    },
    Failed,
}

/// One call's sleeps.
struct Sleeper {
    /// The socket's number in the kernel, if it has a side there, and the thread's signalfd: -1 if not.
    descriptors: [pollfd; 2],
    finds_out: bool,
}

impl Sleeper {
    fn new(fd: c_int, socket: &Socket, interest: Readiness) -> Self {
        let writes = interest.contains(Readiness::WRITABLE);
        let events = if writes { libc::POLLOUT } else { libc::POLLIN };
        let kernel = pollfd { fd: if socket.has_kernel_side() { fd } else { -1 }, events, revents: 0 };
        let signals = pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        // With busy polling before the sleep a signal would most often come in the former.
        let spins = crate::state::get()
            .datapath
            .as_ref()
            .is_some_and(|config| config.mode.settings().socket_busy_poll.is_some());
        Self { descriptors: [kernel, signals], finds_out: spins || signals::is_mixed() }
    }

    fn sleep(&mut self, socket: &Socket, interest: Readiness, left: Option<Duration>) -> Slept {
        let (Some(Some(runtime)), Some(role)) = (RUNTIME.get(), socket.role.get()) else { return Slept::Failed };
        let wanted = [(role.source(), interest)];
        if self.finds_out {
            return self.sleep_and_find_out(runtime, &wanted, left);
        }
        let skip = usize::from(self.descriptors[0].fd < 0);
        let beside = Beside::new(&mut self.descriptors[skip..1], None);
        match runtime.wait_any(&wanted, left, &beside) {
            Ok(Ended::Signal) => Slept::Interrupted { restarts: !signals::interrupt() },
            ended => looked(&ended),
        }
    }

    /// With all signals blocked; see [`signals`].
    fn sleep_and_find_out(
        &mut self,
        runtime: &Runtime,
        wanted: &[(&dyn abey_datapath::Source, Readiness)],
        left: Option<Duration>,
    ) -> Slept {
        let before = crate::wait::block_signals();
        self.descriptors[1].fd = signals::pending_descriptor(&before).unwrap_or(-1);
        let beside = Beside::new(&mut self.descriptors, None);
        let ended = runtime.wait_any(wanted, left, &beside);
        let found = match ended {
            Ok(Ended::Outside) if beside.is_ready(1) => signals::pending(&before),
            _ => None,
        };
        drop(beside);
        // Here the handlers run.
        crate::wait::restore_signals(&before);
        match (found, ended) {
            (Some(interrupts), _) => Slept::Interrupted { restarts: !interrupts },
            // The C library's own.
            (None, Ok(Ended::Signal)) => Slept::Interrupted { restarts: true },
            (None, ended) => looked(&ended),
        }
    }
}

fn looked(ended: &Result<Ended, EpollError>) -> Slept {
    if ended.is_ok() { Slept::Look } else { Slept::Failed }
}
