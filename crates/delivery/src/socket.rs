//! Socket busy poll: a blocking receive that polls its own queue before it sleeps.
//!
//! `SO_BUSY_POLL` (Linux 3.11; `sk_busy_loop`). Unlike an epoll context it never suspends or resumes an instance.

use crate::{Nanos, NapiId, Poller, WaitStep};

/// The default number of packets that one iteration takes (`BUSY_POLL_BUDGET`, `SO_BUSY_POLL_BUDGET`).
pub const SOCKET_BUSY_POLL_BUDGET: u16 = 8;

/// The busy-poll options of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketBusyPoll {
    /// The time that a receive polls before it sleeps.
    pub span: Nanos,
    /// The number of packets that one iteration may take.
    pub budget: u16,
    /// Whether another owner should yield early, and the timer should be armed when the busy poll ends
    /// (`SO_PREFER_BUSY_POLL`).
    pub prefer: bool,
}

impl SocketBusyPoll {
    /// Returns the options for polling this long, with the default budget and without *prefer*.
    pub const fn new(span: Nanos) -> Self {
        Self { span, budget: SOCKET_BUSY_POLL_BUDGET, prefer: false }
    }
}

/// One thread's blocking receives on a socket.
///
/// Order of calls: [`begin`](Self::begin), then [`next`](Self::next) until it returns [`WaitStep::Deliver`] or
/// [`WaitStep::TimedOut`]; the caller executes each step.
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
    /// Returns the waits of the thread that busy polls with this number.
    pub fn new(poller: Poller) -> Self {
        Self { poller, phase: Phase::Over }
    }

    /// Returns the number with which this thread busy polls.
    pub fn poller(&self) -> Poller {
        self.poller
    }

    /// Begins a receive that lasts until `deadline`. `napi` is the instance of the socket's last packet, if any.
    pub fn begin(&mut self, deadline: Option<Nanos>, napi: Option<NapiId>, busy: Option<SocketBusyPoll>) {
        let loop_on = napi.zip(busy.filter(|busy| !busy.span.is_zero()));
        self.phase = Phase::Check { deadline, loop_on };
    }

    /// Moves the origin of time, as [`Napi::rebase`](crate::Napi::rebase) does.
    pub fn rebase(&mut self, by: Nanos) {
        let (Phase::Check { deadline, .. } | Phase::Polled { deadline, .. } | Phase::Ended { deadline }) =
            &mut self.phase
        else {
            return;
        };
        *deadline = deadline.map(|deadline| deadline.saturating_sub(by));
        if let Phase::Polled { stop_at, .. } = &mut self.phase {
            *stop_at = stop_at.saturating_sub(by);
        }
    }

    /// Returns the next step. `ready` is whether the socket has data now.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{QueueKey, Store};

    fn us(n: u64) -> Nanos {
        Nanos::from_micros(n)
    }

    fn poll_of(napi: NapiId) -> WaitStep {
        WaitStep::Poll { napi, budget: SOCKET_BUSY_POLL_BUDGET, prefer: false }
    }

    #[test]
    fn a_receive_polls_for_its_time_then_sleeps() {
        let napi = Store::new().id(QueueKey { device: 1, queue: 0 });
        let mut wait = SocketWait::new(Poller(1));
        wait.begin(None, Some(napi), Some(SocketBusyPoll::new(us(50))));
        for now in [0, 20, 49] {
            assert_eq!(wait.next(us(now), false), poll_of(napi));
        }
        assert_eq!(wait.next(us(50), false), WaitStep::EndPoll { napi });
        assert_eq!(wait.next(us(51), false), WaitStep::Sleep { until: None });
        assert_eq!(wait.next(us(90), true), WaitStep::Deliver);
    }

    #[test]
    fn data_ends_the_loop_and_the_last_poll_counts() {
        let napi = Store::new().id(QueueKey { device: 1, queue: 0 });
        let mut wait = SocketWait::new(Poller(1));
        wait.begin(None, Some(napi), Some(SocketBusyPoll::new(us(50))));
        assert_eq!(wait.next(us(0), false), poll_of(napi));
        assert_eq!(wait.next(us(1), true), WaitStep::EndPoll { napi });
        assert_eq!(wait.next(us(2), true), WaitStep::Deliver);
    }

    #[test]
    fn without_busy_polling_or_a_known_instance_it_only_sleeps() {
        let napi = Store::new().id(QueueKey { device: 1, queue: 0 });
        for (napi, busy) in [(None, Some(SocketBusyPoll::new(us(50)))), (Some(napi), None)] {
            let mut wait = SocketWait::new(Poller(1));
            wait.begin(Some(us(9)), napi, busy);
            assert_eq!(wait.next(us(0), false), WaitStep::Sleep { until: Some(us(9)) });
            assert_eq!(wait.next(us(9), false), WaitStep::TimedOut);
        }
    }
}
