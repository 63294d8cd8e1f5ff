//! Delivery in user space: the thread that receives a queue's interrupt and deadline (`profile.service_thread`).
//!
//! The policy is the datapath's ([`abey_delivery::handoff`]), and so is the one by which a thread shortens its sleeps
//! ([`abey_delivery::lateness`]). This file charges what the datapath's system calls and wake-ups cost. A server that
//! waits is the queue's waiter: the interrupt or the deadline wakes it, and it polls the queue. While it works, the
//! service thread stands in for it.
//!
//! Two costs follow from the policy. A timer that a server left behind when it went to work is not stopped when it is back
//! before the timer fires, so that a deferral may end twice: in the server that sleeps, and in the service thread. And of
//! two sleeps that end at the same time either thread may run first.

use abey_delivery::{Nanos, PollContext, lateness};

use super::World;
use super::cpu::Irq;
use super::thread::{Kind, State};
use crate::events::Event;
use crate::profile::Cost;

/// The service thread of a queue, and what the queue's waiter has in its sleep.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Service {
    /// Its timer fired, and it waits until the server leaves the CPU.
    waits: bool,
    /// It ran before the server the last time that both woke at once.
    was_first: bool,
    /// The number of sleeps of waiters so far.
    sleeps: u32,
    /// The deadline of the present waiter's sleep, or of its last one.
    slept_until: Option<u64>,
}

