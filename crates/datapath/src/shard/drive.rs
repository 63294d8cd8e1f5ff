//! What a thread inside a wait does with a shard: busy polls, suspensions, and sleeps that have its interrupt in them.

use abey_delivery::{Nanos, Poller};

use super::Shard;
use super::core::{By, Core};

/// How a thread sleeps that drives a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
    /// The NIC's descriptor ends the sleep.
    pub(crate) listens: bool,
    /// When to look at the latest.
    pub(crate) until: Option<Nanos>,
    /// It sleeps past a deferral: what the descriptor tells of is not looked at before this time.
    pub(crate) not_before: Option<Nanos>,
}

impl Shard {
    /// One iteration of a busy poll. The thread becomes the driver, if nobody is.
    pub(crate) fn busy_poll(&self, thread: u32, poller: Poller, budget: u16, prefer: bool) -> (u16, bool) {
        self.with(|core| {
            let drives = core.cover.take(thread);
            (core.busy_poll(poller, budget, prefer), drives)
        })
    }

    pub(crate) fn end_busy_poll(&self, poller: Poller) {
        self.with(|core| core.end_busy_poll(poller));
    }

    /// The application takes events: interrupts stay away, and the shard is given back.
    pub(crate) fn suspend_and_leave(&self, thread: u32) {
        self.with(|core| {
            core.suspend();
            core.cover.leave(thread);
        });
    }

    pub(crate) fn resume(&self) {
        self.with(Core::resume);
    }

    /// The wait is over: the shard is given back.
    pub(crate) fn leave(&self, thread: u32) {
        self.with(|core| core.cover.leave(thread));
    }

    /// The thread is about to sleep. If it may drive, how.
    pub(crate) fn begin_sleep(&self, thread: u32) -> Option<Drive> {
        let (mut held, waited) = self.lock.lock();
        held.by = By::Application;
        held.calls(u64::from(waited));
        if !held.polls_in_softirq() || !held.cover.take(thread) {
            // Somebody else looks after it; what is in threads or in the pool is not done here.
            held.burst.end();
            held.cover.leave(thread);
            self.let_go(held);
            return None;
        }
        held.burst.end();
        held.check_timers();
        held.work_off();
        held.oversleeps = held.may_oversleep();
        let drive = match held.napi.get().timer() {
            Some(not_before) if held.oversleeps => Drive { listens: true, until: None, not_before: Some(not_before) },
            _ => Drive { listens: held.is_unmasked(), until: held.deadline(), not_before: None },
        };
        let orders = held.cover.sleep(drive.until.map(Nanos::as_nanos), drive.listens);
        self.execute(&mut held, orders);
        held.counters.driven_sleeps += 1;
        self.let_go(held);
        Some(drive)
    }

    /// The driver is awake again. `calls`: the system calls of its sleep, if they are billed to this shard.
    pub(crate) fn end_sleep(&self, thread: u32, interrupted: bool, calls: u64) {
        self.with(|core| {
            core.calls(calls);
            if !core.cover.take(thread) {
                return;
            }
            // What woke it from a deferral is no interrupt: the timer looks, if its time has come.
            let overslept = std::mem::take(&mut core.oversleeps);
            if overslept {
                core.note_overslept();
            }
            if interrupted && !(overslept && core.napi.get().is_masked()) {
                core.take_interrupt();
            }
            core.check_timers();
        });
    }

    pub(crate) fn bill(&self, calls: u64) {
        self.with(|core| core.calls(calls));
    }
}
