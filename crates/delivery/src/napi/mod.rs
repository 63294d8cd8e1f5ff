//! The NAPI instance: the owner that polls a queue, whether the queue may interrupt, and when its timer polls it.
//!
//! The mechanism is Linux's (`net/core/dev.c`, `Documentation/networking/napi.rst`), as a plain value. *Scheduled* is
//! ownership: the context that sets it is the one poller until it releases the instance. So here it is not a bit but the
//! owner itself, with the state that exists only while there is one. An event that finds the instance owned sets a mark
//! (*missed*, *prefer*) that the owner reads when it is done.
//!
//! Invariant: the instance has an owner, or its timer is armed, or its interrupt is unmasked, or it is disabled. So the
//! queue of an enabled instance is always polled again.

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
/// The caller owns the queue, the timer and the contexts; the instance returns what to do with them ([`Actions`]).
/// Order of calls:
///
/// 1. [`new`](Self::new), then [`enable`](Self::enable): unmask, check the queue, [`handle_unmasked`](Self::handle_unmasked).
/// 2. Events as they come, in any order: [`handle_interrupt`](Self::handle_interrupt),
///    [`handle_timer`](Self::handle_timer), [`handle_settings`](Self::handle_settings).
/// 3. A context that was handed the instance ([`Actions::run`]) polls: [`begin_poll`](Self::begin_poll) returns the
///    budget, the caller takes that many packets or fewer, [`handle_poll_done`](Self::handle_poll_done) takes their number
///    and returns whether to poll again.
/// 4. An application polls: any number of times [`begin_busy_poll`](Self::begin_busy_poll) and `handle_poll_done`, then
///    [`end_busy_poll`](Self::end_busy_poll), which may request one last poll and its `handle_poll_done`.
/// 5. An application that took events calls [`suspend`](Self::suspend), one that found none [`resume`](Self::resume).
///
/// Calls that come too early, twice, or without a cause are harmless: a timer that was cancelled, an interrupt that was
/// under way when it was masked, a thread that was woken without need, an end without a beginning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Napi<F = Sound> {
    config: NapiConfig,
    settings: NapiSettings,
    life: Life,
    irq: Irq,
    /// *Scheduled*, with the state that exists only while the instance has an owner.
    owner: Option<Ownership>,
    /// A busy poller that prefers to poll found the instance owned.
    prefer: bool,
    /// Deferrals left before the interrupt is unmasked.
    countdown: u32,
    /// The one timer, if it is armed.
    timer: Option<Timer>,
    /// When the last poll ended; only updated while irq-suspend-timeout is set.
    last_poll: Nanos,
    /// Set by the last packet while hold is configured.
    holding: Option<Holding>,
    faults: F,
}

impl Napi {
    /// Returns a disabled instance with a masked interrupt.
    pub fn new(config: NapiConfig, settings: NapiSettings) -> Self {
        Self::with_faults(config, settings, Sound)
    }
}

