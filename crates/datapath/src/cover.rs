//! Who looks after a shard's interrupt and timer: the hand-over between the service thread and a thread that waits.
//!
//! A shard must at all times be somebody's: its interrupt, when unmasked, is waited on; its deadline, when it has one, is
//! slept to. There are two who can do it:
//!
//! - the *service thread*, which sleeps in a kernel epoll that holds the NIC's descriptor (one-shot: a signal disarms it)
//!   and a timer descriptor. Both are set from outside by `EPOLL_CTL_MOD` and `timerfd_settime`, so the thread is never
//!   woken to be told something;
//! - the *driver*, an application's thread inside a wait. It has taken the shard over: while it is awake it looks by
//!   itself, and asleep it has the descriptor and the deadline in its own `ppoll`.
//!
//! The rules, all under the shard's lock:
//!
//! 1. A wait becomes driver at its first step at the shard, if nobody is. It disarms the descriptor in the service
//!    thread's epoll before it sleeps on it itself, so that an interrupt wakes one thread.
//! 2. Everybody who lets go of the lock *settles*: unmasked, not armed and without a driver, the descriptor is armed at
//!    the service thread; a deadline earlier than what the timer and a sleeping driver cover is set at the timer. A
//!    deadline that moved *out* is left alone: the timer goes off early, finds that, and is set again.
//! 3. A driver that leaves its wait gives the shard back, which is the same settling without it.
//!
//! 4. A driver that sleeps past a deferral (`Core::may_oversleep`) has the descriptor in its sleep although the interrupt is
//!    masked, and no deadline; the instance's timer is then nobody's, and TCP's timers are the service thread's.
//!
//! Since every change settles before the lock is free again, there is no moment in which nobody is responsible. In
//! `suspendX` and `fullbusy` a wait that is busy masks nothing and arms nothing, and its deadlines only move out, so
//! settling finds nothing to do: no system call.
//!
//! This file only decides; it is pure, and `tests/interleavings` runs it under loom inside the lock.

/// Who waits for the shard in an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Driver {
    /// The number of the waiting thread.
    pub(crate) thread: u32,
    /// It sleeps; `None`: it is awake and about to look.
    pub(crate) asleep: Option<Asleep>,
}

/// What a sleeping driver looks after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asleep {
    /// It looks at this time (nanoseconds) at the latest.
    pub(crate) until: u64,
    /// The interrupt wakes it. A descriptor that is readable while masked would wake it for nothing, so a masked one
    /// does not; should somebody unmask meanwhile, the service thread is told.
    pub(crate) line: bool,
}

/// Responsibility for one shard.
#[derive(Debug, Default)]
pub(crate) struct Cover {
    /// The descriptor is armed in the service thread's epoll.
    armed: bool,
    /// When the timer goes off.
    timer: Option<u64>,
    driver: Option<Driver>,
}

/// System calls to be made, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Orders {
    /// Arm (`true`) or disarm the descriptor at the service thread.
    pub(crate) line: Option<bool>,
    /// Set the timer to this time.
    pub(crate) timer: Option<u64>,
}

impl Cover {
    /// Whether `thread` drives.
    pub(crate) fn is_driver(&self, thread: u32) -> bool {
        self.driver.is_some_and(|driver| driver.thread == thread)
    }

    /// `thread` wants to drive. Whether it does.
    pub(crate) fn take(&mut self, thread: u32) -> bool {
        match &mut self.driver {
            None => self.driver = Some(Driver { thread, asleep: None }),
            Some(driver) if driver.thread == thread => driver.asleep = None,
            Some(_) => return false,
        }
        true
    }

    /// The driver goes to sleep, on the interrupt if that is `unmasked`, and looks again at `until` at the latest.
    pub(crate) fn sleep(&mut self, until: Option<u64>, unmasked: bool) -> Orders {
        let mut orders = Orders::default();
        let Some(driver) = &mut self.driver else { return orders };
        driver.asleep = Some(Asleep { until: until.unwrap_or(u64::MAX), line: unmasked });
        if unmasked && std::mem::take(&mut self.armed) {
            orders.line = Some(false);
        }
        // A timer that would go off meanwhile for nothing is left alone: stopping it means programming the hardware twice,
        // which was seen to cost more than the wake-up (in `defer20` a quarter of the CPU).
        orders
    }

    /// `thread` leaves its wait. To be followed by [`Self::settle`].
    pub(crate) fn leave(&mut self, thread: u32) {
        if self.is_driver(thread) {
            self.driver = None;
        }
    }

    /// The service thread was woken by the descriptor, which that disarmed.
    pub(crate) fn line_fired(&mut self) {
        self.armed = false;
    }

    /// The service thread was woken by the timer.
    pub(crate) fn timer_fired(&mut self) {
        self.timer = None;
    }

    /// When the service thread looks by itself.
    #[cfg(test)]
    pub(crate) fn timer(&self) -> Option<u64> {
        self.timer
    }

    /// Makes somebody responsible. `unmasked`: the interrupt may come; `deadline`: when somebody must look.
    pub(crate) fn settle(&mut self, unmasked: bool, deadline: Option<u64>) -> Orders {
        let mut orders = Orders::default();
        let listens = self.driver.is_some_and(|driver| driver.asleep.is_none_or(|asleep| asleep.line));
        if unmasked && !self.armed && !listens {
            self.armed = true;
            orders.line = Some(true);
        }
        let driver = self.driver.map(|driver| driver.asleep.map_or(0, |asleep| asleep.until));
        let covered = self.timer.into_iter().chain(driver).min();
        if let Some(deadline) = deadline
            && covered.is_none_or(|covered| deadline < covered)
        {
            self.timer = Some(deadline);
            orders.timer = Some(deadline);
        }
        orders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_moves_out_costs_nothing_and_one_that_moves_in_one_call() {
        let mut cover = Cover::default();
        assert_eq!(cover.settle(false, Some(100)).timer, Some(100));
        assert_eq!(cover.settle(false, Some(900)), Orders::default());
        assert_eq!(cover.settle(false, Some(50)).timer, Some(50));
        cover.timer_fired();
        assert_eq!(cover.settle(false, Some(900)).timer, Some(900));
    }

    #[test]
    fn a_driver_covers_and_gives_back() {
        let mut cover = Cover::default();
        assert_eq!(cover.settle(true, None).line, Some(true));
        assert!(cover.take(7) && !cover.take(8));
        assert_eq!(cover.settle(true, Some(5)), Orders::default(), "awake, it looks by itself");
        assert_eq!(cover.sleep(Some(20), true).line, Some(false));
        assert_eq!(cover.settle(true, Some(30)), Orders::default());
        assert_eq!(cover.settle(true, Some(10)).timer, Some(10), "earlier than the driver looks");
        cover.leave(8);
        assert!(cover.is_driver(7));
        cover.leave(7);
        assert_eq!(cover.settle(true, Some(30)), Orders { line: Some(true), timer: None });
    }

    #[test]
    fn who_sleeps_through_a_mask_is_not_counted_on_for_the_interrupt() {
        let mut cover = Cover::default();
        assert!(cover.take(1));
        assert_eq!(cover.sleep(Some(20), false), Orders::default());
        assert_eq!(cover.settle(true, Some(20)).line, Some(true), "somebody else unmasked");
    }
}
