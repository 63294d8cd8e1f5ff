//! A wait on an epoll context, as a state machine that returns the next step of its thread.

use super::{EpollContext, Membership, WaitStep, ZeroTimeout};
use crate::fault::{Fault, Faults};
use crate::{EpollBusyPoll, Nanos, NapiId, Poller};

/// One thread's waits on an epoll context; reused for each wait, so that a wait does not allocate.
///
/// Order of calls: [`begin`](Self::begin), then [`next`](Self::next) until it returns [`WaitStep::Deliver`] or
/// [`WaitStep::TimedOut`]; the caller executes each step; [`handle_polled`](Self::handle_polled) after a poll that took packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EpollWait {
    poller: Poller,
    deadline: Option<Nanos>,
    phase: Phase,
    /// The instances of the present busy-poll loop. This wait releases them, even if the context changes meanwhile.
    napis: Vec<NapiId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Over,
    /// Checks whether events are ready.
    Check {
        zero: bool,
    },
    /// At the `nth` instance of an iteration that began at `cursor`, with `left` packets of its budget.
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
    /// Returns the waits of the thread that busy polls with this number.
    pub fn new(poller: Poller) -> Self {
        Self { poller, deadline: None, phase: Phase::Over, napis: Vec::new() }
    }

    /// Returns the number with which this thread busy polls.
    pub fn poller(&self) -> Poller {
        self.poller
    }

    /// Begins a wait that lasts until `deadline`. A deadline that is not after `now` is a zero timeout.
    pub fn begin(&mut self, now: Nanos, deadline: Option<Nanos>) {
        self.deadline = deadline;
        self.phase = Phase::Check { zero: deadline.is_some_and(|deadline| deadline <= now) };
    }

    /// Records that the last [`WaitStep::Poll`] took `work` packets.
    pub fn handle_polled(&mut self, work: u16) {
        if let Phase::Iterating { left, .. } = &mut self.phase {
            *left = left.saturating_sub(work);
        }
    }

    /// Ends the wait because of a signal: the following steps release the instances, and then time out.
    pub fn handle_signal(&mut self, now: Nanos) {
        self.deadline = Some(now);
        match self.phase {
            Phase::Iterating { busy, .. } => {
                self.phase = Phase::Ending { nth: 0, prefer: busy.prefer, zero: false };
            }
            // No instance is owned, so the wait ends at once; ready events are still delivered first.
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

    /// Returns the next step. `ready` is whether the context has events for the application now.
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
                    // Events may have come while the instances were resumed. The kernel, too, checks once more before it
                    // puts the thread in the wait queue.
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

    /// Begins to busy poll, sleeps, or returns, because no event is ready.
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

    /// Returns the next poll of an iteration; moves on to the next iteration or to the end of the loop.
    fn iterate<F: Faults>(&mut self, epoll: &mut EpollContext<F>, now: Nanos, ready: bool) -> Option<WaitStep> {
        let Phase::Iterating { nth, left, busy, stop_at, zero } = self.phase else { return None };
        let count = self.napis.len();
        if nth < count && left > 0 {
            let napi = self.napis[(epoll.cursor % count + nth) % count];
            self.phase = Phase::Iterating { nth: nth + 1, left, busy, stop_at, zero };
            return Some(WaitStep::Poll { napi, budget: left, prefer: busy.prefer });
        }
        // The next iteration begins with the first instance that was not reached; if all were, with the next in turn.
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
