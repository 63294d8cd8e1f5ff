//! The invariants of delivery, checked from outside around every event.
//!
//! A [`Monitor`] watches one instance. It is told what the caller sees for itself (packets that arrive, polls that begin
//! and end) and compares that with what the instance says. The model checker, the property tests and the simulator use the
//! same one. It is a small plain value too, so that it can be part of an explored state.
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
    /// Packets wait, and nothing will look at them.
    #[error("invariant 2, no lost wake-up: packets wait, and no owner, timer or interrupt will ever look at them")]
    LostWakeUp,
    /// A wait looked at events, which an edge-triggered context tells once, and does not tell them.
    #[error("invariant 2, no lost wake-up: a wait took events, and then slept or returned without them")]
    EventsLost,
    /// An interrupt found an owner, who let go without another poll.
    #[error("invariant 2, no lost wake-up: an interrupt came while somebody owned the instance, and was forgotten")]
    InterruptForgotten,
    /// Nobody will ever unmask.
    #[error("invariant 3, masked implies owned or timed: the interrupt is masked, with no owner and no timer")]
    MaskedForEver,
    /// The owner is not going to poll.
    #[error("invariant 3, masked implies owned or timed: the instance is owned by a context that has dropped it")]
    OwnerGone,
    /// The caller's timer and the instance's differ.
    #[error(
        "invariant 3, masked implies owned or timed: the instance counts on a timer at {expected:?}, and {armed:?} is armed"
    )]
    TimerLost {
        /// When the instance says it goes off.
        expected: Option<Nanos>,
        /// When it does.
        armed: Option<Nanos>,
    },
    /// A packet may wait longer than the settings allow.
    #[error(
        "invariant 4, bounded wait: packets wait since {since}, the next look is at {until}, and the settings allow {bound}"
    )]
    LongWait {
        /// The later of the first packet's arrival and the last look.
        since: Nanos,
        /// When the timer goes off.
        until: Nanos,
        /// The longest of the timeouts.
        bound: Nanos,
    },
    /// Interrupts are suspended for an application that is not coming back.
    #[error("invariant 4, bounded wait: interrupts are suspended though no application that polls is awake")]
    SuspendedForNobody,
    /// Suspending did not move the timer out.
    #[error(
        "invariant 4, bounded wait: events were delivered, and the timer is at {armed:?} instead of at the suspend timeout"
    )]
    NotSuspended {
        /// When the timer goes off.
        armed: Option<Nanos>,
    },
    /// Work came under deferral, and the interrupt was unmasked all the same.
    #[error("deferral: a poll found packets, and yet the interrupt is unmasked instead of the timer armed")]
    NotDeferred,
    /// Nobody wants to busy poll, and yet the owner is told to yield.
    #[error("prefer: the flag is set though no busy poller asked for it since the instance was last let go")]
    StalePrefer,
    /// A poll after `disable` was complete.
    #[error("invariant 6, disabled: a poll is under way, or begins, though the instance said that it is disabled")]
    PollAfterDisable,
    /// More than two polls a packet.
    #[error("invariant 7, hold: polls by the timer cost more than two a packet")]
    CostlyHold,
}

/// What the caller sees of a queue and its surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Surroundings {
    /// The queue holds packets.
    pub pending: bool,
    /// An interrupt is on its way without any further packet: raised and not handled yet, or being coalesced.
    pub interrupt_due: bool,
    /// The instance is on a context's list, in a thread that is awake, or being polled.
    pub runnable: bool,
    /// When the caller's timer for the instance goes off.
    pub timer: Option<Nanos>,
    /// An application that polls the instance is awake: it processes events, or is on its way through a wait.
    pub attended: bool,
}

