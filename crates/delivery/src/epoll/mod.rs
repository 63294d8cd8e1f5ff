//! The epoll context: busy polls for an event loop, and suspends interrupts while it works.
//!
//! The code here neither waits nor polls. A wait is a state machine that returns the next step ([`WaitStep`]) given whether
//! events are ready, so one implementation serves a real thread, the simulator and the model checker. The flow is Linux's
//! (`ep_poll`, `ep_busy_loop` and `ep_suspend_napi_irqs` in `fs/eventpoll.c`).

#[cfg(test)]
mod tests;
mod wait;

use crate::fault::{Fault, Faults, Sound};
use crate::{EpollBusyPoll, Nanos, NapiId};

pub use wait::EpollWait;

/// The instances that an epoll context polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Membership {
    /// As in Linux: one NAPI ID, that of the socket that became ready last. It is dropped before the wait sleeps.
    LastReady,
    /// All instances of its sockets. They are polled in turn within one budget, and suspended and resumed together.
    #[default]
    All,
}

/// The behaviour of a wait with a zero timeout when no event is ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ZeroTimeout {
    /// As in Linux: return without polling and without resuming, so a loop that never blocks starves until the safety
    /// timer fires.
    Return,
    /// Poll one iteration first.
    #[default]
    PollOnce,
}

/// The fixed parameters of an epoll context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EpollConfig {
    /// The instances that it polls.
    pub membership: Membership,
    /// The behaviour of a zero timeout.
    pub zero_timeout: ZeroTimeout,
}

impl EpollConfig {
    /// The behaviour of Linux.
    pub const LINUX: Self = Self { membership: Membership::LastReady, zero_timeout: ZeroTimeout::Return };
}

/// The next step of a waiting thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum WaitStep {
    /// One busy-poll iteration: [`Napi::begin_busy_poll`](crate::Napi::begin_busy_poll) with this budget; if that returns
    /// one, a poll, `handle_poll_done`, and [`EpollWait::handle_polled`].
    Poll {
        /// The instance to poll.
        napi: NapiId,
        /// The largest number of packets to take.
        budget: u16,
        /// Whether another owner should yield early.
        prefer: bool,
    },
    /// [`Napi::end_busy_poll`](crate::Napi::end_busy_poll), and the last poll if that requests one.
    EndPoll {
        /// The instance to release.
        napi: NapiId,
    },
    /// [`Napi::suspend`](crate::Napi::suspend).
    Suspend {
        /// The instance of which the interrupt stays masked.
        napi: NapiId,
    },
    /// [`Napi::resume`](crate::Napi::resume).
    Resume {
        /// The instance that falls back to plain deferral.
        napi: NapiId,
    },
    /// Sleep until an event is ready, at most until this time; then call `next` again.
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
/// It stores the instances of its sockets by ID. The caller resolves the ID at every step, and skips the step if there is no
/// such instance. Order of calls: [`handle_add`](Self::handle_add) and [`handle_remove`](Self::handle_remove) as sockets
/// come and go, [`handle_ready`](Self::handle_ready) whenever a socket becomes ready; waits by [`EpollWait`], one for each
/// waiting thread; finally [`close`](Self::close).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EpollContext<F = Sound> {
    config: EpollConfig,
    busy: Option<EpollBusyPoll>,
    members: Vec<Member>,
    /// The position of the instance with which the next iteration begins.
    cursor: usize,
    faults: F,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Member {
    napi: NapiId,
    sockets: u32,
}

impl EpollContext {
    /// Returns a context without sockets. `busy` are the parameters of EPIOCSPARAMS; `None` never busy polls.
    pub fn new(config: EpollConfig, busy: Option<EpollBusyPoll>) -> Self {
        Self::with_faults(config, busy, Sound)
    }
}

impl<F: Faults> EpollContext<F> {
    /// Returns a context as [`EpollContext::new`] does, with a deliberate fault for the checks.
    pub fn with_faults(config: EpollConfig, busy: Option<EpollBusyPoll>, faults: F) -> Self {
        Self { config, busy, members: Vec::new(), cursor: 0, faults }
    }

    /// Returns the busy-poll parameters.
    pub fn busy_poll(&self) -> Option<EpollBusyPoll> {
        self.busy
    }

    /// Returns the instances that the context polls now.
    pub fn members(&self) -> impl ExactSizeIterator<Item = NapiId> + '_ {
        self.members.iter().map(|member| member.napi)
    }

    /// Records that a socket of `napi` was added to the interest list.
    pub fn handle_add(&mut self, napi: NapiId) {
        match self.config.membership {
            Membership::LastReady => self.remember(napi),
            Membership::All => match self.members.iter_mut().find(|member| member.napi == napi) {
                Some(member) => member.sockets += 1,
                None => self.members.push(Member { napi, sockets: 1 }),
            },
        }
    }

    /// Records that a socket of `napi` was removed from the interest list, or has moved to another instance. Returns the
    /// instance if it must be resumed, because this context no longer polls it.
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

    /// Records that a socket of `napi` became ready.
    pub fn handle_ready(&mut self, napi: NapiId) {
        if self.config.membership == Membership::LastReady {
            self.remember(napi);
        }
    }

    /// Sets the busy-poll parameters. Returns the instances to resume, because this context no longer suspends them.
    #[must_use]
    pub fn handle_parameters(&mut self, busy: Option<EpollBusyPoll>) -> Vec<NapiId> {
        let preferred = self.prefers();
        self.busy = busy;
        if preferred && !self.prefers() { self.members().collect() } else { Vec::new() }
    }

    /// Closes the context. Returns the instances to resume.
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

    /// Returns the parameters, if there is an instance to busy poll and they request at least one iteration.
    fn polls(&self) -> Option<EpollBusyPoll> {
        self.busy.filter(|busy| (busy.usecs > 0 || busy.prefer) && !self.members.is_empty())
    }
}
