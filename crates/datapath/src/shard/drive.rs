//! What a thread inside a wait does with a shard: busy polls, suspensions, and sleeps that have its interrupt in them.

use abey_delivery::{Nanos, Poller};

use super::Shard;
use super::core::{By, Core};

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

    /// The thread is about to sleep. If it may drive: whether to listen to the interrupt, and when to look at the latest.
    pub(crate) fn begin_sleep(&self, thread: u32) -> Option<(bool, Option<Nanos>)> {
        let (mut held, waited) = self.lock.lock();
        held.by = By::Application;
        held.calls(u64::from(waited));
        if !held.polls_in_softirq() || !held.cover.take(thread) {
            // Somebody else looks after it; what is in threads or in the pool is not done here.
            held.cover.leave(thread);
            self.let_go(held);
            return None;
        }
        held.check_timers();
        held.work_off();
        let (unmasked, until) = (held.is_unmasked(), held.deadline());
        let orders = held.cover.sleep(until.map(Nanos::as_nanos), unmasked);
        self.execute(&mut held, orders);
        held.counters.driven_sleeps += 1;
        self.let_go(held);
        Some((unmasked, until))
    }

    /// The driver is awake again. `calls`: the system calls of its sleep, if they are billed to this shard.
    pub(crate) fn end_sleep(&self, thread: u32, interrupted: bool, calls: u64) {
        self.with(|core| {
            core.calls(calls);
            if !core.cover.take(thread) {
                return;
            }
            if interrupted {
                core.take_interrupt();
            }
            core.check_timers();
        });
    }

    pub(crate) fn bill(&self, calls: u64) {
        self.with(|core| core.calls(calls));
    }
}
