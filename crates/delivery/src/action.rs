//! Actions that events return and the caller executes.

use crate::{Nanos, PollContext};

/// Actions after an event at a NAPI instance.
///
/// The caller executes them in the order of the fields, before the next event. The value is small and `Copy`. Most events
/// return [`Actions::NONE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use = "an action that is not executed stalls the queue"]
pub struct Actions {
    /// Mask or unmask the queue's interrupt.
    pub interrupt: Option<InterruptAction>,
    /// Arm or cancel the instance's one timer.
    pub timer: Option<TimerAction>,
    /// The instance has an owner now: hand it to this context, on the CPU that handled the event.
    pub run: Option<PollContext>,
    /// The owner has released an instance that was being disabled: a thread that waits for `disable` may continue.
    pub disabled: bool,
}

impl Actions {
    /// No action.
    pub const NONE: Self = Self { interrupt: None, timer: None, run: None, disabled: false };

    /// Returns whether there is no action.
    pub const fn is_none(&self) -> bool {
        self.interrupt.is_none() && self.timer.is_none() && self.run.is_none() && !self.disabled
    }
}

/// An action on a queue's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterruptAction {
    /// Keep the queue from interrupting. An interrupt that is already under way may still arrive; it is harmless.
    Mask,
    /// Let the queue interrupt again, *then* check whether it holds packets, and report that to
    /// [`Napi::handle_unmasked`](crate::Napi::handle_unmasked). Packets that came in between raise no interrupt.
    Unmask,
}

/// An action on an instance's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimerAction {
    /// Call [`Napi::handle_timer`](crate::Napi::handle_timer) at this time or later; replaces an earlier deadline.
    Arm(Nanos),
    /// Remove the deadline. A call of `handle_timer` that comes nevertheless has no effect.
    Cancel,
}

/// The state of an instance after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The poller no longer owns the instance and must not poll it again. [`Actions::run`] may name a new owner.
    Released,
    /// The queue may hold more packets: poll again, after the other instances on the list.
    Requeue,
    /// The queue is empty, but the instance stays in poll mode: poll again when there is no other work.
    Holding,
    /// A busy poller's iteration is over, and the poller still owns the instance.
    StillBusy,
}

/// The result of a finished poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "an action that is not executed stalls the queue"]
pub struct PollDone {
    /// The state of the instance.
    pub outcome: Outcome,
    /// The actions to execute.
    pub actions: Actions,
}
