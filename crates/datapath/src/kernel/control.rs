//! The control thread: asks the kernel for neighbours, follows what it says of them, and gives ports back whose
//! connections have ended.

use std::collections::HashSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Kernel;
use super::neighbors::{News, Table};
use crate::shard::{By, Shard};

/// Neighbours whose changes are passed on, at most. They are forgotten together; who is still used is asked for again.
const KNOWN: usize = 4096;

/// What the thread has.
pub(crate) struct Control {
    kernel: Arc<Kernel>,
    table: Table,
    shards: Arc<[Arc<Shard>]>,
    /// Whom some shard asked for.
    known: HashSet<IpAddr>,
}

impl Control {
    /// Opens what it needs in the network namespace of the calling thread.
    pub(crate) fn open(kernel: Arc<Kernel>, index: u32, shards: Arc<[Arc<Shard>]>) -> io::Result<Self> {
        let table = Table::open(index, kernel.broker.clone())?;
        Ok(Self { kernel, table, shards, known: HashSet::new() })
    }

    /// The thread's life.
    pub(crate) fn run(mut self) {
        while !self.kernel.is_over() {
            let wanted = self.kernel.take_wanted();
            self.ask(wanted);
            let next = self.kernel.look_at_lingering(Instant::now());
            let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
            if self.sleep(timeout) {
                self.follow();
            }
        }
    }

    /// Whether the neighbours may have changed.
    fn sleep(&self, timeout: Option<Duration>) -> bool {
        let sleeper = &self.kernel.sleeper;
        let mut ready = [PollFd::new(sleeper, PollFlags::IN), PollFd::new(&self.table, PollFlags::IN)];
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let slept = sleeper.begin() && poll(&mut ready, timeout.as_ref()).is_ok();
        let readable = |at: usize| slept && !ready[at].revents().is_empty();
        let (woken, changed) = (readable(0), readable(1));
        sleeper.end(woken);
        changed
    }

    fn ask(&mut self, wanted: Vec<IpAddr>) {
        for address in wanted {
            if self.known.len() >= KNOWN {
                self.known.clear();
            }
            self.known.insert(address);
            // Who cannot be asked for stays unknown: the stack asks twice more and then says so.
            if let Ok(Some(news)) = self.table.ask(address) {
                self.tell(address, news);
            }
        }
    }

    fn follow(&mut self) {
        let (mut news, known) = (Vec::new(), &self.known);
        let complete = self.table.changes(|address, change| {
            if known.contains(&address) {
                news.push((address, change));
            }
        });
        for (address, change) in news {
            self.tell(address, change);
        }
        if !complete {
            let known = self.known.iter().copied().collect();
            self.ask(known);
        }
    }

    fn tell(&self, address: IpAddr, news: News) {
        for shard in self.shards.iter() {
            shard.with_by(By::Worker, |core| {
                let now = core.stack_now();
                match news {
                    News::Station(station) => core.stack.answer_neighbor(now, address, station),
                    News::Failed => core.stack.fail_neighbor(now, address),
                    // The next packet asks again.
                    News::Forgotten => core.stack.remove_neighbor(address),
                }
            });
        }
    }
}
