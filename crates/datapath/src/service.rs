//! A shard's service thread, `napi/<device>-<id>`: hardirq, softirq and timers while nobody waits, and the polls of
//! `threaded` and of softirq runs that were over their budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::shard::{Causes, Shard};
use crate::sleeper::Sleeper;

/// Empty polls in a row after which a thread that does not sleep lets others have the CPU.
const PATIENCE: u32 = 16;

/// The thread's life.
pub(crate) fn run(shard: &Shard, sleeper: &Arc<Sleeper>, stop: &AtomicBool) {
    let mut events = Vec::with_capacity(4);
    while !stop.load(Ordering::Acquire) {
        let mut causes = Causes::default();
        if sleeper.begin() {
            causes = shard.line.sleep(&mut events);
            shard.owe(1 + sleeper.end(causes.woken));
        } else {
            sleeper.end(false);
            causes.woken = true;
        }
        if shard.serve(causes) {
            poll(shard, stop);
        }
    }
}

/// Polls until there is nothing to poll.
fn poll(shard: &Shard, stop: &AtomicBool) {
    let mut empty = 0;
    while !stop.load(Ordering::Acquire) {
        let (more, idle) = shard.serve_poll();
        if !more {
            return;
        }
        empty = if idle { empty + 1 } else { 0 };
        // Whoever waits for the lock comes first: it is about to use what was polled.
        if shard.is_contended() || empty >= PATIENCE {
            empty = 0;
            shard.owe(1);
            std::thread::yield_now();
        }
    }
}
