//! The end of a poll: poll again, or release the instance with the timer armed, with the interrupt unmasked, or rescheduled.

use super::Napi;
use super::owner::{Busy, BusyPhase, Holding, Life, Owner, Ownership, Timer};
use crate::fault::{Fault, Faults};
use crate::{Actions, Hold, Nanos, Outcome, PollContext, PollDone, SuspendVariant};

impl<F: Faults> Napi<F> {
    /// Ends a poll that took `work` packets from the queue. Fewer than the budget mean that the queue is empty.
    ///
    /// Without a poll under way this does nothing, and the outcome is [`Outcome::Released`].
    pub fn handle_poll_done(&mut self, now: Nanos, work: u16) -> PollDone {
        let Some(ownership) = self.owner else {
            return PollDone { outcome: Outcome::Released, actions: Actions::NONE };
        };
        if !ownership.is_polling() {
            return PollDone { outcome: Outcome::Released, actions: Actions::NONE };
        }
        if !self.settings.irq_suspend_timeout.is_zero() {
            self.last_poll = now;
        }
        match ownership.owner {
            Owner::Context { context, .. } => self.context_polled(now, context, work),
            Owner::Busy(busy) => self.busy_polled(now, busy, work),
        }
    }

    fn context_polled(&mut self, now: Nanos, context: PollContext, work: u16) -> PollDone {
        if self.life != Life::Enabled {
            return self.released_for_disable();
        }
        self.note_work(now, work);
        let full = work >= self.config.weight;
        let never_sleeps = context == PollContext::BusyThread && self.settings.context == PollContext::BusyThread;
        if never_sleeps || (full && !self.prefer) {
            return self.keep(Outcome::Requeue);
        }
        if !full && !self.prefer && self.holds_by_spinning(now) {
            return self.keep(Outcome::Holding);
        }
        self.complete(now, work, full, self.prefer)
    }

    fn busy_polled(&mut self, now: Nanos, busy: Busy, work: u16) -> PollDone {
        if self.life != Life::Enabled {
            return self.released_for_disable();
        }
        self.note_work(now, work);
        let BusyPhase::Ending { timer_armed } = busy.phase else { return self.keep(Outcome::StillBusy) };
        if work < busy.budget {
            // Only contexts hold by spinning: an application that stops polling starts no spinning context.
            return self.complete(now, work, false, self.prefer || busy.prefer);
        }
        // The queue may hold more packets. If the application does not poll it, an armed timer does. Without a timer, or if
        // an interrupt came during this last poll, the context does.
        let mut actions = Actions::NONE;
        let missed = self.owner.take().is_some_and(|ownership| ownership.missed);
        self.clear_prefer();
        if missed || (!timer_armed && !self.faults.has(Fault::BusyPollEndForgotten)) {
            self.schedule(&mut actions);
        } else if timer_armed && self.timer.is_none() {
            // The timer fired during this last poll and found an owner. It is armed again, so that the queue is polled even
            // if the application does not return. (Linux does neither.)
            match self.away_timer(now) {
                Some(timer) => self.arm(&mut actions, timer),
                None => self.schedule(&mut actions),
            }
        }
        PollDone { outcome: Outcome::Released, actions }
    }

    /// Ends a poll after which the owner keeps the instance.
    fn keep(&mut self, outcome: Outcome) -> PollDone {
        match &mut self.owner {
            Some(Ownership { owner: Owner::Context { polling, .. }, .. }) => *polling = false,
            Some(Ownership { owner: Owner::Busy(busy), .. }) => busy.phase = BusyPhase::Between,
            None => {}
        }
        PollDone { outcome, actions: Actions::NONE }
    }

    /// Releases the instance. The queue is empty, or (`more`) a busy poller asked for it.
    fn complete(&mut self, now: Nanos, work: u16, more: bool, prefer: bool) -> PollDone {
        let mut actions = Actions::NONE;
        if work > 0 && !self.faults.has(Fault::CountdownNotRefilled) {
            self.countdown = self.settings.defer_hard_irqs;
        }
        let timer = self.next_timer(now, prefer);
        let missed = self.owner.take().is_some_and(|ownership| ownership.missed);
        self.clear_prefer();
        match timer {
            _ if missed => self.schedule(&mut actions),
            Some(_) if self.faults.has(Fault::DeferralWithoutTimer) => {}
            Some(timer) => self.arm(&mut actions, timer),
            None if more => self.schedule(&mut actions),
            None => {
                actions = self.unmask();
                self.cancel(&mut actions);
            }
        }
        PollDone { outcome: Outcome::Released, actions }
    }

    /// Returns the timer to arm if the interrupt stays masked. Uses up one deferral.
    fn next_timer(&mut self, now: Nanos, prefer: bool) -> Option<Timer> {
        if let (Some(Hold::Timer(span)), Some(holding)) = (self.settings.hold, self.holding) {
            if self.faults.has(Fault::HoldTimerNeverEnds) {
                return Some(Timer { at: now + span, suspends: false });
            }
            if now < holding.until && holding.credit > 0 {
                return Some(Timer { at: holding.until, suspends: false });
            }
        }
        self.holding = None;
        if prefer && let Some(timer) = self.early_suspension(now) {
            return Some(timer);
        }
        if self.countdown == 0 {
            return None;
        }
        self.countdown -= 1;
        let timeout = self.settings.gro_flush_timeout;
        (!timeout.is_zero()).then(|| Timer { at: now + timeout, suspends: false })
    }

    /// Returns the timer for the time until a busy poller with *prefer* polls again. Refills the countdown.
    pub(super) fn away_timer(&mut self, now: Nanos) -> Option<Timer> {
        self.countdown = self.settings.defer_hard_irqs;
        let deferral = Timer { at: now + self.settings.gro_flush_timeout, suspends: false };
        self.early_suspension(now).or(self.settings.defers().then_some(deferral))
    }

    fn early_suspension(&self, now: Nanos) -> Option<Timer> {
        let timeout = self.settings.irq_suspend_timeout;
        let applies = self.config.suspend == SuspendVariant::Early && !timeout.is_zero();
        applies.then(|| Timer { at: now + timeout, suspends: true })
    }

    /// Records how long these packets keep the instance in poll mode.
    fn note_work(&mut self, now: Nanos, work: u16) {
        let Some(Hold::Spin(span) | Hold::Timer(span)) = self.settings.hold else { return };
        let credit = self.holding.map_or(0, |holding| holding.credit);
        if work > 0 {
            let earned = work.saturating_mul(2).saturating_sub(1).min(Holding::MAX_CREDIT.into()) as u8;
            self.holding = Some(Holding { until: now + span, credit: Holding::MAX_CREDIT.min(credit + earned) });
        } else if let Some(holding) = &mut self.holding {
            holding.credit = credit.saturating_sub(1);
        }
    }

    fn holds_by_spinning(&self, now: Nanos) -> bool {
        matches!(self.settings.hold, Some(Hold::Spin(_))) && self.holding.is_some_and(|holding| now < holding.until)
    }

    fn released_for_disable(&mut self) -> PollDone {
        let mut actions = Actions::NONE;
        self.release(&mut actions);
        PollDone { outcome: Outcome::Released, actions }
    }

    /// Removes the owner and disables the instance.
    pub(super) fn release(&mut self, actions: &mut Actions) {
        self.owner = None;
        self.prefer = false;
        self.holding = None;
        self.countdown = 0;
        self.life = Life::Disabled;
        self.cancel(actions);
        actions.disabled = true;
    }
}
