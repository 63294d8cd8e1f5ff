//! The hand-over of a queue between its service thread and a thread that waits.
//!
//! In user space a queue's interrupt is a descriptor that becomes readable, and its deadline is a timeout. Both need a
//! thread that blocks on them. Two threads can do so:
//!
//! - The *service thread* of the queue blocks in `epoll_wait` on the NIC's descriptor (one-shot: a report disarms it) and
//!   on a timer descriptor. Other threads arm both with `EPOLL_CTL_MOD` and `timerfd_settime`, so a change of what the
//!   service thread waits for does not wake it.
//! - The *waiter* is an application's thread inside a wait such as `epoll_wait`. While it runs, it polls the queue itself.
//!   While it is *parked*, its own `ppoll` has the descriptor and the deadline. No second thread wakes for its packets.
//!
//! # Invariant
//!
//! Whenever the queue's lock is free:
//!
//! - if the interrupt is unmasked, the descriptor is armed at the service thread, or the waiter runs, or the waiter is
//!   parked on the descriptor;
//! - if the queue has a deadline, the service thread's timer or the waiter's timeout ends at that deadline or earlier, or
//!   the waiter runs.
//!
//! So a packet or a deadline always wakes a thread that polls the queue.
//!
//! # Rules
//!
//! All state changes under the queue's lock.
//!
//! 1. The first thread whose wait reaches the queue becomes its waiter ([`Handoff::attach`]); the queue has at most one.
//!    A waiter that parks on the descriptor first disarms it at the service thread ([`Handoff::park`]), so that an
//!    interrupt wakes one thread.
//! 2. Every holder of the lock calls [`Handoff::publish`] before it unlocks. If the interrupt is unmasked and no thread
//!    would see it, that arms the descriptor at the service thread. If the deadline is earlier than the timer and the
//!    waiter's timeout, it sets the timer. It never moves the timer out: an early timer finds that nothing is due, and is
//!    set again.
//! 3. A waiter whose wait ends detaches ([`Handoff::detach`]). The call to `publish` that follows hands the queue to the
//!    service thread.
//! 4. A waiter may park on the descriptor while the interrupt is masked, and without the deadline of a deferral, if the
//!    NIC reports packets all the same. Its first poll is then due when a packet comes, but not before the deferral ends.
//!    The caller passes the deadlines that remain for the service thread, such as those of TCP.
//!
//! # No system call in the busy path
//!
//! A [`Rearm`] lists the system calls that a change needs; the caller makes them. In `suspendX` and `fullbusy` a busy
//! application masks and arms nothing, and its deadlines only move out, so every `Rearm` is empty.
//!
//! The policy is a plain value. The datapath keeps it inside the shard's lock, where its loom tests run it; the simulator
//! charges the costs of a `Rearm` in virtual time.

use crate::Nanos;

/// A thread that waits on the queue in an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// The thread's number.
    pub thread: u32,
    /// What the thread is blocked on; `None` while it runs, and polls the queue by itself.
    pub parked: Option<Parked>,
}

/// What a parked waiter is blocked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parked {
    /// The time at which the thread wakes without an interrupt; `None` for never.
    pub until: Option<Nanos>,
    /// The interrupt wakes the thread. A masked interrupt usually does not: a descriptor that is readable while masked
    /// would wake the thread for nothing. If another thread unmasks meanwhile, the service thread receives the interrupt.
    pub irq: bool,
}

/// Which thread receives a queue's interrupt and deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Handoff {
    /// The descriptor is armed at the service thread.
    armed: bool,
    /// When the service thread's timer fires.
    timer: Option<Nanos>,
    waiter: Option<Waiter>,
}

/// System calls to make, in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[must_use = "a call that is not made may lose an interrupt or a deadline"]
pub struct Rearm {
    /// Arm (`true`) or disarm the descriptor at the service thread.
    pub irq: Option<bool>,
    /// Set the service thread's timer to this time.
    pub timer: Option<Nanos>,
}

impl Handoff {
    /// Returns the waiter, if there is one.
    #[inline]
    pub fn waiter(&self) -> Option<Waiter> {
        self.waiter
    }

    /// Returns whether `thread` is the waiter.
    #[inline]
    pub fn is_waiter(&self, thread: u32) -> bool {
        self.waiter.is_some_and(|waiter| waiter.thread == thread)
    }

    /// Returns when the service thread's timer fires.
    #[inline]
    pub fn timer(&self) -> Option<Nanos> {
        self.timer
    }

    /// Makes `thread` the running waiter, unless another thread is the waiter. Returns whether `thread` is the waiter now.
    #[inline]
    pub fn attach(&mut self, thread: u32) -> bool {
        match &mut self.waiter {
            None => self.waiter = Some(Waiter { thread, parked: None }),
            Some(waiter) if waiter.thread == thread => waiter.parked = None,
            Some(_) => return false,
        }
        true
    }

