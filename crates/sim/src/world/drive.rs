//! Delivery in user space: whose sleep has a queue's interrupt and deadline in it (`profile.service_thread`).
//!
//! As in the datapath: a server that waits drives its queue. Asleep it is woken by the interrupt and at the deadline, and
//! polls itself. A server that has left its wait drives nothing, and a service thread stands in: it is woken by the interrupt,
//! and its timer is set to a deadline that nobody else looks after. That timer is not stopped when a server is back before it
//! goes off, so that many a deferral is looked after twice: by the server that sleeps, and by a timer that its last turn left
//! behind.
//!
//! Who sleeps for a deadline asks to be woken earlier, by what sleeps are late, but at most a third of the span.

use abey_delivery::PollContext;

use super::World;
use super::cpu::Irq;
use super::thread::{Kind, State};
use crate::events::Event;
use crate::profile::Cost;

/// The server that looks after a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Driver {
    server: usize,
    asleep: bool,
    /// Until when it sleeps at the latest, or slept the last time.
    until: Option<u64>,
}

/// The service thread of a queue, and the server in its place.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Service {
    /// Its timer went off, and it waits for the server to leave the CPU.
    waits: bool,
    /// It was the first the last time.
    was_first: bool,
    /// Sleeps of drivers so far.
    sleeps: u32,
}

