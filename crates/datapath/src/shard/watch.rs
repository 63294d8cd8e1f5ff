//! Who wants to know about a socket: epolls it was added to, threads that wait for it alone.

use std::sync::Arc;

use abey_tcpip::Readiness;

use crate::epoll::{EntryKey, Queue};
use crate::sleeper::Sleeper;

/// One of them.
#[derive(Clone, Debug)]
pub(crate) enum Watch {
    /// An epoll has it in its interest list.
    Epoll { queue: Arc<Queue>, key: EntryKey, exclusive: bool },
    /// A thread waits for it in a blocking call.
    Thread { sleeper: Arc<Sleeper>, interest: Readiness },
}

/// The watches of one socket.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    list: Vec<Watch>,
    /// Where the next wake-up of exclusive watches begins.
    turn: usize,
    /// Somebody found it not writable and wants to know when it is. The stack tells only those whose write it refused.
    pub(super) wants_room: bool,
    /// This end opened the connection, so that data on it is an answer and no request.
    pub(super) outgoing: bool,
}

impl Watches {
    pub(crate) fn add(&mut self, watch: Watch) {
        self.list.push(watch);
    }

    pub(crate) fn remove_thread(&mut self, sleeper: &Arc<Sleeper>) {
        self.list.retain(|watch| !matches!(watch, Watch::Thread { sleeper: other, .. } if Arc::ptr_eq(other, sleeper)));
    }

    pub(crate) fn remove_epoll(&mut self, queue: &Arc<Queue>, entry: EntryKey) {
        self.list.retain(
            |watch| !matches!(watch, Watch::Epoll { queue: other, key, .. } if *key == entry && Arc::ptr_eq(other, queue)),
        );
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Watch> {
        self.list.iter()
    }

    /// Something happened to the socket: tells everybody, of those that are exclusive only until one was asleep. How many
    /// system calls that took.
    pub(super) fn post(&mut self, edges: Readiness) -> u64 {
        let mut calls = 0;
        for watch in &self.list {
            match watch {
                Watch::Epoll { queue, key, exclusive: false } => calls += queue.post(*key, edges).calls,
                Watch::Thread { sleeper, interest }
                    if edges.intersects(*interest | Readiness::ERROR | Readiness::HANG_UP) =>
                {
                    calls += sleeper.wake();
                }
                _ => {}
            }
        }
        let count = self.list.len();
        for at in (self.turn..self.turn + count).map(|at| at % count.max(1)) {
            if let Watch::Epoll { queue, key, exclusive: true } = &self.list[at] {
                let posted = queue.post(*key, edges);
                calls += posted.calls;
                if posted.woke {
                    self.turn = (at + 1) % count;
                    break;
                }
            }
        }
        calls
    }
}