    /// Parks the waiter until `until` at the latest, and on the descriptor if `irq`. Does nothing without a waiter.
    ///
    /// An armed timer stays, even if it fires while the waiter is parked: to stop it would program the hardware timer
    /// twice, which costs more than the needless wake-up (in `defer20` a quarter of the CPU).
    #[inline]
    pub fn park(&mut self, until: Option<Nanos>, irq: bool) -> Rearm {
        let mut rearm = Rearm::default();
        let Some(waiter) = &mut self.waiter else { return rearm };
        waiter.parked = Some(Parked { until, irq });
        if irq && std::mem::take(&mut self.armed) {
            rearm.irq = Some(false);
        }
        rearm
    }

    /// Marks the waiter as running. Returns what it was parked on; `None` if there is no waiter or it was running.
    #[inline]
    pub fn unpark(&mut self) -> Option<Parked> {
        self.waiter.as_mut()?.parked.take()
    }

    /// Ends the wait of `thread`; does nothing if it is not the waiter. A call to [`Self::publish`] must follow.
    #[inline]
    pub fn detach(&mut self, thread: u32) {
        if self.is_waiter(thread) {
            self.waiter = None;
        }
    }

    /// Records that the descriptor woke the service thread, which disarmed it.
    #[inline]
    pub fn irq_fired(&mut self) {
        self.armed = false;
    }

    /// Records that the service thread's timer fired.
    #[inline]
    pub fn timer_fired(&mut self) {
        self.timer = None;
    }

    /// Restores the invariant after a change: `unmasked` is whether the interrupt may come, `deadline` when the queue must
    /// be polled next.
    #[inline]
    pub fn publish(&mut self, unmasked: bool, deadline: Option<Nanos>) -> Rearm {
        let mut rearm = Rearm::default();
        if unmasked && !self.armed && !self.waiter_sees_irq() {
            self.armed = true;
            rearm.irq = Some(true);
        }
        if let Some(deadline) = deadline
            && !self.wakes_by(deadline)
        {
            self.timer = Some(deadline);
            rearm.timer = Some(deadline);
        }
        rearm
    }

    fn waiter_sees_irq(&self) -> bool {
        self.waiter.is_some_and(|waiter| waiter.parked.is_none_or(|parked| parked.irq))
    }

    /// Returns whether a thread polls the queue at `deadline` or earlier.
    fn wakes_by(&self, deadline: Nanos) -> bool {
        let by = |at: Option<Nanos>| at.is_some_and(|at| at <= deadline);
        by(self.timer) || self.waiter.is_some_and(|waiter| waiter.parked.is_none_or(|parked| by(parked.until)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ns(n: u64) -> Option<Nanos> {
        Some(Nanos::from_nanos(n))
    }

    #[test]
    fn without_a_waiter_the_service_thread_is_armed_once() {
        let mut handoff = Handoff::default();
        assert_eq!(handoff.publish(true, None), Rearm { irq: Some(true), timer: None });
        assert_eq!(handoff.publish(true, None), Rearm::default());
        handoff.irq_fired();
        assert_eq!(handoff.publish(false, None), Rearm::default(), "masked");
        assert_eq!(handoff.publish(true, None), Rearm { irq: Some(true), timer: None });
    }

    #[test]
    fn a_deadline_that_moves_out_needs_no_call_and_one_that_moves_in_needs_one() {
        let mut handoff = Handoff::default();
        assert_eq!(handoff.publish(false, ns(100)).timer, ns(100));
        assert_eq!(handoff.publish(false, ns(900)), Rearm::default());
        assert_eq!(handoff.publish(false, ns(50)).timer, ns(50));
        handoff.timer_fired();
        assert_eq!(handoff.publish(false, ns(900)).timer, ns(900));
    }

    #[test]
    fn a_waiter_takes_the_queue_over_and_hands_it_back() {
        let mut handoff = Handoff::default();
        assert_eq!(handoff.publish(true, None).irq, Some(true));
        assert!(handoff.attach(7) && !handoff.attach(8));
        assert_eq!(handoff.publish(true, ns(5)), Rearm::default(), "a running waiter polls by itself");
        assert_eq!(handoff.park(ns(20), true).irq, Some(false));
        assert_eq!(handoff.publish(true, ns(30)), Rearm::default());
        assert_eq!(handoff.publish(true, ns(10)).timer, ns(10), "earlier than the waiter wakes");
        handoff.detach(8);
        assert!(handoff.is_waiter(7));
        handoff.detach(7);
        assert_eq!(handoff.publish(true, ns(30)), Rearm { irq: Some(true), timer: None });
    }

    #[test]
    fn a_waiter_parked_while_masked_does_not_count_for_the_interrupt() {
        let mut handoff = Handoff::default();
        assert!(handoff.attach(1));
        assert_eq!(handoff.park(ns(20), false), Rearm::default());
        assert_eq!(handoff.publish(true, ns(20)).irq, Some(true), "another thread unmasked");
    }

    #[test]
    fn a_waiter_parked_without_a_timeout_does_not_count_for_a_deadline() {
        let mut handoff = Handoff::default();
        assert!(handoff.attach(1));
        assert_eq!(handoff.park(None, true), Rearm::default());
        assert_eq!(handoff.publish(false, ns(20)).timer, ns(20));
        assert_eq!(handoff.unpark(), Some(Parked { until: None, irq: true }));
        assert_eq!(handoff.unpark(), None, "it runs");
    }
}
