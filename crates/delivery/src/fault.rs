//! Deliberate faults: the broken variants of the core that its own checks must catch.
//!
//! The core asks a value of a type parameter whether a fault is injected. In all real use that type is [`Sound`], which
//! answers no at compile time, so the question costs nothing. The checks in `tests/` give it [`Injected`] instead.

/// One way in which the core could be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// An interrupt that finds the instance owned is not remembered.
    MissedFlagLost,
    /// After unmasking, nobody looks whether packets came in between.
    UnmaskWithoutRecheck,
    /// Events are delivered without moving the timer out.
    TimerNotMovedOnSuspend,
    /// Closing an epoll context leaves its instances suspended.
    NoResumeOnClose,
    /// About to sleep, the epoll context leaves its instances suspended.
    NoResumeBeforeSleep,
    /// What comes while the instances are resumed is slept on.
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
    /// The timer takes an instance that somebody else polls.
    TimerIgnoresOwner,
    /// Timer-driven hold re-arms after every empty poll.
    HoldTimerNeverEnds,
    /// Staying masked, completion forgets the timer.
    DeferralWithoutTimer,
}

impl Fault {
    /// Every fault, for the checks to go through.
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

/// Says which faults are injected.
pub trait Faults: Copy {
    /// Whether this fault is injected.
    fn has(self, fault: Fault) -> bool;
}

/// No faults: the core as it is meant.
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
