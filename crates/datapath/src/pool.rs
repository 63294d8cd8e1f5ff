//! The shared pool of workers, to which `workqueue` hands polls.

use std::sync::{Condvar, Mutex, PoisonError, Weak};

use abey_delivery::{NapiIndex, Outcome, WorkPool};

use crate::shard::Shard;

#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Debug)]
struct State {
    list: WorkPool,
    shards: Vec<Weak<Shard>>,
    stopped: bool,
}

impl Pool {
    /// Its workers count as awake until they find nothing to do.
    pub(crate) fn new() -> Self {
        let list = WorkPool::new(0);
        Self { state: Mutex::new(State { list, shards: Vec::new(), stopped: false }), work: Condvar::new() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_shards(&self, shards: Vec<Weak<Shard>>) {
        self.state().shards = shards;
    }

    /// An instance is to be polled. Called with its shard's lock held.
    pub(crate) fn schedule(&self, napi: NapiIndex) {
        if self.state().list.handle_schedule(napi) {
            self.work.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        self.state().stopped = true;
        self.work.notify_all();
    }

    /// A worker's turn, on the calling thread. Whether there was something to do.
    #[cfg(test)]
    pub(crate) fn work_once(&self) -> bool {
        let Some(napi) = self.state().list.take() else { return false };
        let shard = self.state().shards[napi.as_usize()].upgrade();
        let outcome = shard.map_or(Outcome::Released, |shard| shard.worker_poll());
        self.state().list.handle_polled(napi, outcome);
        true
    }

    /// A worker's life.
    pub(crate) fn work(&self) {
        let mut state = self.state();
        while !state.stopped {
            let Some(napi) = state.list.take() else {
                // `take` has counted this worker among the idle, and whoever schedules takes it out again: each return
                // from here is followed by a `take`. One that comes for nothing makes the pool count an idle worker too
                // many, which costs a needless notification and no more.
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let shard = state.shards.get(napi.as_usize()).and_then(Weak::upgrade);
            drop(state);
            let outcome = shard.as_ref().map_or(Outcome::Released, |shard| shard.worker_poll());
            drop(shard);
            if outcome == Outcome::Holding {
                std::thread::yield_now();
            }
            state = self.state();
            state.list.handle_polled(napi, outcome);
        }
    }
}
