//! The NAPI instance: who polls a queue, whether it may interrupt, and when its timer looks at it.
//!
//! The mechanism is Linux's (`net/core/dev.c`, `Documentation/networking/napi.rst`), as a plain value. *Scheduled* is
//! ownership: whoever turns it on is the one poller until it lets go, so here it is not a bit but the owner itself, with
//! all that is only meaningful while there is one. An event that finds the instance owned leaves a mark (*missed*,
//! *prefer*) that the owner sees when it is done.
//!
//! A queue is looked at again for one of four reasons: it has an owner, its timer is armed, its interrupt is unmasked,
//! or it is disabled and nobody cares. Every change of state keeps at least one of them true.

mod complete;
mod owner;
#[cfg(test)]
mod tests;

use crate::fault::{Fault, Faults, Sound};
use crate::{Actions, Flags, InterruptAction, Nanos, NapiConfig, NapiSettings, PollContext, SuspendFrom, TimerAction};
use owner::{Busy, BusyPhase, Holding, Irq, Life, Owner, Ownership, Timer};

pub use owner::Poller;

/// One NAPI instance: the delivery state of one queue.
///
/// The caller owns the queue, the timer and the contexts; the instance says what to do with them ([`Actions`]).
/// Order of calls:
///
/// 1. [`new`](Self::new), then [`enable`](Self::enable): unmask, look at the queue, [`handle_unmasked`](Self::handle_unmasked).
/// 2. Events as they come, in any order: [`handle_interrupt`](Self::handle_interrupt),
///    [`handle_timer`](Self::handle_timer), [`handle_settings`](Self::handle_settings).
/// 3. A context that was handed the instance ([`Actions::run`]) polls: [`begin_poll`](Self::begin_poll) gives the budget,
///    the caller takes that many packets or fewer, [`handle_poll_done`](Self::handle_poll_done) takes their number and
///    says whether to poll again.
/// 4. An application polls: any number of times [`begin_busy_poll`](Self::begin_busy_poll) and `handle_poll_done`, then
///    [`end_busy_poll`](Self::end_busy_poll), which may ask for one last poll and its `handle_poll_done`.
/// 5. An application that took events calls [`suspend`](Self::suspend), one that found none [`resume`](Self::resume).
///
/// Calls that come too early, twice, or for nothing (a timer that was cancelled, an interrupt that had been on its way
/// when it was masked, a thread woken without need, an end without a beginning) change nothing that matters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Napi<F = Sound> {
    config: NapiConfig,
    settings: NapiSettings,
    life: Life,
    irq: Irq,
    /// *Scheduled*, and what only means something while somebody owns the instance.
    owner: Option<Ownership>,
    /// A busy poller found the instance owned, and wants it.
    prefer: bool,
    /// Deferrals left before the interrupt is unmasked.
    countdown: u32,
    /// The one timer, if it is armed.
    timer: Option<Timer>,
    /// When the last poll was over; only kept while irq-suspend-timeout is set.
    last_look: Nanos,
    /// Set by the last packet while hold is configured.
    holding: Option<Holding>,
    faults: F,
}

impl Napi {
    /// A disabled instance with a masked interrupt.
    pub fn new(config: NapiConfig, settings: NapiSettings) -> Self {
        Self::with_faults(config, settings, Sound)
    }
}

impl<F: Faults> Napi<F> {
    /// As [`Napi::new`], with a deliberate fault for the checks.
    pub fn with_faults(config: NapiConfig, settings: NapiSettings, faults: F) -> Self {
        Self {
            config,
            settings,
            life: Life::Disabled,
            irq: Irq::Masked,
            owner: None,
            prefer: false,
            countdown: 0,
            timer: None,
            last_look: Nanos::ZERO,
            holding: None,
            faults,
        }
    }

    /// The settings that the next schedule obeys.
    pub fn settings(&self) -> &NapiSettings {
        &self.settings
    }

    /// The fixed parameters.
    pub fn config(&self) -> &NapiConfig {
        &self.config
    }

