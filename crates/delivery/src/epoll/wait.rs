//! A wait on an epoll context, as a machine that says what its thread does next.

use super::{EpollContext, Membership, WaitStep, ZeroTimeout};
use crate::fault::{Fault, Faults};
use crate::{EpollBusyPoll, Nanos, NapiId, Poller};

/// One thread's waits on an epoll context; reused from wait to wait, so that waiting does not allocate.
///
/// Order of calls: [`begin`](Self::begin), then [`next`](Self::next) until it says [`WaitStep::Deliver`] or
/// [`WaitStep::TimedOut`], carrying out each step; [`handle_polled`](Self::handle_polled) after a poll that took packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EpollWait {
    poller: Poller,
    deadline: Option<Nanos>,
    phase: Phase,
    /// The instances of the loop under way. They stay ours to let go, whatever becomes of the context.
    napis: Vec<NapiId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Over,
    /// Events or not?
    Check {
        zero: bool,
    },
    /// `nth` instance of an iteration that began at `cursor`; `left` packets of its budget.
    Iterating {
        nth: usize,
        left: u16,
        busy: EpollBusyPoll,
        stop_at: Nanos,
        zero: bool,
    },
    Ending {
        nth: usize,
        prefer: bool,
        zero: bool,
    },
    Resuming {
        nth: usize,
    },
    Suspending {
        nth: usize,
    },
    Asleep,
}

impl EpollWait {
    /// For the thread that busy polls under this name.
    pub fn new(poller: Poller) -> Self {
        Self { poller, deadline: None, phase: Phase::Over, napis: Vec::new() }
    }

    /// The name under which this thread busy polls.
    pub fn poller(&self) -> Poller {
        self.poller
    }

    /// A wait begins, until `deadline`. A deadline that is not after `now` is a zero timeout.
    pub fn begin(&mut self, now: Nanos, deadline: Option<Nanos>) {
        self.deadline = deadline;
        self.phase = Phase::Check { zero: deadline.is_some_and(|deadline| deadline <= now) };
    }

    /// The last [`WaitStep::Poll`] took `work` packets.
    pub fn handle_polled(&mut self, work: u16) {
        if let Phase::Iterating { left, .. } = &mut self.phase {
            *left = left.saturating_sub(work);
        }
    }

    /// A signal ends the wait: the steps that follow let everything go, and then time out.
    pub fn handle_signal(&mut self, now: Nanos) {
        self.deadline = Some(now);
        match self.phase {
            Phase::Iterating { busy, .. } => {
                self.phase = Phase::Ending { nth: 0, prefer: busy.prefer, zero: false };
            }
            // No instance is held, so the end comes at once; events go before it all the same.
            Phase::Check { .. } => self.phase = Phase::Ending { nth: 0, prefer: false, zero: true },
            _ => {}
        }
    }

    /// Moves the origin of time, as [`Napi::rebase`](crate::Napi::rebase) does.
    pub fn rebase(&mut self, by: Nanos) {
        self.deadline = self.deadline.map(|deadline| deadline.saturating_sub(by));
        if let Phase::Iterating { stop_at, .. } = &mut self.phase {
            *stop_at = stop_at.saturating_sub(by);
        }
    }

