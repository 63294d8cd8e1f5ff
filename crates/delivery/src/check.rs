//! The invariants of delivery, checked from outside around every event.
//!
//! A [`Monitor`] checks one instance. The caller reports what it observes itself (packets that arrive, polls that begin and
//! end), and the monitor compares that with the state of the instance. The model checker, the property tests and the simulator use the
//! same monitor. It is a small plain value, so that it can be part of an explored state.
//!
//! Linux itself does not keep invariant 4: not with [`SuspendFrom::Delivery`](crate::SuspendFrom), and not where one epoll
//! context that remembers [one NAPI ID](crate::Membership::LastReady) has sockets on several queues.

use crate::fault::Faults;
use crate::{Flags, Hold, InterruptAction, Nanos, Napi, NapiSettings, Outcome, PollDone, TimerAction};

/// A broken invariant. The numbers are those of the design document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Two polls of one instance at the same time.
    #[error("invariant 1, one poller: a poll begins while another one is under way")]
    TwoPollers,
    /// Packets wait, and no event will poll them.
    #[error("invariant 2, no lost wake-up: packets wait, and no owner, timer or interrupt will poll them")]
    LostWakeUp,
    /// A wait consumed the events of an edge-triggered context and did not deliver them.
    #[error("invariant 2, no lost wake-up: a wait took events, and then slept or returned without them")]
    EventsLost,
    /// An interrupt found an owner that released the instance without another poll.
    #[error("invariant 2, no lost wake-up: an interrupt came while the instance had an owner, and was lost")]
    InterruptForgotten,
    /// No event will unmask the interrupt.
    #[error("invariant 3, masked implies owned or timed: the interrupt is masked, with no owner and no timer")]
    MaskedForEver,
    /// The owner will not poll.
    #[error("invariant 3, masked implies owned or timed: the instance is owned by a context that has dropped it")]
    OwnerGone,
    /// The caller's timer and the instance's differ.
    #[error(
        "invariant 3, masked implies owned or timed: the instance expects a timer at {expected:?}, and {armed:?} is armed"
    )]
    TimerLost {
        /// When it should fire.
        expected: Option<Nanos>,
        /// When it fires.
        armed: Option<Nanos>,
    },
    /// A packet may wait longer than the settings allow.
    #[error(
        "invariant 4, bounded wait: packets wait since {since}, the next poll is at {until}, and the settings allow {bound}"
    )]
    LongWait {
        /// The later of the first packet's arrival and the last poll.
        since: Nanos,
        /// When the timer fires.
        until: Nanos,
        /// The longest of the timeouts.
        bound: Nanos,
    },
    /// Interrupts are suspended without an application that will poll.
    #[error("invariant 4, bounded wait: interrupts are suspended though no application that polls is awake")]
    SuspendedWithoutPoller,
    /// A suspension did not move the timer out.
    #[error(
        "invariant 4, bounded wait: events were delivered, and the timer is at {armed:?} instead of at the suspend timeout"
    )]
    NotSuspended {
        /// When the timer fires.
        armed: Option<Nanos>,
    },
    /// A poll under deferral found packets, and the interrupt was unmasked.
    #[error("deferral: a poll found packets, but the interrupt is unmasked instead of the timer armed")]
    NotDeferred,
    /// The flag that makes the owner yield is set without a busy poller.
    #[error("prefer: the flag is set though no busy poller asked for it since the instance was last released")]
    StalePrefer,
    /// A poll after `disable` was complete.
    #[error("invariant 6, disabled: a poll is under way, or begins, though the instance is disabled")]
    PollAfterDisable,
    /// More than two polls a packet.
    #[error("invariant 7, hold: polls by the timer cost more than two a packet")]
    CostlyHold,
}