impl<F: Faults> Napi<F> {
    /// Returns an instance as [`Napi::new`] does, with a deliberate fault for the checks.
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
            last_poll: Nanos::ZERO,
            holding: None,
            faults,
        }
    }

    /// Returns the settings that apply from the next schedule on.
    pub fn settings(&self) -> &NapiSettings {
        &self.settings
    }

    /// Returns the fixed parameters.
    pub fn config(&self) -> &NapiConfig {
        &self.config
    }

    /// Returns when the timer fires, if it is armed.
    pub fn timer(&self) -> Option<Nanos> {
        self.timer.map(|timer| timer.at)
    }

    /// Returns whether interrupts are suspended: the armed timer is the safety timer of an application that took events.
    pub fn is_suspended(&self) -> bool {
        self.timer.is_some_and(|timer| timer.suspends)
    }

    /// Returns whether the queue's interrupt is masked, as last reported by the caller.
    pub fn is_masked(&self) -> bool {
        self.irq == Irq::Masked
    }

    /// Returns whether an unmask was requested that [`Self::handle_unmasked`] has not confirmed yet.
    pub fn is_unmasking(&self) -> bool {
        self.irq == Irq::Unmasking
    }

    /// Returns whether the instance has an owner.
    pub fn is_owned(&self) -> bool {
        self.owner.is_some()
    }

    /// Returns the context that owns the instance; `None` if it has no owner or a busy poller owns it.
    pub fn context(&self) -> Option<PollContext> {
        match self.owner?.owner {
            Owner::Context { context, .. } => Some(context),
            Owner::Busy(_) => None,
        }
    }

    /// Returns the busy poller that owns the instance, if any.
    pub fn busy_poller(&self) -> Option<Poller> {
        match self.owner?.owner {
            Owner::Busy(busy) => Some(busy.poller),
            Owner::Context { .. } => None,
        }
    }

    /// Returns whether the instance is enabled; false while it waits for its owner to release it.
    pub fn is_enabled(&self) -> bool {
        self.life == Life::Enabled
    }

    /// Returns whether `disable` is complete: there is no poll, and there will be none.
    pub fn is_disabled(&self) -> bool {
        self.life == Life::Disabled
    }

    /// Returns the number of deferrals left before the interrupt is unmasked.
    pub fn countdown(&self) -> u32 {
        self.countdown
    }

    /// Returns the state as the kernel's flags.
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

    /// Enables the instance and unmasks. Does nothing if it is enabled.
    ///
    /// An instance that still waits for its owner to release it is enabled again. The caller must then no longer wait for
    /// [`Actions::disabled`].
    pub fn enable(&mut self) -> Actions {
        let was = std::mem::replace(&mut self.life, Life::Enabled);
        match was {
            Life::Disabled => self.unmask(),
            Life::Disabling | Life::Enabled => Actions::NONE,
        }
    }

    /// Disables the instance: masks, and cancels the timer.
    ///
    /// A context that owns it finishes its present or next poll, a busy poller its present iteration; the event that
    /// releases the instance has [`Actions::disabled`] set. Without such an owner the returned value has it set. There is no
    /// poll after that.
    pub fn disable(&mut self) -> Actions {
        let mut actions = Actions::NONE;
        if self.life == Life::Disabled {
            return actions;
        }
        self.life = Life::Disabling;
        self.mask(&mut actions);
        self.cancel(&mut actions);
        // A busy poller between two iterations is not in a poll. Its next call finds that it no longer owns the instance.
        let waits = self.owner.is_some_and(|ownership| ownership.is_polling() || self.busy_poller().is_none());
        if !waits || self.faults.has(Fault::DisableDoesNotWait) {
            self.release(&mut actions);
        }
        actions
    }

    /// Handles an interrupt of the queue: masks, and hands the instance to its context. If it has an owner, marks it
    /// *missed*.
    pub fn handle_interrupt(&mut self, _now: Nanos) -> Actions {
        let mut actions = Actions::NONE;
        self.mask(&mut actions);
        self.schedule(&mut actions);
        actions
    }

    /// Confirms that the interrupt was unmasked. `pending` is whether the queue held packets when it was checked afterwards.
    /// Those raised no interrupt, so this call has the effect of one.
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

    /// Handles the timer. Before the deadline, or without one, this does nothing, so a caller may leave an old timer running.
    ///
    /// An owner keeps the instance: when it releases it, it arms the timer again or unmasks.
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

    /// Sets new settings, which apply from the next schedule and the next completion on.
    ///
    /// An owner keeps the instance. An armed deadline stays.
    pub fn handle_settings(&mut self, settings: NapiSettings) {
        self.settings = settings;
        self.countdown = self.countdown.min(settings.defer_hard_irqs);
        if settings.hold.is_none() {
            self.holding = None;
        }
    }

    /// Suspends interrupts while an application handles events: moves the timer out to irq-suspend-timeout.
    ///
    /// Does nothing without that timeout, or without deferral to fall back to. Does nothing either if the timeout counts
    /// from the last poll ([`SuspendFrom::LastPoll`]) and has passed since: then the queue is due for a poll.
    pub fn suspend(&mut self, now: Nanos) -> Actions {
        let mut actions = Actions::NONE;
        let timeout = self.settings.irq_suspend_timeout;
        let suspends = !timeout.is_zero() && self.settings.defers() && self.is_enabled();
        if !suspends || self.faults.has(Fault::TimerNotMovedOnSuspend) {
            return actions;
        }
        let from = match self.config.suspend_from {
            SuspendFrom::LastPoll => self.last_poll,
            SuspendFrom::Delivery => now,
        };
        if from + timeout > now {
            self.arm(&mut actions, Timer { at: from + timeout, suspends: true });
        }
        actions
    }

    /// Ends a suspension because the application found no events, or closed its epoll: schedules the instance, so that it
    /// falls back to plain deferral.
    ///
    /// Does nothing without irq-suspend-timeout, unless a suspension from before it was set to 0 is still in force.
    pub fn resume(&mut self, _now: Nanos) -> Actions {
        let mut actions = Actions::NONE;
        let configured = !self.settings.irq_suspend_timeout.is_zero() && self.settings.defers();
        if configured || self.is_suspended() {
            self.schedule(&mut actions);
        }
        actions
    }

    /// Begins a poll by a context. Returns the number of packets it may take. Returns `None` if that context does not own the
    /// instance, or is polling it: then the context drops it from its list. The two kinds of thread count as one context.
    pub fn begin_poll(&mut self, by: PollContext) -> Option<u16> {
        match &mut self.owner.as_mut()?.owner {
            Owner::Context { context, polling } if !*polling && context.is_same_place(by) => {
                *polling = true;
                Some(self.config.weight)
            }
            _ => None,
        }
    }

    /// Begins one iteration of an application's busy poll. Returns the number of packets it may take, at most `budget`.
    ///
    /// Takes ownership, or continues the ownership of `poller`. Returns `None` if the instance has another owner or is
    /// disabled; with `prefer` the owner then yields early.
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

    /// Ends a busy poll. If the result has a budget, the caller makes one last poll and reports it to
    /// [`Self::handle_poll_done`], which releases the instance.
    ///
    /// With *prefer* the timer is armed before that poll; the application may poll again until it fires.
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

    /// Moves the origin of time: every instant becomes smaller by `by`, or zero. Used when a clock starts anew, and by
    /// checkers to which two states are equal if only their time differs.
    pub fn rebase(&mut self, by: Nanos) {
        self.last_poll = self.last_poll.saturating_sub(by);
        if let Some(timer) = &mut self.timer {
            timer.at = timer.at.saturating_sub(by);
        }
        if let Some(holding) = &mut self.holding {
            holding.until = holding.until.saturating_sub(by);
        }
    }

    /// Takes ownership for the configured context, or marks the instance *missed* if it has an owner.
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
