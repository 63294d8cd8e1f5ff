//! The kernel thread: it requests neighbours, follows their changes, and releases the ports of connections that have ended.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Kernel;
use super::addresses::ServedAddresses;
use super::neighbors::{NeighborTable, NeighborUpdate};
use crate::handover::offer;
use crate::shard::{Caller, Shard};

/// The most neighbours whose changes are passed to the shards. When the set is full it is cleared; a shard that still uses
/// a neighbour requests it again.
const MAX_REQUESTED: usize = 4096;

/// The state of the thread.
pub(crate) struct KernelThread {
    kernel: Arc<Kernel>,
    neighbors: NeighborTable,
    addresses: ServedAddresses,
    shards: Arc<[Arc<Shard>]>,
    /// The neighbours that a shard has requested.
    requested: HashSet<IpAddr>,
}

impl KernelThread {
    /// Opens the neighbour table of interface `index` in the network namespace of the calling thread, and serves the stack's
    /// addresses.
    pub(crate) fn open(
        kernel: Arc<Kernel>,
        index: u32,
        shards: Arc<[Arc<Shard>]>,
        addresses: BTreeSet<IpAddr>,
    ) -> io::Result<Self> {
        let neighbors = NeighborTable::open(index, kernel.broker.clone())?;
        let addresses = ServedAddresses::open(kernel.ports.redirected().clone(), addresses)?;
        Ok(Self { kernel, neighbors, addresses, shards, requested: HashSet::new() })
    }

    /// Runs until the runtime is dropped.
    pub(crate) fn run(mut self) {
        while !self.kernel.is_shut_down() {
            let requests = self.kernel.link.take_neighbor_requests();
            self.request(requests);
            for (port, shard) in self.kernel.link.take_resumed_listeners() {
                self.kernel.ports.resume(port, Some(shard));
            }
            let next = self.kernel.ports.release_lingering(Instant::now());
            let timeout = next.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = timeout.into_iter().chain(self.pass_overdue()).min();
            let (neighbors_changed, addresses_changed) = self.sleep(timeout);
            if neighbors_changed {
                self.apply_changes();
            }
            if addresses_changed {
                self.addresses.apply_changes();
            }
        }
    }

    /// Sleeps for at most `timeout`. Returns whether neighbours and whether addresses may have changed.
    fn sleep(&self, timeout: Option<Duration>) -> (bool, bool) {
        let parker = &self.kernel.link.parker;
        let mut descriptors = [
            PollFd::new(parker, PollFlags::IN),
            PollFd::new(&self.neighbors, PollFlags::IN),
            PollFd::new(&self.addresses, PollFlags::IN),
        ];
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let slept = parker.park() && poll(&mut descriptors, timeout.as_ref()).is_ok();
        let is_readable = |at: usize| slept && !descriptors[at].revents().is_empty();
        let (unparked, changed) = (is_readable(0), (is_readable(1), is_readable(2)));
        parker.finish(unparked);
        changed
    }

    fn request(&mut self, addresses: Vec<IpAddr>) {
        for address in addresses {
            if self.requested.len() >= MAX_REQUESTED {
                self.requested.clear();
            }
            self.requested.insert(address);
            // After an error the neighbour stays unknown: the stack requests it twice more, and then reports it unreachable.
            if let Ok(Some(update)) = self.neighbors.request(address) {
                self.update_shards(address, update);
            }
        }
    }

    /// Gives to the kernel what listeners have no room or no time for; other processes may accept it there. New connections then
    /// go to the kernel until the listener resumes. Returns the time until something is due next.
    fn pass_overdue(&self) -> Option<Duration> {
        let (mut next, ports) = (None, &self.kernel.ports);
        for shard in self.shards.iter() {
            let overdue = shard.with_caller(Caller::Worker, |core| core.stack.take_overdue(core.stack_now()));
            for one in overdue {
                ports.pause(one.port(), shard.index);
                offer::pass(shard, &one, ports, false);
            }
            let left = shard
                .with_caller(Caller::Worker, |core| core.stack.overdue_deadline().map(|at| at.since(core.stack_now())));
            next = next.into_iter().chain(left).min();
        }
        next
    }

    fn apply_changes(&mut self) {
        let (mut updates, requested) = (Vec::new(), &self.requested);
        let is_complete = self.neighbors.changes(|address, update| {
            if requested.contains(&address) {
                updates.push((address, update));
            }
        });
        for (address, update) in updates {
            self.update_shards(address, update);
        }
        if !is_complete {
            let all = self.requested.iter().copied().collect();
            self.request(all);
        }
    }

    fn update_shards(&self, address: IpAddr, update: NeighborUpdate) {
        for shard in self.shards.iter() {
            shard.with_caller(Caller::Worker, |core| {
                let now = core.stack_now();
                match update {
                    NeighborUpdate::Resolved(mac) => core.stack.answer_neighbor(now, address, mac),
                    NeighborUpdate::Failed => core.stack.fail_neighbor(now, address),
                    // The next packet requests it again.
                    NeighborUpdate::Removed => core.stack.remove_neighbor(address),
                }
            });
        }
    }
}