impl World<'_> {
    /// A server waits at this queue: it drives, if nobody does.
    pub(super) fn take(&mut self, queue: usize, server: usize) {
        if self.profile.service_thread.is_none() || self.settings.napi.context != PollContext::Softirq {
            return;
        }
        let driver = self.queues[queue].driver.get_or_insert(Driver { server, asleep: false, until: None });
        if driver.server == server {
            driver.asleep = false;
        }
    }

    /// A server is about to sleep: it drives those of its queues that nobody drives.
    pub(super) fn drive(&mut self, server: usize) {
        for queue in 0..self.queues.len() {
            if self.queues[queue].servers.contains(&server) {
                self.take(queue, server);
            }
        }
    }

    /// A server goes to work.
    pub(super) fn leave(&mut self, queue: usize, server: usize) {
        let driver = &mut self.queues[queue].driver;
        if driver.is_some_and(|driver| driver.server == server) {
            *driver = None;
        }
    }

    pub(super) fn leave_all(&mut self, server: usize) {
        (0..self.queues.len()).for_each(|queue| self.leave(queue, server));
    }

    /// What the NIC's interrupt costs: who drives is woken by it, or is awake already; or else the service thread is woken.
    pub(super) fn interrupt_cost(&mut self, queue: usize) -> Cost {
        let Some(service) = self.profile.service_thread else { return self.profile.interrupt.nic };
        let slept = self.queues[queue].driver.as_mut().map(|driver| std::mem::take(&mut driver.asleep));
        match slept {
            None => service.wake,
            Some(true) => self.profile.interrupt.nic,
            Some(false) => Cost::NONE,
        }
    }

    /// The service thread's timer goes off; until the thread runs nobody need set it again. Where a server's sleep ends at the
    /// same time, as that of a deferral does, either may run first: they take turns. If the server does, it is gone to work
    /// with the timer still to be seen to, sets none, and the next deferral is looked after once.
    pub(super) fn service_timer(&mut self, queue: usize) {
        self.interrupt_what_runs(self.queues[queue].timer_cpu);
        let state = &mut self.queues[queue];
        if state.driver.is_some_and(|driver| !driver.asleep) {
            state.service.was_first = !state.service.was_first;
            if !state.service.was_first {
                state.service.waits = true;
                return;
            }
        }
        self.interrupt(self.queues[queue].timer_cpu, Irq::Timer(queue));
    }

    /// The service thread's timer interrupts a CPU that is awake. One that halts, or is on its way out of that, has the
    /// timer in the same interrupt as the one that ends its server's sleep; so has, in part, one that is busy with that.
    fn interrupt_what_runs(&mut self, index: usize) {
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
        let owed = self.spend(service.interrupt.share(apart, whole));
        self.cpus[index].owed += owed;
    }

    /// A thread is woken: whether it is that of a driver that was awake already, and has polled what wakes it now.
    pub(super) fn note_woken(&mut self, thread: usize) -> bool {
        let Kind::Server(server) = self.threads[thread].kind else { return false };
        let mut awake = false;
        for driver in self.queues.iter_mut().filter_map(|queue| queue.driver.as_mut()) {
            if driver.server == server {
                awake |= !std::mem::take(&mut driver.asleep);
            }
        }
        awake
    }

    /// How long a driver that was woken too early spins.
    pub(super) fn spin_ns(&self, queue: usize) -> u64 {
        let until = self.queues[queue].driver.and_then(|driver| driver.until);
        until.map_or(0, |until| until.saturating_sub(self.now))
    }

    /// The sleep of a driver is over.
    pub(super) fn sleep_over(&mut self, queue: usize, generation: u32) {
        let is_last = self.queues[queue].service.sleeps == generation;
        let Some(driver) = &mut self.queues[queue].driver else { return };
        if !driver.asleep || !is_last {
            return;
        }
        driver.asleep = false;
        let cpu = self.threads[self.servers[driver.server].thread].cpu;
        self.interrupt(cpu, Irq::SleepOver(queue));
    }

    /// Sees to it that somebody looks after every queue's deadline, as often as anything has happened.
    pub(super) fn settle(&mut self) {
        let Some(service) = self.profile.service_thread else { return };
        for queue in 0..self.queues.len() {
            if self.queues[queue].napi.get().is_owned() {
                continue;
            }
            self.put_to_sleep(queue);
            let state = &self.queues[queue];
            // Awake, a driver looks by itself.
            let driver = state.driver.map(|driver| if driver.asleep { driver.until.unwrap_or(u64::MAX) } else { 0 });
            let timer = state.timer_event.map(|at| at - self.profile.interrupt.timer_late_ns);
            let covered = timer.into_iter().chain(driver).min();
            let uncovered = |at: &u64| covered.is_none_or(|covered| *at < covered);
            let Some(deadline) = state.deadline.map(|at| at.max(self.now)).filter(uncovered) else { continue };
            let owed = self.spend(service.arm);
            let cpu = self.server_cpu(queue);
            self.touch(cpu);
            self.cpus[cpu].owed += owed;
            let at = deadline + self.profile.interrupt.timer_late_ns;
            self.queues[queue].timer_event = Some(at);
            self.queues[queue].timer_cpu = cpu;
            self.events.push(at, Event::Timer { queue: queue as u32 });
        }
    }

    /// A driver whose thread sleeps, and has nothing to poll, sleeps until the deadline.
    fn put_to_sleep(&mut self, queue: usize) {
        let state = &self.queues[queue];
        let Some(driver) = state.driver.filter(|driver| !driver.asleep) else { return };
        let thread = &self.threads[self.servers[driver.server].thread];
        let cpu = thread.cpu;
        let busy = self.cpus[cpu].hard.is_some() || !self.cpus[cpu].hard_queue.is_empty();
        if thread.state != State::Asleep || busy {
            return;
        }
        let until = state.deadline;
        let state = &mut self.queues[queue];
        state.driver = Some(Driver { asleep: true, until, ..driver });
        state.service.sleeps = state.service.sleeps.wrapping_add(1);
        let generation = state.service.sleeps;
        if std::mem::take(&mut state.service.waits) {
            self.interrupt(cpu, Irq::Timer(queue));
        }
        if let Some(until) = until {
            let span = until.saturating_sub(self.now);
            // It runs once the interrupt is over.
            let over = self.time_of(self.profile.interrupt.timer);
            let late = self.profile.interrupt.timer_late_ns + self.profile.idle.exit_ns(span, span) + over;
            let asked = until - late.min(span / 3).min(span);
            let at = asked.max(self.now) + self.profile.interrupt.timer_late_ns;
            self.events.push(at, Event::SleepOver { queue: queue as u32, generation });
            self.interrupt(cpu, Irq::FallAsleep(queue));
        }
    }

    /// The CPU of a queue's server.
    fn server_cpu(&self, queue: usize) -> usize {
        let state = &self.queues[queue];
        state.servers.first().map_or(state.cpu, |server| self.threads[self.servers[*server].thread].cpu)
    }
}
