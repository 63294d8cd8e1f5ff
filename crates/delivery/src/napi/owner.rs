//! Who owns an instance, and what is only known while they do.

use crate::{Nanos, PollContext};

/// Who busy polls: a number that the caller gives every epoll context and every polling socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Poller(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ownership {
    pub(super) owner: Owner,
    /// Somebody tried to schedule the instance meanwhile.
    pub(super) missed: bool,
}

impl Ownership {
    pub(super) const fn new(owner: Owner) -> Self {
        Self { owner, missed: false }
    }

    /// Whether the owner is in a poll, rather than between two or waiting for its turn.
    pub(super) fn is_polling(&self) -> bool {
        match self.owner {
            Owner::Context { polling, .. } => polling,
            Owner::Busy(busy) => busy.phase != BusyPhase::Between,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    /// A context has the instance on its list, or is polling it right now.
    Context { context: PollContext, polling: bool },
    /// An application is busy polling.
    Busy(Busy),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Busy {
    pub(super) poller: Poller,
    pub(super) budget: u16,
    pub(super) prefer: bool,
    pub(super) phase: BusyPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum BusyPhase {
    /// Between two iterations.
    Between,
    /// In an iteration.
    Polling,
    /// In the last poll, whose end lets go.
    Ending { timer_armed: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Irq {
    Masked,
    /// The caller was asked to unmask, and has not yet said what it found in the queue afterwards.
    Unmasking,
    Unmasked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Enabled,
    /// Waits for the owner to let go.
    Disabling,
    Disabled,
}

/// How long poll mode is held, and what it may still cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    /// The configured time after the last packet.
    pub(super) until: Nanos,
    /// Polls that the packets so far still pay for, at two polls a packet, up to [`Self::MOST`].
    pub(super) credit: u8,
}

impl Holding {
    /// After the last packets come at most two needless polls: the one after a poll that used its whole budget, and the
    /// timer's. More than what they need is not saved up.
    pub(super) const MOST: u8 = 3;
}

/// The one timer, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Timer {
    pub(super) at: Nanos,
    /// It is the safety timer of an application that is to come back.
    pub(super) suspends: bool,
}