    /// When the timer goes off, if it is armed.
    pub fn timer(&self) -> Option<Nanos> {
        self.timer.map(|timer| timer.at)
    }

    /// Whether the armed timer is the safety timer of an application that took events and will be back.
    pub fn is_suspended(&self) -> bool {
        self.timer.is_some_and(|timer| timer.suspends)
    }

    /// Whether the queue's interrupt is masked, as far as the caller has said.
    pub fn is_masked(&self) -> bool {
        self.irq == Irq::Masked
    }

    /// Whether an unmask was asked for that [`Self::handle_unmasked`] has not confirmed yet.
    pub fn is_unmasking(&self) -> bool {
        self.irq == Irq::Unmasking
    }

    /// Whether anybody owns the instance.
    pub fn is_owned(&self) -> bool {
        self.owner.is_some()
    }

    /// The context that owns the instance, unless nobody or a busy poller does.
    pub fn context(&self) -> Option<PollContext> {
        match self.owner?.owner {
            Owner::Context { context, .. } => Some(context),
            Owner::Busy(_) => None,
        }
    }

    /// The busy poller that owns the instance.
    pub fn busy_poller(&self) -> Option<Poller> {
        match self.owner?.owner {
            Owner::Busy(busy) => Some(busy.poller),
            Owner::Context { .. } => None,
        }
    }

    /// Whether the instance takes part in delivery; not while it waits for its owner to let go.
    pub fn is_enabled(&self) -> bool {
        self.life == Life::Enabled
    }

    /// Whether `disable` is complete: nobody polls, and nobody will.
    pub fn is_disabled(&self) -> bool {
        self.life == Life::Disabled
    }

    /// Deferrals left before the interrupt is unmasked.
    pub fn countdown(&self) -> u32 {
        self.countdown
    }

    /// The state in the kernel's vocabulary.
    pub fn flags(&self) -> Flags {
        let busy_thread = self.context() == Some(PollContext::BusyThread);
        let configured = self.settings.context;
        let threaded = matches!(configured, PollContext::Thread | PollContext::BusyThread);
        Flags::default()
            .with(Flags::SCHEDULED, self.owner.is_some())
            .with(Flags::MISSED, self.owner.is_some_and(|ownership| ownership.missed))
            .with(Flags::DISABLED, self.life != Life::Enabled)
            .with(Flags::IN_BUSY_POLL, self.busy_poller().is_some() || busy_thread)
            .with(Flags::PREFER_BUSY_POLL, self.prefer)
            .with(Flags::THREADED, threaded)
            .with(Flags::THREADED_BUSY_POLL, configured == PollContext::BusyThread)
    }

    /// Lets the instance take part in delivery. Unmasks; does nothing if it is enabled.
    ///
    /// An instance that is still waiting for its owner to let go is simply enabled again; then the caller must not
    /// wait for [`Actions::disabled`] any more.
    pub fn enable(&mut self) -> Actions {
        let was = std::mem::replace(&mut self.life, Life::Enabled);
        match was {
            Life::Disabled => self.unmask(),
            Life::Disabling | Life::Enabled => Actions::NONE,
        }
    }

    /// Takes the instance out of delivery: masks, and cancels the timer.
    ///
    /// A context that owns it finishes the poll it is in or is due for, a busy poller the iteration it is in; the event at
    /// which they let go has [`Actions::disabled`] set. Otherwise the answer itself has it set. Nothing polls after that.
    pub fn disable(&mut self) -> Actions {
        let mut actions = Actions::NONE;
        if self.life == Life::Disabled {
            return actions;
        }
        self.life = Life::Disabling;
        self.mask(&mut actions);
        self.cancel(&mut actions);
        // A busy poller between two iterations has nothing in hand. It will find that the instance is not its own any more.
        let waits = self.owner.is_some_and(|ownership| ownership.is_polling() || self.busy_poller().is_none());
        if !waits || self.faults.has(Fault::DisableDoesNotWait) {
            self.let_go(&mut actions);
        }
        actions
    }

