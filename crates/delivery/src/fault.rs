//! Deliberate faults: the broken variants of the core that its own checks must catch.
//!
//! The core asks a value of a type parameter whether a fault is injected. Outside of the checks that type is [`Sound`], which
//! answers no at compile time, so the call is optimised out. The checks in `tests/` use [`Injected`] instead.

/// A fault of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// An interrupt that finds the instance owned is not remembered.
    MissedFlagLost,
    /// After unmasking, the report of pending packets is ignored.
    UnmaskWithoutRecheck,
    /// Events are delivered without moving the timer out.
    TimerNotMovedOnSuspend,
    /// Closing an epoll context leaves its instances suspended.
    NoResumeOnClose,
    /// About to sleep, the epoll context leaves its instances suspended.
    NoResumeBeforeSleep,
    /// A wait sleeps although events came while it resumed the instances.
    SleepsOnEvents,
    /// Completion leaves the prefer flag set.
    PreferNotCleared,
    /// The countdown of deferrals is not refilled by work.
    CountdownNotRefilled,
    /// An instance that used its whole budget drops out of the poll list.
    RequeueLost,
    /// Disabling does not wait for the owner.
    DisableDoesNotWait,
    /// A busy poller that ends with a full poll and no timer neither reschedules nor unmasks.
    BusyPollEndForgotten,
    /// The timer takes an instance that another context polls.
    TimerIgnoresOwner,
    /// Timer-driven hold re-arms after every empty poll.
    HoldTimerNeverEnds,
    /// Completion stays masked without arming the timer.
    DeferralWithoutTimer,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 14] = [
        Self::MissedFlagLost,
        Self::UnmaskWithoutRecheck,
        Self::TimerNotMovedOnSuspend,
        Self::NoResumeOnClose,
        Self::NoResumeBeforeSleep,
        Self::SleepsOnEvents,
        Self::PreferNotCleared,
        Self::CountdownNotRefilled,
        Self::RequeueLost,
        Self::DisableDoesNotWait,
        Self::BusyPollEndForgotten,
        Self::TimerIgnoresOwner,
        Self::HoldTimerNeverEnds,
        Self::DeferralWithoutTimer,
    ];
}

/// The set of injected faults.
pub trait Faults: Copy {
    /// Returns whether this fault is injected.
    fn has(self, fault: Fault) -> bool;
}

/// No faults: the correct core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sound;

impl Faults for Sound {
    #[inline(always)]
    fn has(self, _: Fault) -> bool {
        false
    }
}

/// At most one fault, chosen at run time; for checks only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Injected(pub Option<Fault>);

impl Faults for Injected {
    fn has(self, fault: Fault) -> bool {
        self.0 == Some(fault)
    }
}
