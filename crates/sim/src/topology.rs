//! Topologies: number of CPUs, queues and server threads of a host, thread affinity, and assignment of sockets to
//! threads.

use crate::input::InputError;

/// Maximum number of CPUs, queues or server threads.
const MOST: u32 = 1_024;

/// CPUs and threads of a host around its receive queues.
///
/// The default is one pinned CPU and server thread per queue, with each server's sockets on its own queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// CPUs; by default as many as queues.
    pub cpus: Option<u32>,
    /// CPU *n* and CPU *n* + half their number are hyperthreads of one core, and the scheduler prefers cores that are
    /// completely idle. Both run at the profile's speed, whatever the other one does.
    pub hyperthreads: bool,
    /// Server threads; by default as many as queues. Thread *n* starts on CPU *n* (modulo their number).
    pub threads: Option<u32>,
    /// CPU that each queue interrupts; by default queue *n* interrupts CPU *n* (modulo their number).
    pub irq_cpus: Option<Vec<u32>>,
    /// Whether server threads may run on any CPU.
    pub unpinned: bool,
    /// Whether NAPI threads and the pool's workers may run on any CPU. Otherwise a NAPI thread stays where its queue
    /// interrupts.
    pub unpinned_pollers: bool,
    /// Whether a connection belongs to a server of its queue (thread *n* serves queue *n* modulo the number of
    /// either). Otherwise connections are assigned to the threads in turn, whatever their queues, and a server has
    /// sockets on several queues. The default is true if there are as many threads as queues.
    pub by_queue: Option<bool>,
}

impl Topology {
    /// Returns the number of CPUs with this many queues.
    pub fn cpus(&self, queues: u32) -> u32 {
        self.cpus.unwrap_or(queues)
    }

    /// Returns the number of server threads with this many queues.
    pub fn threads(&self, queues: u32) -> u32 {
        self.threads.unwrap_or(queues)
    }

    /// Returns the CPU that a queue interrupts, with this many queues.
    pub fn irq_cpu(&self, queue: u32, queues: u32) -> u32 {
        match &self.irq_cpus {
            Some(cpus) => cpus[queue as usize],
            None => queue % self.cpus(queues),
        }
    }

    pub(crate) fn spread(&self, queues: u32) -> Spread {
        let threads = self.threads(queues);
        Spread { queues, threads, by_queue: self.by_queue.unwrap_or(threads == queues) }
    }

    /// Checks the topology of a host with this many queues.
    ///
    /// # Errors
    /// The first invalid value.
    pub(crate) fn validate(&self, queues: u32) -> Result<(), InputError> {
        let wrong = |key, value: String, allowed| Err(InputError::Value { key, value, allowed });
        let cpus = self.cpus(queues);
        if cpus == 0 || cpus > MOST {
            return wrong("cpus", cpus.to_string(), "a host has 1 to 1024 CPUs");
        }
        if self.hyperthreads && cpus % 2 == 1 {
            return wrong("hyperthreads", "true".to_owned(), "cores of two hyperthreads need an even number of CPUs");
        }
        let threads = self.threads(queues);
        if threads == 0 || threads > MOST {
            return wrong("threads", threads.to_string(), "a server has 1 to 1024 threads");
        }
        let Some(irq_cpus) = &self.irq_cpus else { return Ok(()) };
        if irq_cpus.len() != queues as usize {
            return wrong("irq_cpus", format!("{irq_cpus:?}"), "name one CPU for each queue");
        }
        if irq_cpus.iter().any(|cpu| *cpu >= cpus) {
            return wrong("irq_cpus", format!("{irq_cpus:?}"), "CPUs are numbered from 0 to one less than `cpus`");
        }
        Ok(())
    }
}

/// Assignment of connections to server threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    queues: u32,
    threads: u32,
    pub(crate) by_queue: bool,
}

impl Spread {
    pub(crate) fn server(self, conn: u32, queue: u32) -> usize {
        if !self.by_queue {
            return (conn % self.threads) as usize;
        }
        if self.threads <= self.queues {
            return (queue % self.threads) as usize;
        }
        // Threads queue, queue + queues, queue + 2 queues, ...
        let others = (self.threads - 1 - queue) / self.queues;
        (queue + self.queues * (conn % (others + 1))) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_per_queue_unless_said_otherwise() {
        let spread = Topology::default().spread(4);
        assert!((0..4).all(|queue| spread.server(17, queue) == queue as usize));
    }

    #[test]
    fn by_queue_a_thread_only_serves_its_own_and_every_queue_is_served() {
        for (threads, queues) in [(1, 4), (3, 4), (4, 4), (6, 4), (8, 4), (9, 4)] {
            let topology = Topology { threads: Some(threads), by_queue: Some(true), ..Topology::default() };
            let spread = topology.spread(queues);
            let mut served = vec![false; threads as usize];
            for conn in 0..100 {
                let server = spread.server(conn, conn % 7 % queues) as u32;
                assert_eq!(server % queues.min(threads), conn % 7 % queues % threads, "{threads} {queues}");
                served[server as usize] = true;
            }
            assert!(served.iter().all(|served| *served), "{threads} threads on {queues} queues: {served:?}");
        }
    }

    #[test]
    fn dealt_out_in_turn_otherwise() {
        let topology = Topology { threads: Some(3), ..Topology::default() };
        let spread = topology.spread(2);
        assert_eq!((0..6).map(|conn| spread.server(conn, 0)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    }
}
