//! Scheduler: placement of woken threads, choice of the next thread on a CPU, and migration.
//!
//! It is a fair scheduler per CPU, like that of Linux before version 6.6. The thread with the least runtime runs
//! next, for a slice if others wait. A woken thread preempts if its runtime is sufficiently less. An unpinned thread
//! is placed when it wakes, and migrated while it waits. Both decisions depend on the threads of a CPU; the scheduler
//! does not account for softirqs. A CPU that polls in a softirq on top of its idle loop therefore *appears idle*:
//! threads are woken there, wait for the end of the softirq run, and are not migrated, because they are the only
//! thread on that CPU. A softirq thread or a NAPI thread that polls is accounted for and avoided. A softirq thread
//! that waits for its CPU cannot leave it; a NAPI thread can.

use super::World;
use super::cpu::IdleState;
use super::thread::{Kind, State};
use crate::events::Event;
use crate::profile::Cost;
use crate::recording::What;

impl World<'_> {
    /// Wakes a thread, by an event on CPU `waker`.
    pub(super) fn wake(&mut self, index: usize, waker: usize) {
        if self.threads[index].state != State::Asleep {
            return;
        }
        if matches!(self.threads[index].kind, Kind::Server(_)) {
            self.note(What::Woken);
        }
        let (cpu, examined) = self.place(index, waker);
        self.charge(waker, cpu, examined);
        self.touch(cpu);
        if !self.note_woken(index) {
            self.add_cost(index, self.profile.thread.wake);
        }
        self.move_to(index, cpu);
        // A thread that slept gets only a limited credit for its sleep.
        let costs = &self.profile.thread;
        let credit = costs.sleeper_credit_ns.unwrap_or(costs.slice_ns / 2);
        let least = self.least_runtime(cpu);
        let thread = &mut self.threads[index];
        thread.state = State::Ready;
        if let Some(least) = least {
            thread.runtime = thread.runtime.max(least.saturating_sub(credit));
        }
        let runtime = thread.runtime;
        let current = self.cpus[cpu].current.map(|current| self.threads[current].runtime);
        let cpu = &mut self.cpus[cpu];
        cpu.run_queue.push_back(index);
        cpu.reschedule |= current.is_some_and(|current| runtime + costs.wakeup_granularity_ns < current);
    }

    /// Returns whether a CPU appears idle to the scheduler: no thread runs or waits there. Softirqs are not
    /// considered.
    fn appears_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].threads() == 0
    }

    /// Returns the CPU for a thread that wakes, and the number of other CPUs that were examined. It is the last CPU
    /// of the thread or the waking one if either appears idle, else another one that does, else the one of the two
    /// with fewer threads.
    fn place(&mut self, index: usize, waker: usize) -> (usize, u64) {
        let thread = &self.threads[index];
        let last = thread.cpu;
        if thread.pinned || self.appears_idle(last) {
            return (last, 0);
        }
        // The server's threads cannot run on a sender's CPU.
        let waker = if waker < self.server_cpus { waker } else { last };
        if self.appears_idle(waker) {
            return (waker, 0);
        }
        let target = if self.cpus[waker].threads() < self.cpus[last].threads() { waker } else { last };
        let (found, examined) = if self.idle_cores { self.find_core(target) } else { self.find_cpu(target) };
        (found.unwrap_or(target), examined)
    }

    /// Returns the first CPU after `target` that appears idle, among those that are examined.
    fn find_cpu(&self, target: usize) -> (Option<usize>, u64) {
        let count = self.server_cpus;
        let scan = self.profile.thread.wake_scan_cpus.map_or(count, |most| count.min(1 + most as usize));
        match (1..scan).find(|n| self.appears_idle((target + n) % count)) {
            Some(n) => (Some((target + n) % count), n as u64),
            None => (None, scan as u64 - 1),
        }
    }

    /// Returns the first core after that of `target` of which both hyperthreads appear idle, else the first CPU that
    /// does. If there is no such core, later wake-ups do not search for one until a core becomes idle.
    fn find_core(&mut self, target: usize) -> (Option<usize>, u64) {
        let cores = self.server_cpus / 2;
        let mut one = None;
        for n in 1..=cores {
            let core = (target + n) % cores;
            match [core, core + cores].map(|cpu| self.appears_idle(cpu)) {
                [true, true] => return (Some(core), 2 * n as u64),
                [true, false] => one = one.or(Some(core)),
                [false, true] => one = one.or(Some(core + cores)),
                [false, false] => {}
            }
        }
        self.idle_cores = false;
        (one, 2 * cores as u64)
    }

    /// Records that a CPU became idle, and with it perhaps its core.
    pub(super) fn note_idle(&mut self, index: usize) {
        if self.scenario.topology.hyperthreads && !self.idle_cores && index < self.server_cpus {
            let count = self.server_cpus;
            self.idle_cores = self.appears_idle((index + count / 2) % count);
        }
    }

    /// Charges a wake-up to the waking CPU.
    fn charge(&mut self, waker: usize, cpu: usize, examined: u64) {
        let costs = &self.profile.thread;
        let mut cost = costs.wake_scan.times(examined);
        if cpu != waker {
            cost = cost + costs.remote_wake;
        }
        if cost != Cost::NONE {
            self.touch(waker);
            let cost_ns = self.spend(cost);
            self.cpus[waker].wakeup_cost_ns += cost_ns;
        }
    }

    /// Moves a thread to another CPU; its runtime relative to the other threads stays the same.
    fn move_to(&mut self, index: usize, cpu: usize) {
        let last = std::mem::replace(&mut self.threads[index].cpu, cpu);
        if last == cpu {
            return;
        }
        let (from, to) = (self.floor(last), self.floor(cpu));
        let runtime = self.threads[index].runtime;
        self.threads[index].runtime = (runtime + to).saturating_sub(from);
        self.disturb(index, self.profile.thread.migration_cycles);
        self.counts.migrations += 1;
    }

    fn least_runtime(&self, cpu: usize) -> Option<u64> {
        let cpu = &self.cpus[cpu];
        cpu.current.iter().chain(&cpu.run_queue).map(|thread| self.threads[*thread].runtime).min()
    }

    /// Returns the minimum runtime of a CPU's threads; it never decreases.
    fn floor(&mut self, cpu: usize) -> u64 {
        let least = self.least_runtime(cpu).unwrap_or(0);
        let cpu = &mut self.cpus[cpu];
        cpu.floor = cpu.floor.max(least);
        cpu.floor
    }

    /// Runs the waiting thread with the least runtime.
    pub(super) fn pick_thread(&mut self, index: usize) {
        let cpu = &self.cpus[index];
        let at = (0..cpu.run_queue.len())
            .min_by_key(|at| self.threads[cpu.run_queue[*at]].runtime)
            .expect("a thread is ready");
        let now = self.now;
        let cpu = &mut self.cpus[index];
        let thread = cpu.run_queue.remove(at).expect("in the queue");
        let from_idle = std::mem::take(&mut cpu.idled);
        cpu.idle = IdleState::Off;
        cpu.current = Some(thread);
        cpu.slice_start = now;
        cpu.reschedule = false;
        cpu.floor = cpu.floor.max(self.threads[thread].runtime);
        if let Some(since) = cpu.idle_since.take() {
            cpu.average_idle -= cpu.average_idle / 8;
            cpu.average_idle += (now - since) / 8;
        }
        let costs = self.profile;
        let halted = self.cpus[index].last_halt;
        self.disturb(thread, if from_idle { costs.idle.cold_cycles(halted) } else { costs.thread.cold_cycles });
        self.counts.switches += 1;
        self.threads[thread].state = State::Running;
        if self.threads[thread].left == 0 {
            self.begin_step(thread, Cost::NONE);
        }
    }

    /// Puts the current thread of a CPU to sleep.
    pub(super) fn sleep(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        thread.state = State::Asleep;
        thread.left = 0;
        let (cpu, worker) = (thread.cpu, matches!(thread.kind, Kind::Worker(_)));
        self.cpus[cpu].current = None;
        if worker {
            self.workers.sleeping.push(index);
        }
    }

    /// Preempts a thread at the end of a step, if its slice is over or a woken thread has priority.
    pub(super) fn give_way(&mut self, index: usize, thread: usize) {
        let cpu = &mut self.cpus[index];
        let waits = !cpu.run_queue.is_empty() && cpu.current.is_some() && self.threads[thread].poll.is_none();
        if waits && (cpu.reschedule || self.now - cpu.slice_start >= self.profile.thread.slice_ns) {
            cpu.current = None;
            cpu.run_queue.push_back(thread);
            self.threads[thread].state = State::Ready;
        }
    }

    /// Migrates a waiting thread to a CPU that becomes idle, if its idle periods are long enough on average. Returns
    /// whether there was one.
    pub(super) fn fetch(&mut self, index: usize) -> bool {
        let floats = self.scenario.topology.unpinned || self.scenario.topology.unpinned_pollers;
        if !floats || self.cpus[index].average_idle < self.profile.thread.newly_idle_ns {
            return false;
        }
        let Some((_, at, from)) = self.busiest() else { return false };
        self.take_over(from, at, index);
        true
    }

    /// Returns the CPU with the most threads among those with a movable waiting thread: number of threads, position
    /// of that thread in the run queue, and CPU.
    fn busiest(&self) -> Option<(usize, usize, usize)> {
        let movable = |thread: &usize| !self.threads[*thread].pinned;
        let spare = |index: usize| {
            let cpu = &self.cpus[index];
            let threads = cpu.threads();
            let at = if threads < 2 { None } else { cpu.run_queue.iter().position(movable) };
            at.map(|at| (threads, at, index))
        };
        // The first CPU wins a tie.
        (0..self.server_cpus).rev().filter_map(spare).max_by_key(|(threads, ..)| *threads)
    }

    fn take_over(&mut self, from: usize, at: usize, to: usize) {
        let thread = self.cpus[from].run_queue.remove(at).expect("in the queue");
        self.move_to(thread, to);
        self.cpus[to].run_queue.push_back(thread);
    }

    /// Migrates waiting threads from the CPUs with the most to those with the fewest, at each balancing tick.
    pub(super) fn balance(&mut self) {
        while let Some((threads, at, from)) = self.busiest() {
            let to = (0..self.server_cpus).min_by_key(|cpu| self.cpus[*cpu].threads()).expect("there is a CPU");
            if threads < self.cpus[to].threads() + 2 {
                break;
            }
            self.touch(to);
            self.take_over(from, at, to);
        }
        self.schedule_balance();
    }

    pub(super) fn schedule_balance(&mut self) {
        if self.scenario.topology.unpinned || self.scenario.topology.unpinned_pollers {
            self.events.push(self.now + self.profile.thread.balance_ns, Event::Balance);
        }
    }
}
