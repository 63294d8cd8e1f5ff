//! Checks of the core's invariants after every event, for runs that request them.

use abey_delivery::Nanos;
use abey_delivery::check::{Monitor, Surroundings};

use super::World;
use super::cpu::Irq;
use super::thread::State;

impl World<'_> {
    pub(super) fn start_monitors(&mut self) {
        for queue in &mut self.queues {
            queue.monitor = Some(Monitor::new(queue.napi.get().settings()));
        }
    }

    /// Checks the invariants of every queue.
    ///
    /// # Panics
    /// If one is violated.
    pub(super) fn check(&self) {
        for (index, queue) in self.queues.iter().enumerate() {
            let Some(monitor) = &queue.monitor else { continue };
            let irq = Irq::Nic(index);
            let raised = |cpu: &super::Cpu| {
                cpu.hard_queue.contains(&irq) || cpu.hard.is_some_and(|(under_way, _)| under_way == irq)
            };
            let around = Surroundings {
                pending: !queue.rx.ring.is_empty(),
                interrupt_due: queue.rx.is_interrupt_due() || self.cpus.iter().any(raised),
                runnable: self.is_runnable(index),
                timer: queue.deadline.map(Nanos::from_nanos),
                attended: queue.servers.iter().any(|server| self.is_attending(*server)),
            };
            if let Err(violation) = monitor.check(queue.napi.get(), &around) {
                panic!("{} at {}, queue {index}: {violation}: {:?}", self.scenario.mode, self.clock(), queue.napi);
            }
        }
    }
    /// Returns whether a server busy polls and is awake.
    fn is_attending(&self, server: usize) -> bool {
        let server = &self.servers[server];
        server.busy_polls() && self.threads[server.thread].state != State::Asleep
    }
}
