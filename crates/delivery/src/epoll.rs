//! The epoll context: busy polling on behalf of an event loop, and suspending interrupts while it works.
//!
//! Nothing here waits or polls. A wait is a little machine that says what to do next ([`WaitStep`]) given whether events
//! are ready, so one implementation serves a real thread, the simulator and the model checker. The flow is Linux's
//! (`ep_poll`, `ep_busy_loop` and `ep_suspend_napi_irqs` in `fs/eventpoll.c`).

use crate::fault::{Fault, Faults, Sound};
use crate::{EpollBusyPoll, Nanos, NapiId, Poller};

/// How an epoll context knows which instances to poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Membership {
    /// As Linux: it remembers one NAPI ID, that of the socket that became ready last, and forgets it before it sleeps.
    LastReady,
    /// It holds all instances that its sockets live on, polls them in turn within the same budget, and suspends and
    /// resumes them together.
    #[default]
    All,
}

/// What a wait with a zero timeout does when no event is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ZeroTimeout {
    /// As Linux: return without polling and without resuming, so a loop that never blocks starves until the safety
    /// timer fires.
    Return,
    /// Poll one iteration first.
    #[default]
    PollOnce,
}

/// What is fixed when an epoll context is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EpollConfig {
    /// Which instances to poll.
    pub membership: Membership,
    /// What a zero timeout does.
    pub zero_timeout: ZeroTimeout,
}

impl EpollConfig {
    /// Everything as Linux does it.
    pub const LINUX: Self = Self { membership: Membership::LastReady, zero_timeout: ZeroTimeout::Return };
}

/// What a waiting thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum WaitStep {
    /// One busy-poll iteration: [`Napi::begin_busy_poll`](crate::Napi::begin_busy_poll) with this budget, and if that
    /// gives one, poll, `handle_poll_done`, and `handle_polled` here.
    Poll {
        /// Whom to poll.
        napi: NapiId,
        /// How many packets to take at most.
        budget: u16,
        /// Whether an owner in the way should yield early.
        prefer: bool,
    },
    /// [`Napi::end_busy_poll`](crate::Napi::end_busy_poll), and the last poll if that asks for one.
    EndPoll {
        /// Whom to let go.
        napi: NapiId,
    },
    /// [`Napi::suspend`](crate::Napi::suspend).
    Suspend {
        /// Whose interrupt stays masked.
        napi: NapiId,
    },
    /// [`Napi::resume`](crate::Napi::resume).
    Resume {
        /// Who falls back to plain deferral.
        napi: NapiId,
    },
    /// Sleep until an event is ready, at most until this time; then ask again.
    Sleep {
        /// The wait's deadline.
        until: Option<Nanos>,
    },
    /// Hand the ready events to the application. The wait is over.
    Deliver,
    /// Return without events. The wait is over.
    TimedOut,
}

/// An epoll context.
///
/// It knows the instances its sockets live on by ID; the caller looks the ID up at every step, and skips the step if it
/// finds nothing. Order of calls: [`handle_add`](Self::handle_add) and [`handle_remove`](Self::handle_remove) as sockets
/// come and go, [`handle_ready`](Self::handle_ready) whenever a socket becomes ready; waits through [`EpollWait`], one per
/// waiting thread; in the end [`close`](Self::close).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EpollContext<F = Sound> {
    config: EpollConfig,
    busy: Option<EpollBusyPoll>,
    members: Vec<Member>,
    /// Where the next iteration begins.
    cursor: usize,
    faults: F,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Member {
    napi: NapiId,
    sockets: u32,
}

impl EpollContext {
    /// A context without sockets. `busy` as in EPIOCSPARAMS; `None` never busy polls.
    pub fn new(config: EpollConfig, busy: Option<EpollBusyPoll>) -> Self {
        Self::with_faults(config, busy, Sound)
    }
}

impl<F: Faults> EpollContext<F> {
    /// As [`EpollContext::new`], with a deliberate fault for the checks.
    pub fn with_faults(config: EpollConfig, busy: Option<EpollBusyPoll>, faults: F) -> Self {
        Self { config, busy, members: Vec::new(), cursor: 0, faults }
    }

    /// The busy-poll parameters.
    pub fn busy_poll(&self) -> Option<EpollBusyPoll> {
        self.busy
    }

    /// The instances that the context knows now.
    pub fn members(&self) -> impl ExactSizeIterator<Item = NapiId> + '_ {
        self.members.iter().map(|member| member.napi)
    }

    /// A socket that lives on `napi` is added to the interest list.
    pub fn handle_add(&mut self, napi: NapiId) {
        match self.config.membership {
            Membership::LastReady => self.remember(napi),
            Membership::All => match self.members.iter_mut().find(|member| member.napi == napi) {
                Some(member) => member.sockets += 1,
                None => self.members.push(Member { napi, sockets: 1 }),
            },
        }
    }

    /// A socket that lived on `napi` is gone from the interest list, or has moved to another instance. The answer, if
    /// there is one, is to be resumed: nobody here will poll it any more.
    #[must_use]
    pub fn handle_remove(&mut self, napi: NapiId) -> Option<NapiId> {
        if self.config.membership == Membership::LastReady {
            return None;
        }
        let at = self.members.iter().position(|member| member.napi == napi)?;
        let member = &mut self.members[at];
        member.sockets -= 1;
        if member.sockets > 0 {
            return None;
        }
        self.members.remove(at);
        self.prefers().then_some(napi)
    }

    /// A socket that lives on `napi` became ready.
    pub fn handle_ready(&mut self, napi: NapiId) {
        if self.config.membership == Membership::LastReady {
            self.remember(napi);
        }
    }

    /// New busy-poll parameters. The instances in the answer are to be resumed: nobody suspends them any more.
    #[must_use]
    pub fn handle_parameters(&mut self, busy: Option<EpollBusyPoll>) -> Vec<NapiId> {
        let preferred = self.prefers();
        self.busy = busy;
        if preferred && !self.prefers() { self.members().collect() } else { Vec::new() }
    }

    /// The context is closed. The instances in the answer are to be resumed.
    #[must_use]
    pub fn close(&mut self) -> Vec<NapiId> {
        let resume = self.prefers() && !self.faults.has(Fault::NoResumeOnClose);
        let members = std::mem::take(&mut self.members);
        if resume { members.into_iter().map(|member| member.napi).collect() } else { Vec::new() }
    }

    fn remember(&mut self, napi: NapiId) {
        self.members.clear();
        self.members.push(Member { napi, sockets: 1 });
    }

    fn prefers(&self) -> bool {
        self.busy.is_some_and(|busy| busy.prefer)
    }

    /// The parameters, if there is anything to busy poll and they ask for at least one iteration.
    fn polls(&self) -> Option<EpollBusyPoll> {
        self.busy.filter(|busy| (busy.usecs > 0 || busy.prefer) && !self.members.is_empty())
    }
}

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
            Phase::Check { .. } => self.phase = Phase::Over,
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
                Phase::Over => {
                    self.napis.clear();
                    return WaitStep::TimedOut;
                }
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
                    return self.sleep(now);
                }
                Phase::Suspending { nth } => {
                    if let Some(napi) = self.napis.get(nth).copied() {
                        self.phase = Phase::Suspending { nth: nth + 1 };
                        return WaitStep::Suspend { napi };
                    }
                    self.phase = Phase::Over;
                    return WaitStep::Deliver;
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
            self.phase = Phase::Over;
            return WaitStep::TimedOut;
        }
        self.phase = Phase::Asleep;
        WaitStep::Sleep { until: self.deadline }
    }

    fn is_over(&self, now: Nanos) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}