impl World<'_> {
    /// Makes a server that waits the waiter of this queue, unless another server is.
    pub(super) fn attach(&mut self, queue: usize, server: usize) {
        if self.profile.service_thread.is_some() && self.settings.napi.context == PollContext::Softirq {
            self.queues[queue].handoff.attach(server as u32);
        }
    }

    /// Makes a server that is about to sleep the waiter of those of its queues that have none.
    pub(super) fn attach_all(&mut self, server: usize) {
        for queue in 0..self.queues.len() {
            if self.queues[queue].servers.contains(&server) {
                self.attach(queue, server);
            }
        }
    }

    /// Ends a server's wait on a queue: it goes to work.
    pub(super) fn detach(&mut self, queue: usize, server: usize) {
        let state = &mut self.queues[queue];
        if state.handoff.is_waiter(server as u32) {
            state.handoff.detach(server as u32);
            state.service.slept_until = None;
        }
    }

    pub(super) fn detach_all(&mut self, server: usize) {
        (0..self.queues.len()).for_each(|queue| self.detach(queue, server));
    }

    /// Returns what the NIC's interrupt costs. It wakes a parked waiter; a running waiter polls without it; without a
    /// waiter it wakes the service thread.
    pub(super) fn interrupt_cost(&mut self, queue: usize) -> Cost {
        let Some(service) = self.profile.service_thread else { return self.profile.interrupt.nic };
        let handoff = &mut self.queues[queue].handoff;
        match (handoff.waiter(), handoff.unpark()) {
            (None, _) => service.wake,
            (Some(_), Some(_)) => self.profile.interrupt.nic,
            (Some(_), None) => Cost::NONE,
        }
    }

    /// Handles the service thread's timer; until the thread runs the timer need not be set again.
    ///
    /// If a server's sleep ends at the same time, as that of a deferral does, the two threads take turns in running first.
    /// If the server does, it goes to work before the service thread has handled the timer, so it sets none, and the next
    /// deferral ends once.
    pub(super) fn service_timer(&mut self, queue: usize) {
        self.charge_timer_interrupt(self.queues[queue].timer_cpu);
        let state = &mut self.queues[queue];
        if state.handoff.waiter().is_some_and(|waiter| waiter.parked.is_none()) {
            state.service.was_first = !state.service.was_first;
            if !state.service.was_first {
                state.service.waits = true;
                return;
            }
        }
        self.interrupt(self.queues[queue].timer_cpu, Irq::Timer(queue));
    }

    /// Charges the interrupt of the service thread's timer to a CPU that is awake. On a CPU that halts, or is leaving the
    /// halt, one interrupt serves this timer and the one that ends the server's sleep; so does it, in part, on a CPU that
    /// is handling the latter.
    fn charge_timer_interrupt(&mut self, index: usize) {
        let Some(service) = self.profile.service_thread.filter(|service| service.interrupt != Cost::NONE) else {
            return;
        };
        if self.cpus[index].is_halted() {
            return;
        }
        let whole = self.time_of(self.profile.interrupt.timer).max(1);
        let cpu = &self.cpus[index];
        let apart = match cpu.hard {
            Some((Irq::SleepOver(_), _)) => (self.now - cpu.hard_since).min(whole),
            _ => whole,
        };
        self.touch(index);
        let charged = self.spend(service.interrupt.share(apart, whole));
        self.cpus[index].wakeup_cost_ns += charged;
    }

    /// Marks a woken thread as running wherever it is the waiter. Returns whether it ran already at one of its queues, and
    /// so has polled what wakes it now.
    pub(super) fn note_woken(&mut self, thread: usize) -> bool {
        let Kind::Server(server) = self.threads[thread].kind else { return false };
        let mut ran = false;
        for queue in self.queues.iter_mut().filter(|queue| queue.handoff.is_waiter(server as u32)) {
            ran |= queue.handoff.unpark().is_none();
        }
        ran
    }

    /// Returns how long a waiter that woke too early spins.
    pub(super) fn spin_ns(&self, queue: usize) -> u64 {
        self.queues[queue].service.slept_until.map_or(0, |until| until.saturating_sub(self.now))
    }

    /// Ends the sleep of a waiter, if it is still in the sleep of that number.
    pub(super) fn sleep_over(&mut self, queue: usize, generation: u32) {
        let state = &mut self.queues[queue];
        let Some(waiter) = state.handoff.waiter().filter(|_| state.service.sleeps == generation) else { return };
        if state.handoff.unpark().is_some() {
            let cpu = self.threads[self.servers[waiter.thread as usize].thread].cpu;
            self.interrupt(cpu, Irq::SleepOver(queue));
        }
    }

    /// Parks waiters and sets timers after every event, so that a thread wakes at every queue's deadline.
    ///
    /// The interrupt is passed as masked: the simulated NIC interrupts without an armed descriptor, and the profile has no
    /// cost for arming one.
    pub(super) fn publish(&mut self) {
        let Some(service) = self.profile.service_thread else { return };
        for queue in 0..self.queues.len() {
            if self.queues[queue].napi.get().is_owned() {
                continue;
            }
            self.park(queue);
            let deadline = self.queues[queue].deadline.map(|at| Nanos::from_nanos(at.max(self.now)));
            let Some(deadline) = self.queues[queue].handoff.publish(false, deadline).timer else { continue };
            let charged = self.spend(service.arm);
            let cpu = self.server_cpu(queue);
            self.touch(cpu);
            self.cpus[cpu].wakeup_cost_ns += charged;
            let at = deadline.as_nanos() + self.profile.interrupt.timer_late_ns;
            self.queues[queue].timer_event = Some(at);
            self.queues[queue].timer_cpu = cpu;
            self.events.push(at, Event::Timer { queue: queue as u32 });
        }
    }

    /// Parks the queue's waiter until the deadline, if its thread sleeps and its CPU has no interrupt to handle.
    fn park(&mut self, queue: usize) {
        let state = &self.queues[queue];
        let Some(waiter) = state.handoff.waiter().filter(|waiter| waiter.parked.is_none()) else { return };
        let thread = &self.threads[self.servers[waiter.thread as usize].thread];
        let cpu = thread.cpu;
        let busy = self.cpus[cpu].hard.is_some() || !self.cpus[cpu].hard_queue.is_empty();
        if thread.state != State::Asleep || busy {
            return;
        }
        let until = state.deadline;
        let state = &mut self.queues[queue];
        // No descriptor is ever armed, so there is none to disarm.
        let _ = state.handoff.park(until.map(Nanos::from_nanos), true);
        state.service.slept_until = until;
        state.service.sleeps = state.service.sleeps.wrapping_add(1);
        let generation = state.service.sleeps;
        if std::mem::take(&mut state.service.waits) {
            self.interrupt(cpu, Irq::Timer(queue));
        }
        if let Some(until) = until {
            let span = Nanos::from_nanos(until.saturating_sub(self.now));
            // The thread runs once the interrupt is over.
            let over = self.time_of(self.profile.interrupt.timer);
            let exit = self.profile.idle.exit_ns(span.as_nanos(), span.as_nanos());
            let late = Nanos::from_nanos(self.profile.interrupt.timer_late_ns + exit + over);
            let asked = until - lateness::lead(late, span).as_nanos();
            let at = asked.max(self.now) + self.profile.interrupt.timer_late_ns;
            self.events.push(at, Event::SleepOver { queue: queue as u32, generation });
            self.interrupt(cpu, Irq::FallAsleep(queue));
        }
    }

    /// Returns the CPU of a queue's server.
    fn server_cpu(&self, queue: usize) -> usize {
        let state = &self.queues[queue];
        state.servers.first().map_or(state.cpu, |server| self.threads[self.servers[*server].thread].cpu)
    }
}
