//! The epoll context: busy polling on behalf of an event loop, and suspending interrupts while it works.
//!
//! Nothing here waits or polls. A wait is a little machine that says what to do next ([`WaitStep`]) given whether events
//! are ready, so one implementation serves a real thread, the simulator and the model checker. The flow is Linux's
//! (`ep_poll`, `ep_busy_loop` and `ep_suspend_napi_irqs` in `fs/eventpoll.c`).

#[cfg(test)]
mod tests;
mod wait;

use crate::fault::{Fault, Faults, Sound};
use crate::{EpollBusyPoll, Nanos, NapiId};

pub use wait::EpollWait;

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
