//! What the service thread, the pool's workers and the runtime do with a shard.

use std::sync::atomic::Ordering;

use abey_delivery::{NapiSettings, Outcome, PollContext};

use super::core::{By, Core, PollBy};
use super::{Causes, INTERRUPT, Shard, TIMER};
use crate::counters::Counters;

impl Shard {
    /// The service thread has made system calls.
    pub(crate) fn owe(&self, calls: u64) {
        self.owed.fetch_add(calls, Ordering::Relaxed);
    }

    /// The service thread woke up. Whether it has polls to do; if the lock is busy, its holder deals with the causes.
    pub(crate) fn serve(&self, causes: Causes) -> bool {
        let marks = (INTERRUPT * u32::from(causes.nic)) | (TIMER * u32::from(causes.timer));
        let mut held = match self.lock.lock_or_mark(marks) {
            Some(held) => held,
            // Somebody has left it work.
            None if causes.woken => self.lock.lock().0,
            None => return false,
        };
        held.by = By::Service;
        self.let_go(held)
    }

    /// One piece of the service thread's own polling: a softirq run that was handed over, or a poll of `threaded`.
    /// Whether there is more, and whether it found nothing.
    pub(crate) fn serve_poll(&self) -> (bool, bool) {
        let (mut held, waited) = self.lock.lock();
        held.by = By::Service;
        held.calls(u64::from(waited));
        let packets = held.counters.packets;
        held.check_timers();
        if held.handed_over {
            held.run_softirq(PollBy::SoftirqThread);
        }
        if !held.thread.is_asleep() {
            held.thread_poll();
        }
        let idle = held.counters.packets == packets;
        (self.let_go(held), idle)
    }

    /// A turn of the service thread, on the calling thread and without sleeping: as in [`crate::service::run`], where
    /// `polls` says that it is polling. Whether there was something to do.
    #[cfg(test)]
    pub(crate) fn play_service(&self, polls: &mut bool) -> bool {
        if *polls {
            *polls = self.serve_poll().0;
            return true;
        }
        let now = self.clock.now();
        let causes = Causes {
            nic: self.line.fires(),
            timer: self.service_timer().is_some_and(|at| at <= now),
            woken: self.service.forget(),
        };
        if causes == Causes::default() {
            return false;
        }
        *polls = self.serve(causes);
        true
    }

    /// When the service thread looks by itself.
    #[cfg(test)]
    pub(crate) fn service_timer(&self) -> Option<abey_delivery::Nanos> {
        self.lock.lock().0.cover.timer().map(abey_delivery::Nanos::from_nanos)
    }

    /// Whether somebody waits for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        self.lock.is_contended()
    }

    /// One poll by a worker of the pool.
    pub(crate) fn worker_poll(&self) -> Outcome {
        self.with_by(By::Worker, |core| core.context_poll(PollContext::Workqueue, PollBy::Worker).1)
    }

    pub(crate) fn apply_settings(&self, settings: NapiSettings) {
        self.with(|core| core.apply_settings(settings));
    }

    pub(crate) fn enable(&self) {
        self.with(Core::enable);
    }

    /// The runtime ends: resets what is open, stops delivery, wakes everybody.
    pub(crate) fn shut_down(&self) {
        self.with(|core| {
            let now = core.stack_now();
            for socket in core.sockets() {
                // Listeners and connections alike; one that is gone is gone.
                let _ = core.stack.abort(now, socket);
            }
            core.work_off();
            core.over = true;
            core.disable();
            core.wake_everybody();
        });
    }

    pub(crate) fn counters(&self) -> Counters {
        self.with(|core| {
            core.bill_nic();
            core.counters
        })
    }

    /// Wakes the service thread.
    pub(crate) fn wake_service(&self) {
        self.service.wake();
    }
}
