//! A shard's service thread, `napi/<device>-<id>`: it handles interrupts, timers and the softirq while no application waits,
//! polls in `threaded`, and continues softirq runs that exceeded their budget.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::parker::Parker;
use crate::shard::{Shard, WakeCauses};

/// The number of consecutive empty polls after which a thread that never sleeps yields the CPU.
const EMPTY_POLLS: u32 = 16;

/// Runs the service thread until `stop` is set.
pub(crate) fn run(shard: &Shard, parker: &Parker, stop: &AtomicBool) {
    let mut events = Vec::with_capacity(4);
    while !stop.load(Ordering::Acquire) {
        let mut causes = WakeCauses::default();
        if parker.park() {
            causes = shard.service_epoll.wait(&mut events, None);
            shard.charge_service(1 + parker.finish(causes.unparked));
        } else {
            parker.finish(false);
            causes.unparked = true;
        }
        if shard.serve(causes) {
            poll(shard, stop);
        }
    }
}

/// Polls until the service thread has nothing left to poll.
fn poll(shard: &Shard, stop: &AtomicBool) {
    let mut empty = 0;
    while !stop.load(Ordering::Acquire) {
        let (more, idle) = shard.serve_poll();
        if !more {
            return;
        }
        empty = if idle { empty + 1 } else { 0 };
        // A thread that waits for the lock is about to use what was polled, so it goes first.
        if shard.is_contended() || empty >= EMPTY_POLLS {
            empty = 0;
            shard.charge_service(1);
            std::thread::yield_now();
        }
    }
}
