//! The other two poll contexts: one thread per instance, and a shared pool of workers.
//!
//! Both run under the scheduler from the first packet on, so a run needs no budget: between two polls the scheduler may
//! run another thread.

use std::collections::VecDeque;

use crate::{NapiIndex, Outcome};

/// The thread of one NAPI instance.
///
/// Order of calls: [`handle_wake`](Self::handle_wake) whenever [`Actions::run`](crate::Actions::run) names the thread; the
/// thread polls, executes the actions, then calls [`handle_polled`](Self::handle_polled), which returns whether to poll again.
/// A busy thread polls again as long as its instance has that setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NapiThread {
    state: ThreadState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum ThreadState {
    #[default]
    Asleep,
    /// Polling, or runnable; `again` if it was woken meanwhile.
    Awake { again: bool },
}

/// The next step of a polling thread after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum ThreadStep {
    /// Yield to the scheduler, then poll again.
    Poll,
    /// Sleep until woken.
    Sleep,
}

impl NapiThread {
    /// Hands the instance to the thread. Returns whether the thread sleeps and must be woken.
    pub fn handle_wake(&mut self) -> bool {
        match &mut self.state {
            ThreadState::Asleep => {
                self.state = ThreadState::Awake { again: false };
                true
            }
            ThreadState::Awake { again } => {
                *again = true;
                false
            }
        }
    }

    /// Returns the next step after a poll whose actions were executed, or after no poll ([`Outcome::Released`]).
    pub fn handle_polled(&mut self, outcome: Outcome) -> ThreadStep {
        let again = matches!(self.state, ThreadState::Awake { again: true });
        if again || matches!(outcome, Outcome::Requeue | Outcome::Holding) {
            self.state = ThreadState::Awake { again: false };
            ThreadStep::Poll
        } else {
            self.state = ThreadState::Asleep;
            ThreadStep::Sleep
        }
    }

    /// Returns whether the thread sleeps.
    pub fn is_asleep(&self) -> bool {
        self.state == ThreadState::Asleep
    }
}

/// A pool of workers that share one list of instances to poll.
///
/// Order of calls: [`handle_schedule`](Self::handle_schedule) for every instance handed to the pool; a worker takes one
/// with [`take`](Self::take), polls it, executes the actions and reports [`handle_polled`](Self::handle_polled); then
/// takes the next, or sleeps if there is none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkPool {
    list: VecDeque<NapiIndex>,
    idle: usize,
}

impl WorkPool {
    /// Returns a pool of this many sleeping workers.
    pub fn new(workers: usize) -> Self {
        Self { list: VecDeque::new(), idle: workers }
    }

    /// Appends an instance to the list. Returns whether to wake one sleeping worker.
    pub fn handle_schedule(&mut self, napi: NapiIndex) -> bool {
        self.list.push_back(napi);
        let wake = self.idle > 0;
        self.idle -= usize::from(wake);
        wake
    }

    /// Returns the instance that a running worker polls next; `None` if the worker must sleep until it is woken.
    pub fn take(&mut self) -> Option<NapiIndex> {
        let napi = self.list.pop_front();
        self.idle += usize::from(napi.is_none());
        napi
    }

    /// Records the end of a poll of `napi`, after which its worker calls [`Self::take`].
    pub fn handle_polled(&mut self, napi: NapiIndex, outcome: Outcome) {
        if matches!(outcome, Outcome::Requeue | Outcome::Holding) {
            self.list.push_back(napi);
        }
    }

    /// Returns the number of instances that wait for a worker.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether no instance waits for a worker.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The instances on the list, the next one first.
    pub fn iter(&self) -> impl Iterator<Item = NapiIndex> + '_ {
        self.list.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_sleeps_unless_there_is_more_or_it_was_woken_meanwhile() {
        let mut thread = NapiThread::default();
        assert!(thread.handle_wake());
        assert!(!thread.handle_wake(), "it is awake");
        assert_eq!(thread.handle_polled(Outcome::Released), ThreadStep::Poll, "woken meanwhile");
        assert_eq!(thread.handle_polled(Outcome::Requeue), ThreadStep::Poll);
        assert_eq!(thread.handle_polled(Outcome::Holding), ThreadStep::Poll);
        assert_eq!(thread.handle_polled(Outcome::Released), ThreadStep::Sleep);
        assert!(thread.is_asleep());
    }

    #[test]
    fn a_pool_wakes_as_many_workers_as_there_is_work_and_polls_in_turn() {
        let mut pool = WorkPool::new(1);
        assert!(pool.handle_schedule(NapiIndex(0)));
        assert!(!pool.handle_schedule(NapiIndex(1)), "no other worker sleeps");
        assert_eq!(pool.take(), Some(NapiIndex(0)));
        pool.handle_polled(NapiIndex(0), Outcome::Requeue);
        assert_eq!(pool.take(), Some(NapiIndex(1)));
        pool.handle_polled(NapiIndex(1), Outcome::Released);
        assert_eq!((pool.take(), pool.take()), (Some(NapiIndex(0)), None));
        assert!(pool.handle_schedule(NapiIndex(2)), "the worker sleeps again");
    }
}
