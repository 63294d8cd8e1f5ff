//! What a scripted environment does in place of the service thread.

use abey_delivery::Nanos;
use rustix::event::Timespec;

use super::{Shard, WakeCauses};

impl Shard {
    /// Runs one turn of the service thread on the calling thread, without sleeping: see [`crate::service::run`]. `polls`
    /// is whether the service thread is polling. Returns whether there was something to do.
    pub(crate) fn service_turn(&self, polls: &mut bool) -> bool {
        if *polls {
            *polls = self.serve_poll().0;
            return true;
        }
        let now = self.clock.now();
        let ready = self.service_epoll.wait(&mut Vec::with_capacity(4), Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let causes = WakeCauses {
            irq: ready.irq,
            timer: self.service_timer().is_some_and(|at| at <= now),
            unparked: self.service.take_notification(),
        };
        if causes == WakeCauses::default() {
            return false;
        }
        *polls = self.serve(causes);
        true
    }

    /// Returns when the service thread's timer fires.
    pub(crate) fn service_timer(&self) -> Option<Nanos> {
        self.lock.lock().0.handoff.timer()
    }
}