/// The state of a queue and of its environment, as the caller observes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Surroundings {
    /// The queue holds packets.
    pub pending: bool,
    /// An interrupt will come without any further packet: raised and not handled yet, or being coalesced.
    pub interrupt_due: bool,
    /// The instance is on a context's list, in a thread that is awake, or being polled.
    pub runnable: bool,
    /// When the caller's timer for the instance fires.
    pub timer: Option<Nanos>,
    /// An application that polls the instance runs: it processes events, or is inside a wait and not asleep.
    pub attended: bool,
}

/// The checker of one instance. Order of calls: a `handle_*` right after every event, then [`check`](Self::check).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Monitor {
    polling: bool,
    /// An interrupt was handled, and no poll has begun since.
    announced: bool,
    /// A busy poller with *prefer* was refused.
    wanted: bool,
    /// The arrival of the first packet since the last poll.
    waiting_since: Option<Nanos>,
    /// When the last poll ended; only updated while irq-suspend-timeout is set.
    last_poll: Nanos,
    /// The longest timeout of the settings that determine the next poll.
    bound: Nanos,
    /// Polls left while hold by timer is set, at two a packet, up to [`MAX_CREDIT`].
    credit: u8,
}

/// The limit of the credit: a large batch does not allow needless polls much later.
const MAX_CREDIT: u8 = 4;

impl Monitor {
    /// Returns a monitor for an instance with these settings.
    pub fn new(settings: &NapiSettings) -> Self {
        Self { bound: bound(settings), ..Self::default() }
    }

    /// Records that a packet arrived in the queue.
    pub fn handle_arrival(&mut self, now: Nanos) {
        self.waiting_since.get_or_insert(now);
    }

    /// Records that an interrupt is about to be handled; `pending` is whether the queue holds packets.
    pub fn handle_interrupt<F: Faults>(&mut self, napi: &Napi<F>, pending: bool) {
        if !napi.is_enabled() {
            return;
        }
        self.announced = true;
        if !pending || napi.is_owned() {
            // An interrupt without packets allows its own poll, and so does one that makes an owner poll again.
            self.add_credit();
        }
    }

    /// Records that the instance's `resume` is about to be called. The poll that follows is not the timer's.
    pub fn handle_resume(&mut self) {
        self.add_credit();
    }

    fn add_credit(&mut self) {
        self.credit = self.credit.saturating_add(1).min(MAX_CREDIT);
    }

    /// Records a change to these settings.
    pub fn handle_settings(&mut self, settings: &NapiSettings) {
        self.bound = self.bound.max(bound(settings));
        self.credit = MAX_CREDIT;
    }

    /// Records a call of the instance's `disable`.
    pub fn handle_disable(&mut self) {
        self.announced = false;
    }

    /// Records that a busy poller was refused.
    pub fn handle_refused(&mut self, prefer: bool) {
        self.wanted |= prefer;
    }

    /// Records that a poll begins.
    ///
    /// # Errors
    /// If another one is under way, or the instance is disabled.
    pub fn handle_poll_begin<F: Faults>(&mut self, napi: &Napi<F>) -> Result<(), Violation> {
        if napi.is_disabled() {
            return Err(Violation::PollAfterDisable);
        }
        if self.polling {
            return Err(Violation::TwoPollers);
        }
        self.polling = true;
        self.announced = false;
        Ok(())
    }

