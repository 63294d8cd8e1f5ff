//! Socket busy poll: a blocking receive that polls its own queue for a while before it sleeps.
//!
//! `SO_BUSY_POLL` (Linux 3.11; `sk_busy_loop`). Unlike an epoll context it never suspends or resumes anything.

use crate::{Nanos, NapiId, Poller, WaitStep};

/// How many packets one iteration takes unless the socket says otherwise (`BUSY_POLL_BUDGET`, `SO_BUSY_POLL_BUDGET`).
pub const SOCKET_BUSY_POLL_BUDGET: u16 = 8;

/// The busy-poll options of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketBusyPoll {
    /// How long a receive polls before it sleeps.
    pub span: Nanos,
    /// How many packets one iteration may take.
    pub budget: u16,
    /// Whether an owner in the way should yield early, and the timer cover for the socket afterwards
    /// (`SO_PREFER_BUSY_POLL`).
    pub prefer: bool,
}

impl SocketBusyPoll {
    /// Polling for this long, everything else at its default.
    pub const fn new(span: Nanos) -> Self {
        Self { span, budget: SOCKET_BUSY_POLL_BUDGET, prefer: false }
    }
}

/// One thread's blocking receives on a socket.
///
/// Order of calls: [`begin`](Self::begin), then [`next`](Self::next) until it says [`WaitStep::Deliver`] or
/// [`WaitStep::TimedOut`], carrying out each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketWait {
    poller: Poller,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Over,
    Check { deadline: Option<Nanos>, loop_on: Option<(NapiId, SocketBusyPoll)> },
    Polled { deadline: Option<Nanos>, napi: NapiId, busy: SocketBusyPoll, stop_at: Nanos },
    Ended { deadline: Option<Nanos> },
}

impl SocketWait {
    /// For the thread that busy polls under this name.
    pub fn new(poller: Poller) -> Self {
        Self { poller, phase: Phase::Over }
    }

    /// The name under which this thread busy polls.
    pub fn poller(&self) -> Poller {
        self.poller
    }

    /// A receive begins, until `deadline`. `napi` is the instance of the socket's last packet, if it had one.
    pub fn begin(&mut self, deadline: Option<Nanos>, napi: Option<NapiId>, busy: Option<SocketBusyPoll>) {
        let loop_on = napi.zip(busy.filter(|busy| !busy.span.is_zero()));
        self.phase = Phase::Check { deadline, loop_on };
    }

    /// What to do next. `ready`: whether the socket has data right now.
    pub fn next(&mut self, now: Nanos, ready: bool) -> WaitStep {
        match self.phase {
            Phase::Over => WaitStep::TimedOut,
            Phase::Check { .. } | Phase::Ended { .. } if ready => {
                self.phase = Phase::Over;
                WaitStep::Deliver
            }
            Phase::Check { deadline, loop_on: Some((napi, busy)) } if !is_over(deadline, now) => {
                self.phase = Phase::Polled { deadline, napi, busy, stop_at: now + busy.span };
                poll(napi, busy)
            }
            Phase::Polled { deadline, napi, busy, stop_at } => {
                if ready || now >= stop_at {
                    self.phase = Phase::Ended { deadline };
                    return WaitStep::EndPoll { napi };
                }
                poll(napi, busy)
            }
            Phase::Check { deadline, .. } | Phase::Ended { deadline } => {
                if is_over(deadline, now) {
                    self.phase = Phase::Over;
                    return WaitStep::TimedOut;
                }
                self.phase = Phase::Ended { deadline };
                WaitStep::Sleep { until: deadline }
            }
        }
    }
}

fn poll(napi: NapiId, busy: SocketBusyPoll) -> WaitStep {
    WaitStep::Poll { napi, budget: busy.budget, prefer: busy.prefer }
}

fn is_over(deadline: Option<Nanos>, now: Nanos) -> bool {
    deadline.is_some_and(|deadline| deadline <= now)
}