    /// What to do next. `ready`: whether the context has events for the application right now.
    pub fn next<F: Faults>(&mut self, epoll: &mut EpollContext<F>, now: Nanos, ready: bool) -> WaitStep {
        loop {
            match self.phase {
                Phase::Over => return self.end(WaitStep::TimedOut),
                Phase::Check { .. } if ready => self.begin_suspending(epoll),
                Phase::Check { zero } => {
                    if let Some(step) = self.nothing_ready(epoll, now, zero) {
                        return step;
                    }
                }
                Phase::Iterating { .. } => {
                    if let Some(step) = self.iterate(epoll, now, ready) {
                        return step;
                    }
                }
                Phase::Ending { nth, prefer, zero } => {
                    if let Some(napi) = self.napis.get(nth).copied() {
                        self.phase = Phase::Ending { nth: nth + 1, prefer, zero };
                        return WaitStep::EndPoll { napi };
                    }
                    if ready {
                        self.begin_suspending(epoll);
                    } else if zero {
                        self.phase = Phase::Over;
                    } else {
                        let skip = !prefer || epoll.faults.has(Fault::NoResumeBeforeSleep);
                        self.phase = Phase::Resuming { nth: if skip { self.napis.len() } else { 0 } };
                    }
                }
                Phase::Resuming { nth } => {
                    if let Some(napi) = self.napis.get(nth).copied() {
                        self.phase = Phase::Resuming { nth: nth + 1 };
                        return WaitStep::Resume { napi };
                    }
                    if epoll.config.membership == Membership::LastReady {
                        epoll.members.clear();
                    }
                    // What came while the instances were resumed. Kernel: looked at once more before the thread is put in
                    // the wait queue.
                    if !ready || epoll.faults.has(Fault::SleepsOnEvents) {
                        return self.sleep(now);
                    }
                    self.begin_suspending(epoll);
                }
                Phase::Suspending { nth } => {
                    if let Some(napi) = self.napis.get(nth).copied() {
                        self.phase = Phase::Suspending { nth: nth + 1 };
                        return WaitStep::Suspend { napi };
                    }
                    return self.end(WaitStep::Deliver);
                }
                Phase::Asleep if !ready && self.is_over(now) => self.phase = Phase::Over,
                Phase::Asleep => self.phase = Phase::Check { zero: false },
            }
        }
    }

    /// Nothing is ready: busy poll, sleep, or return.
    fn nothing_ready<F: Faults>(&mut self, epoll: &EpollContext<F>, now: Nanos, zero: bool) -> Option<WaitStep> {
        if zero && epoll.config.zero_timeout == ZeroTimeout::Return {
            self.phase = Phase::Over;
            return None;
        }
        let Some(busy) = epoll.polls() else { return Some(self.sleep(now)) };
        self.napis.clear();
        self.napis.extend(epoll.members());
        let span = if zero { Nanos::ZERO } else { Nanos::from_micros(busy.usecs.into()) };
        self.phase = Phase::Iterating { nth: 0, left: busy.budget, busy, stop_at: now + span, zero };
        None
    }

    /// The next poll of an iteration, or the next iteration, or the end of the loop.
    fn iterate<F: Faults>(&mut self, epoll: &mut EpollContext<F>, now: Nanos, ready: bool) -> Option<WaitStep> {
        let Phase::Iterating { nth, left, busy, stop_at, zero } = self.phase else { return None };
        let count = self.napis.len();
        if nth < count && left > 0 {
            let napi = self.napis[(epoll.cursor % count + nth) % count];
            self.phase = Phase::Iterating { nth: nth + 1, left, busy, stop_at, zero };
            return Some(WaitStep::Poll { napi, budget: left, prefer: busy.prefer });
        }
        // Whoever was not reached comes first the next time; if everybody was, the first place moves on by one.
        epoll.cursor = epoll.cursor % count + if nth < count { nth } else { 1 };
        self.phase = if ready || now >= stop_at {
            Phase::Ending { nth: 0, prefer: busy.prefer, zero }
        } else {
            Phase::Iterating { nth: 0, left: busy.budget, busy, stop_at, zero }
        };
        None
    }

    fn begin_suspending<F: Faults>(&mut self, epoll: &EpollContext<F>) {
        self.napis.clear();
        if epoll.prefers() {
            self.napis.extend(epoll.members());
        }
        self.phase = Phase::Suspending { nth: 0 };
    }

    fn sleep(&mut self, now: Nanos) -> WaitStep {
        if self.is_over(now) {
            return self.end(WaitStep::TimedOut);
        }
        self.napis.clear();
        self.phase = Phase::Asleep;
        WaitStep::Sleep { until: self.deadline }
    }

    fn end(&mut self, step: WaitStep) -> WaitStep {
        self.phase = Phase::Over;
        self.deadline = None;
        self.napis.clear();
        step
    }

    fn is_over(&self, now: Nanos) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}
