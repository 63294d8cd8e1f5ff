//! What the core asks its caller to do: plain values that come out of every event.

use crate::{Nanos, PollContext};

/// What must happen after an event at a NAPI instance.
///
/// Carry the parts out in the order of the fields, then go on with the next event. The value is small, copied and never
/// allocates; most events ask for nothing ([`Actions::NONE`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use = "an action that is not carried out stalls the queue"]
pub struct Actions {
    /// Mask or unmask the queue's interrupt.
    pub interrupt: Option<InterruptAction>,
    /// Arm or cancel the instance's one timer.
    pub timer: Option<TimerAction>,
    /// The instance has an owner now: hand it to this context, on the CPU that handled the event.
    pub run: Option<PollContext>,
    /// The owner has let go of an instance that was being disabled: whoever waits in `disable` may go on.
    pub disabled: bool,
}

impl Actions {
    /// Nothing to do.
    pub const NONE: Self = Self { interrupt: None, timer: None, run: None, disabled: false };

    /// Whether there is nothing to do.
    pub const fn is_none(&self) -> bool {
        self.interrupt.is_none() && self.timer.is_none() && self.run.is_none() && !self.disabled
    }
}

/// What to do with a queue's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InterruptAction {
    /// Keep the queue from interrupting. An interrupt that is already under way may still arrive; it is harmless.
    Mask,
    /// Let the queue interrupt again, *then* look whether it holds packets, and report that to
    /// [`Napi::handle_unmasked`](crate::Napi::handle_unmasked). Packets that came in between raise no interrupt.
    Unmask,
}

/// What to do with an instance's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimerAction {
    /// Call [`Napi::handle_timer`](crate::Napi::handle_timer) at this time or later; replaces an earlier deadline.
    Arm(Nanos),
    /// There is no deadline any more. A call that comes all the same is harmless.
    Cancel,
}

/// What became of an instance after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The poller owns the instance no longer and must not poll it again. [`Actions::run`] may name a new owner.
    Released,
    /// There may be more: poll again, after everybody else on the same list.
    Requeue,
    /// Nothing came, but the instance holds on: poll again, though not at the cost of other work.
    Holding,
    /// A busy poller's iteration is over, and the poller still owns the instance.
    StillBusy,
}

/// The answer to a finished poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "an action that is not carried out stalls the queue"]
pub struct PollDone {
    /// What became of the instance.
    pub outcome: Outcome,
    /// What must happen.
    pub actions: Actions,
}
