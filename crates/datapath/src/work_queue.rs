//! The queue of NAPI instances that the pool of workers polls in `workqueue`.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use abey_delivery::{NapiIndex, Outcome, WorkPool};

/// A [`WorkPool`] under a lock, with a condition variable on which idle workers wait.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    state: Mutex<State>,
    scheduled: Condvar,
}

#[derive(Debug)]
struct State {
    pool: WorkPool,
    stopped: bool,
}

impl WorkQueue {
    /// Creates an empty queue. A worker counts as busy until it first finds the queue empty.
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { pool: WorkPool::new(0), stopped: false }), scheduled: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an instance, and wakes an idle worker if necessary. The caller holds the lock of the instance's shard.
    pub(crate) fn schedule(&self, napi: NapiIndex) {
        if self.state().pool.handle_schedule(napi) {
            self.scheduled.notify_one();
        }
    }

    /// Makes every call of [`Self::next`] return `None`.
    pub(crate) fn stop(&self) {
        self.state().stopped = true;
        self.scheduled.notify_all();
    }

    /// Records how the poll of `polled` ended, and waits for the next instance to poll. Returns `None` after
    /// [`Self::stop`].
    pub(crate) fn next(&self, polled: Option<(NapiIndex, Outcome)>) -> Option<NapiIndex> {
        let mut state = self.state();
        if let Some((napi, outcome)) = polled {
            state.pool.handle_polled(napi, outcome);
        }
        while !state.stopped {
            if let Some(napi) = state.pool.take() {
                return Some(napi);
            }
            // `take` has counted this worker as idle, and `handle_schedule` counts it as busy again; a `take` follows each
            // return from here. A spurious return makes the pool count one idle worker too many, which costs no more than
            // a needless notification.
            state = self.scheduled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }
}

#[cfg(test)]
impl WorkQueue {
    /// Returns the next instance to poll, without waiting.
    pub(crate) fn try_next(&self) -> Option<NapiIndex> {
        self.state().pool.take()
    }

    /// Records how a poll ended.
    pub(crate) fn polled(&self, napi: NapiIndex, outcome: Outcome) {
        self.state().pool.handle_polled(napi, outcome);
    }
}