    /// Records the end of a poll: it took `work` packets, `pending` is whether the queue still holds some, `done` is the
    /// instance's result, and `by_context` is whether a context polled rather than an application.
    ///
    /// # Errors
    /// If the result breaks an invariant.
    pub fn handle_poll_done<F: Faults>(
        &mut self,
        now: Nanos,
        napi: &Napi<F>,
        work: u16,
        pending: bool,
        by_context: bool,
        done: &PollDone,
    ) -> Result<(), Violation> {
        self.polling = false;
        if !napi.settings().irq_suspend_timeout.is_zero() {
            self.last_poll = now;
        }
        self.waiting_since = pending.then_some(now);
        // A timer that was armed before this poll may obey older settings.
        let older = if napi.timer().is_some() && done.actions.timer.is_none() { self.bound } else { Nanos::ZERO };
        self.bound = bound(napi.settings()).max(older);
        let released = done.outcome == Outcome::Released;
        self.wanted &= !released;
        if matches!(napi.settings().hold, Some(Hold::Timer(_))) {
            let earned = work.saturating_mul(2).min(MAX_CREDIT.into()) as u8;
            let credit = self.credit.saturating_add(earned).min(MAX_CREDIT);
            self.credit = credit.checked_sub(by_context.into()).ok_or(Violation::CostlyHold)?;
        }
        let unmasks = done.actions.interrupt == Some(InterruptAction::Unmask);
        if released && unmasks && work > 0 && napi.settings().defers() {
            return Err(Violation::NotDeferred);
        }
        Ok(())
    }

    /// Records a call of the instance's `suspend` that returned this timer action.
    ///
    /// # Errors
    /// If the settings suspend interrupts, and the timer was not moved out.
    pub fn handle_suspend<F: Faults>(
        &self,
        now: Nanos,
        napi: &Napi<F>,
        timer: Option<TimerAction>,
    ) -> Result<(), Violation> {
        let timeout = napi.settings().irq_suspend_timeout;
        let suspends = napi.is_enabled() && napi.settings().defers() && !timeout.is_zero();
        if suspends && self.last_poll + timeout > now && timer.is_none() {
            return Err(Violation::NotSuspended { armed: napi.timer() });
        }
        Ok(())
    }

    /// Records that the timer was handled while the instance had no owner.
    pub fn handle_timer(&mut self) {
        self.wanted = false;
    }

    /// Checks what must hold between any two events, after all actions were executed.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn check<F: Faults>(&self, napi: &Napi<F>, around: &Surroundings) -> Result<(), Violation> {
        if napi.is_disabled() {
            return if self.polling { Err(Violation::PollAfterDisable) } else { Ok(()) };
        }
        if napi.context().is_some() && !around.runnable {
            return Err(Violation::OwnerGone);
        }
        if !napi.is_enabled() {
            return Ok(());
        }
        if napi.timer() != around.timer {
            return Err(Violation::TimerLost { expected: napi.timer(), armed: around.timer });
        }
        if napi.flags().contains(Flags::PREFER_BUSY_POLL) && !self.wanted {
            return Err(Violation::StalePrefer);
        }
        if napi.is_owned() { Ok(()) } else { self.check_unowned(napi, around) }
    }

    fn check_unowned<F: Faults>(&self, napi: &Napi<F>, around: &Surroundings) -> Result<(), Violation> {
        if self.announced {
            return Err(Violation::InterruptForgotten);
        }
        if napi.is_suspended() && !around.attended {
            return Err(Violation::SuspendedWithoutPoller);
        }
        let Some(until) = around.timer else {
            if napi.is_masked() {
                return Err(Violation::MaskedForEver);
            }
            let noticed = napi.is_unmasking() || around.interrupt_due;
            return if around.pending && !noticed { Err(Violation::LostWakeUp) } else { Ok(()) };
        };
        if let Some(since) = self.waiting_since
            && napi.is_masked()
            && until > since + self.bound
        {
            return Err(Violation::LongWait { since, until, bound: self.bound });
        }
        Ok(())
    }

    /// Moves the origin of time, as [`Napi::rebase`] does.
    pub fn rebase(&mut self, by: Nanos) {
        self.last_poll = self.last_poll.saturating_sub(by);
        self.waiting_since = self.waiting_since.map(|since| since.saturating_sub(by));
    }
}

/// Returns the longest time that the settings let a packet wait until its queue is polled.
fn bound(settings: &NapiSettings) -> Nanos {
    let hold = match settings.hold {
        Some(Hold::Spin(span) | Hold::Timer(span)) => span,
        None => Nanos::ZERO,
    };
    settings.gro_flush_timeout.max(settings.irq_suspend_timeout).max(hold)
}