/// Watches one instance. Order of calls: a `handle_*` right after every event, then [`check`](Self::check).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Monitor {
    polling: bool,
    /// An interrupt was handled, and no poll has begun since.
    announced: bool,
    /// A busy poller that prefers to poll was turned away.
    wanted: bool,
    /// The arrival of the first packet since the last look.
    waiting_since: Option<Nanos>,
    /// When the last poll was over; only kept while irq-suspend-timeout is set.
    last_look: Nanos,
    /// The longest timeout of the settings that decide about the next look.
    bound: Nanos,
    /// Polls that packets have paid for while hold by timer is set, at most [`MAX_CREDIT`].
    credit: u8,
}

/// Credit is forgotten beyond this: a large batch does not pay for needless polls much later.
const MAX_CREDIT: u8 = 4;

impl Monitor {
    /// For an instance that has these settings.
    pub fn new(settings: &NapiSettings) -> Self {
        Self { bound: bound(settings), ..Self::default() }
    }

    /// A packet arrived in the queue.
    pub fn handle_arrival(&mut self, now: Nanos) {
        self.waiting_since.get_or_insert(now);
    }

    /// An interrupt is about to be handled; `pending` says whether the queue holds packets.
    pub fn handle_interrupt<F: Faults>(&mut self, napi: &Napi<F>, pending: bool) {
        if !napi.is_enabled() {
            return;
        }
        self.announced = true;
        if !pending || napi.is_owned() {
            // An interrupt for nothing pays for its own poll, and so does one that makes an owner poll again.
            self.pay();
        }
    }

    /// The instance's `resume` is about to be called. The poll that it asks for is the application's, not the timer's.
    pub fn handle_resume(&mut self) {
        self.pay();
    }

    fn pay(&mut self) {
        self.credit = self.credit.saturating_add(1).min(MAX_CREDIT);
    }

    /// The settings were changed to these.
    pub fn handle_settings(&mut self, settings: &NapiSettings) {
        self.bound = self.bound.max(bound(settings));
        self.credit = MAX_CREDIT;
    }

    /// The instance's `disable` was called.
    pub fn handle_disable(&mut self) {
        self.announced = false;
    }

    /// A busy poller was turned away.
    pub fn handle_refused(&mut self, prefer: bool) {
        self.wanted |= prefer;
    }

    /// A poll begins.
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

    /// A poll is over: it took `work` packets, there are still some in the queue or not (`pending`), the instance said
    /// `done`, and it was in a context rather than a busy poll (`by_context`).
    ///
    /// # Errors
    /// If what the instance said breaks an invariant.
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
            self.last_look = now;
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

    /// The instance's `suspend` was called and gave this timer action.
    ///
    /// # Errors
    /// If the settings say that interrupts are to be suspended, and the timer was not moved out.
    pub fn handle_suspend<F: Faults>(
        &self,
        now: Nanos,
        napi: &Napi<F>,
        timer: Option<TimerAction>,
    ) -> Result<(), Violation> {
        let timeout = napi.settings().irq_suspend_timeout;
        let suspends = napi.is_enabled() && napi.settings().defers() && !timeout.is_zero();
        if suspends && self.last_look + timeout > now && timer.is_none() {
            return Err(Violation::NotSuspended { armed: napi.timer() });
        }
        Ok(())
    }

    /// The timer was handled while nobody owned the instance.
    pub fn handle_timer(&mut self) {
        self.wanted = false;
    }

    /// Checks what must hold between any two events, with all actions carried out.
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
            return Err(Violation::SuspendedForNobody);
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
        self.last_look = self.last_look.saturating_sub(by);
        self.waiting_since = self.waiting_since.map(|since| since.saturating_sub(by));
    }
}

/// The longest that settings let a packet wait for somebody to look at its queue.
fn bound(settings: &NapiSettings) -> Nanos {
    let hold = match settings.hold {
        Some(Hold::Spin(span) | Hold::Timer(span)) => span,
        None => Nanos::ZERO,
    };
    settings.gro_flush_timeout.max(settings.irq_suspend_timeout).max(hold)
}