    /// The queue interrupted: mask, and hand the instance to its context; or, if somebody owns it, leave a mark.
    pub fn handle_interrupt(&mut self, _now: Nanos) -> Actions {
        let mut actions = Actions::NONE;
        self.mask(&mut actions);
        self.schedule(&mut actions);
        actions
    }

    /// The interrupt was unmasked as asked, and afterwards the queue was looked at: `pending` says whether it holds
    /// packets. They raised no interrupt, so this does what the interrupt would have done.
    pub fn handle_unmasked(&mut self, now: Nanos, pending: bool) -> Actions {
        if self.irq != Irq::Unmasking {
            return Actions::NONE;
        }
        self.irq = Irq::Unmasked;
        if pending && !self.faults.has(Fault::UnmaskWithoutRecheck) {
            return self.handle_interrupt(now);
        }
        Actions::NONE
    }

    /// The timer went off. Before its deadline, or without one, nothing happens: a timer may be as lazy as it likes.
    ///
    /// Somebody who owns the instance is not disturbed: when they let go they arm the timer again or unmask.
    pub fn handle_timer(&mut self, now: Nanos) -> Actions {
        let mut actions = Actions::NONE;
        if self.timer.is_none_or(|timer| now < timer.at) {
            return actions;
        }
        self.timer = None;
        if self.faults.has(Fault::TimerIgnoresOwner) {
            self.owner = None;
        }
        if self.owner.is_none() {
            self.clear_prefer();
            self.schedule(&mut actions);
        }
        actions
    }

    /// New settings, which the next schedule and the next completion obey.
    ///
    /// Whoever owns the instance keeps it; a deadline that is armed stays, and is the last that the old settings decide.
    pub fn handle_settings(&mut self, settings: NapiSettings) {
        self.settings = settings;
        self.countdown = self.countdown.min(settings.defer_hard_irqs);
        if settings.hold.is_none() {
            self.holding = None;
        }
    }

    /// An application took events and will be back: move the timer out to irq-suspend-timeout.
    ///
    /// Without that timeout, or without deferral to fall back to, this does nothing. Nor does it once the timeout is over
    /// since the last poll, if it counts from there ([`SuspendFrom::LastPoll`]): then the queue is due for a look.
    pub fn suspend(&mut self, now: Nanos) -> Actions {
        let mut actions = Actions::NONE;
        let timeout = self.settings.irq_suspend_timeout;
        let suspends = !timeout.is_zero() && self.settings.defers() && self.is_enabled();
        if !suspends || self.faults.has(Fault::TimerNotMovedOnSuspend) {
            return actions;
        }
        let from = match self.config.suspend_from {
            SuspendFrom::LastPoll => self.last_look,
            SuspendFrom::Delivery => now,
        };
        if from + timeout > now {
            self.arm(&mut actions, Timer { at: from + timeout, suspends: true });
        }
        actions
    }

    /// The application found nothing, or is gone: schedule the instance now, so that it falls back to plain deferral.
    ///
    /// Without irq-suspend-timeout this does nothing, unless a suspension from before it was set to 0 is still on.
    pub fn resume(&mut self, _now: Nanos) -> Actions {
        let mut actions = Actions::NONE;
        let configured = !self.settings.irq_suspend_timeout.is_zero() && self.settings.defers();
        if configured || self.is_suspended() {
            self.schedule(&mut actions);
        }
        actions
    }

    /// A context begins to poll: how many packets it may take. `None` if the instance is not (or no longer) in that
    /// context's hands, or is being polled: then the context drops it from its list. The two kinds of thread count as one.
    pub fn begin_poll(&mut self, by: PollContext) -> Option<u16> {
        match &mut self.owner.as_mut()?.owner {
            Owner::Context { context, polling } if !*polling && context.is_same_place(by) => {
                *polling = true;
                Some(self.config.weight)
            }
            _ => None,
        }
    }

