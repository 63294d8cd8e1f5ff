//! The environment of a runtime: its time, its threads, and its sleeps on descriptors.
//!
//! The rest of the crate calls [`Env`]. In a production build that is [`System`]; its methods are the system calls
//! themselves, and its hooks are empty and inlined. In the unit tests it is `replay::Scripted`, which plays recorded or
//! random schedules, and behaves as [`System`] on threads that play none.

use abey_delivery::Nanos;
use rustix::event::Timespec;
use rustix::time::{ClockId, clock_gettime};

/// The environment that this build uses.
#[cfg(not(test))]
pub(crate) type Env = System;
#[cfg(test)]
pub(crate) type Env = crate::replay::Scripted;

/// What a sleep on descriptors found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The thread's own descriptor is readable: another thread woke it.
    pub(crate) unparked: bool,
    /// Which of the NIC descriptors are readable, in the order in which they were given; empty if none is.
    pub(crate) irqs: Vec<bool>,
    /// A descriptor of a [`KernelWait`](crate::KernelWait) is ready.
    pub(crate) kernel: bool,
}

impl Found {
    pub(crate) fn is_empty(&self) -> bool {
        !self.unparked && !self.kernel && self.irqs.is_empty()
    }
}

/// Time, threads and sleeps.
///
/// The methods without a body are the environment; the others are hooks at which a test may run other threads, and do
/// nothing in production.
pub(crate) trait Environment {
    /// Returns the time of a monotonic clock, in nanoseconds.
    fn monotonic() -> u64;

    /// Returns whether a runtime starts service threads and workers of its own.
    fn starts_threads() -> bool;

    /// Sleeps until `poll` finds something or `until` has come.
    ///
    /// `poll` waits on the thread's descriptors for a timeout at most. `timed` calls it, and ends at a time precisely.
    /// `has_irq` is whether the descriptors include the NIC's of the first attached shard; `None` if no shard is attached.
    fn sleep<P: FnMut(Option<&Timespec>) -> rustix::io::Result<Found>>(
        until: Option<Nanos>,
        has_irq: Option<bool>,
        poll: P,
        timed: impl FnOnce(Nanos, P) -> rustix::io::Result<Found>,
    ) -> rustix::io::Result<Found>;

    /// Runs before a busy-wait until `until`.
    #[inline]
    fn before_spin(_until: Nanos) {}

    /// Runs after a thread woke and did the work of its shards.
    #[inline]
    fn after_sleep() {}

    /// Runs after each step of a busy poll.
    #[inline]
    fn after_poll() {}

    /// Runs where a thread holds no lock and another thread may run.
    #[inline]
    fn preemption_point() {}
}

/// The environment of production.
#[derive(Debug)]
pub(crate) enum System {}

impl Environment for System {
    #[inline]
    fn monotonic() -> u64 {
        // Not `std::time::Instant`, whose arithmetic takes longer than the reading.
        let time = clock_gettime(ClockId::Monotonic);
        // Both fields are positive, and the sum overflows after 585 years.
        (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
    }

    #[inline]
    fn starts_threads() -> bool {
        true
    }

    #[inline]
    fn sleep<P: FnMut(Option<&Timespec>) -> rustix::io::Result<Found>>(
        until: Option<Nanos>,
        _has_irq: Option<bool>,
        mut poll: P,
        timed: impl FnOnce(Nanos, P) -> rustix::io::Result<Found>,
    ) -> rustix::io::Result<Found> {
        match until {
            Some(until) => timed(until, poll),
            None => poll(None),
        }
    }
}
