//! The worker threads of the pool: they poll the NAPI instances that the shards put into the work queue (`workqueue`).

use std::sync::Arc;

use abey_delivery::Outcome;

use crate::shard::Shard;
use crate::work_queue::WorkQueue;

/// Runs a worker until the queue is stopped.
pub(crate) fn run(queue: &WorkQueue, shards: &[Arc<Shard>]) {
    let mut polled = None;
    while let Some(napi) = queue.next(polled) {
        let outcome = shards[napi.as_usize()].worker_poll();
        if outcome == Outcome::Holding {
            std::thread::yield_now();
        }
        polled = Some((napi, outcome));
    }
}