    /// One iteration of an application's busy poll: how many packets it may take, at most `budget`.
    ///
    /// Takes ownership, or goes on with the ownership that `poller` has. `None` if somebody else owns the instance, or it
    /// is disabled; with `prefer` the owner then yields early.
    pub fn begin_busy_poll(&mut self, poller: Poller, budget: u16, prefer: bool) -> Option<u16> {
        match &mut self.owner {
            None if self.life == Life::Enabled => {
                let phase = BusyPhase::Polling;
                self.owner = Some(Ownership::new(Owner::Busy(Busy { poller, budget, prefer, phase })));
                Some(budget)
            }
            Some(Ownership { owner: Owner::Busy(busy), .. })
                if busy.poller == poller && busy.phase == BusyPhase::Between =>
            {
                *busy = Busy { poller, budget, prefer, phase: BusyPhase::Polling };
                Some(budget)
            }
            _ => {
                self.prefer |= prefer;
                None
            }
        }
    }

    /// A busy poller stops. The answer's budget, if there is one, asks for one last poll, to be reported to
    /// [`Self::handle_poll_done`]: it is that poll which lets go.
    ///
    /// With *prefer* the timer is armed before that poll, so that the application has until then to come back.
    pub fn end_busy_poll(&mut self, now: Nanos, poller: Poller) -> (Option<u16>, Actions) {
        let mut actions = Actions::NONE;
        let Some(Ownership { owner: Owner::Busy(busy), missed }) = &mut self.owner else { return (None, actions) };
        if busy.poller != poller || busy.phase != BusyPhase::Between {
            return (None, actions);
        }
        *missed = false;
        let Busy { budget, prefer, .. } = *busy;
        let timer = if prefer { self.away_timer(now) } else { None };
        if let Some(timer) = timer {
            self.arm(&mut actions, timer);
        }
        let phase = BusyPhase::Ending { timer_armed: timer.is_some() };
        self.owner = Some(Ownership::new(Owner::Busy(Busy { poller, budget, prefer, phase })));
        (Some(budget), actions)
    }

    /// Moves the origin of time: every instant reads `by` less, or zero. For clocks that start anew, and for checkers to
    /// whom two states are the same if only their time differs.
    pub fn rebase(&mut self, by: Nanos) {
        self.last_look = self.last_look.saturating_sub(by);
        if let Some(timer) = &mut self.timer {
            timer.at = timer.at.saturating_sub(by);
        }
        if let Some(holding) = &mut self.holding {
            holding.until = holding.until.saturating_sub(by);
        }
    }

    /// Takes ownership for the configured context, or leaves the mark that somebody else wanted it.
    fn schedule(&mut self, actions: &mut Actions) {
        if self.life != Life::Enabled {
            return;
        }
        match &mut self.owner {
            Some(ownership) => ownership.missed = !self.faults.has(Fault::MissedFlagLost),
            None => {
                let context = self.settings.context;
                self.owner = Some(Ownership::new(Owner::Context { context, polling: false }));
                actions.run = Some(context);
            }
        }
    }

    fn mask(&mut self, actions: &mut Actions) {
        if self.irq != Irq::Masked {
            self.irq = Irq::Masked;
            actions.interrupt = Some(InterruptAction::Mask);
        }
    }

    fn unmask(&mut self) -> Actions {
        if self.irq == Irq::Unmasked {
            return Actions::NONE;
        }
        self.irq = Irq::Unmasking;
        Actions { interrupt: Some(InterruptAction::Unmask), ..Actions::NONE }
    }

    fn arm(&mut self, actions: &mut Actions, timer: Timer) {
        self.timer = Some(timer);
        actions.timer = Some(TimerAction::Arm(timer.at));
    }

    fn cancel(&mut self, actions: &mut Actions) {
        if self.timer.take().is_some() {
            actions.timer = Some(TimerAction::Cancel);
        }
    }

    fn clear_prefer(&mut self) {
        self.prefer &= self.faults.has(Fault::PreferNotCleared);
    }
}
