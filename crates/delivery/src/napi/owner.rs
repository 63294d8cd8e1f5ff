//! The owner of an instance, and the state that exists only while there is one.

use crate::{Nanos, PollContext};

/// The number of a busy poller. The caller gives one to every epoll context and every polling socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Poller(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ownership {
    pub(super) owner: Owner,
    /// An event tried to schedule the instance meanwhile.
    pub(super) missed: bool,
}

impl Ownership {
    pub(super) const fn new(owner: Owner) -> Self {
        Self { owner, missed: false }
    }

    /// Returns whether the owner is in a poll, rather than between two polls or before its first.
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
    /// In the last poll, whose end releases the instance.
    Ending { timer_armed: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Irq {
    Masked,
    /// The caller was asked to unmask, and has not reported the state of the queue afterwards yet.
    Unmasking,
    Unmasked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Enabled,
    /// Waits for the owner to release the instance.
    Disabling,
    Disabled,
}

/// How long the instance stays in poll mode, and how many polls that may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    /// The configured time after the last packet.
    pub(super) until: Nanos,
    /// Polls left, at two polls a packet, up to [`Self::MAX_CREDIT`].
    pub(super) credit: u8,
}

impl Holding {
    /// After the last packets there are at most two needless polls: the one after a poll that used its whole budget, and the
    /// timer's. More credit is not accumulated.
    pub(super) const MAX_CREDIT: u8 = 3;
}

/// The timer, and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Timer {
    pub(super) at: Nanos,
    /// It is the safety timer of a suspension.
    pub(super) suspends: bool,
}
