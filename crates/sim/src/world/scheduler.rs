//! The scheduler: where a woken thread goes, who runs on a CPU when nothing more urgent does, and who is moved.
//!
//! It is a fair scheduler per CPU, as Linux' was until version 6.5: the thread that has had the least of a CPU runs next,
//! for a slice if others wait; a woken one takes over at once if it is far enough behind. A thread that may run anywhere is
//! placed when it wakes, and moved while it waits. What decides about both is what the scheduler sees of a CPU: the
//! threads on it. It does not see softirqs. So a CPU that polls in softirq on top of its idle loop *looks idle*; threads
//! are woken onto it, wait for the end of the run, and are not moved away, since nobody else is on that CPU. A softirq
//! thread or a NAPI thread that polls is seen and avoided; but a softirq thread that has to wait for its CPU cannot leave it,
//! while a NAPI thread can.

use super::World;
use super::cpu::IdleState;
use super::thread::{Kind, State};
use crate::events::Event;
use crate::profile::Cost;
use crate::recording::What;

impl World<'_> {
    /// Wakes a thread, from something that happens on CPU `waker`.
    pub(super) fn wake(&mut self, index: usize, waker: usize) {
        if self.threads[index].state != State::Asleep {
            return;
        }
        if matches!(self.threads[index].kind, Kind::Server(_)) {
            self.note(What::Woken);
        }
        let (cpu, looked_at) = self.place(index, waker);
        self.charge(waker, cpu, looked_at);
        self.touch(cpu);
        if !self.note_woken(index) {
            self.owe(index, self.profile.thread.wake);
        }
        self.move_to(index, cpu);
        // A sleeper is not owed all the time it slept.
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

    /// Whether the scheduler takes a CPU to be idle: no thread runs there or waits. What it does besides is not seen.
    fn looks_idle(&self, cpu: usize) -> bool {
        self.cpus[cpu].threads() == 0
    }

    /// The CPU for a thread that wakes: its last one or the waking one if either looks idle, else another one that does,
    /// else it waits at the one of the two with fewer threads. Also how many others were looked at.
    fn place(&mut self, index: usize, waker: usize) -> (usize, u64) {
        let thread = &self.threads[index];
        let last = thread.cpu;
        if thread.pinned || self.looks_idle(last) {
            return (last, 0);
        }
        // A sender's CPU is not the server's to run on.
        let waker = if waker < self.server_cpus { waker } else { last };
        if self.looks_idle(waker) {
            return (waker, 0);
        }
        let target = if self.cpus[waker].threads() < self.cpus[last].threads() { waker } else { last };
        let (found, looked_at) = if self.idle_cores { self.find_core(target) } else { self.find_cpu(target) };
        (found.unwrap_or(target), looked_at)
    }

    /// The first CPU after this one that looks idle, of those that are worth looking at.
    fn find_cpu(&self, target: usize) -> (Option<usize>, u64) {
        let count = self.server_cpus;
        let scan = self.profile.thread.wake_scan_cpus.map_or(count, |most| count.min(1 + most as usize));
        match (1..scan).find(|n| self.looks_idle((target + n) % count)) {
            Some(n) => (Some((target + n) % count), n as u64),
            None => (None, scan as u64 - 1),
        }
    }

    /// The first core after this CPU's of which both hyperthreads look idle, or else the first CPU that does. If there is no
    /// such core, nobody looks for one until one becomes idle.
    fn find_core(&mut self, target: usize) -> (Option<usize>, u64) {
        let cores = self.server_cpus / 2;
        let mut one = None;
        for n in 1..=cores {
            let core = (target + n) % cores;
            match [core, core + cores].map(|cpu| self.looks_idle(cpu)) {
                [true, true] => return (Some(core), 2 * n as u64),
                [true, false] => one = one.or(Some(core)),
                [false, true] => one = one.or(Some(core + cores)),
                [false, false] => {}
            }
        }
        self.idle_cores = false;
        (one, 2 * cores as u64)
    }

    /// A CPU becomes idle; perhaps its core does.
    pub(super) fn note_idle(&mut self, index: usize) {
        if self.scenario.topology.hyperthreads && !self.idle_cores && index < self.server_cpus {
            let count = self.server_cpus;
            self.idle_cores = self.looks_idle((index + count / 2) % count);
        }
    }

    /// Charges the waking CPU for a wake-up.
    fn charge(&mut self, waker: usize, cpu: usize, looked_at: u64) {
        let costs = &self.profile.thread;
        let mut cost = costs.wake_scan.times(looked_at);
        if cpu != waker {
            cost = cost + costs.remote_wake;
        }
        if cost != Cost::NONE {
            self.touch(waker);
            let owed = self.spend(cost);
            self.cpus[waker].owed += owed;
        }
    }

    /// Makes a thread one of another CPU's, as far ahead of or behind the others as it was.
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

    /// The least time that a thread of this CPU has had; it never goes back.
    fn floor(&mut self, cpu: usize) -> u64 {
        let least = self.least_runtime(cpu).unwrap_or(0);
        let cpu = &mut self.cpus[cpu];
        cpu.floor = cpu.floor.max(least);
        cpu.floor
    }

    /// Gives the CPU to the thread that had the least of it.
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

    /// The current thread of a CPU sleeps.
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

    /// A step of a CPU's thread is over: it gives way if it has to.
    pub(super) fn give_way(&mut self, index: usize, thread: usize) {
        let cpu = &mut self.cpus[index];
        let waits = !cpu.run_queue.is_empty() && cpu.current.is_some() && self.threads[thread].poll.is_none();
        if waits && (cpu.reschedule || self.now - cpu.slice_start >= self.profile.thread.slice_ns) {
            cpu.current = None;
            cpu.run_queue.push_back(thread);
            self.threads[thread].state = State::Ready;
        }
    }

    /// A CPU has nothing to do: it fetches a thread that waits elsewhere, if there is one, and looking for it is worth while.
    pub(super) fn fetch(&mut self, index: usize) -> bool {
        let floats = self.scenario.topology.unpinned || self.scenario.topology.unpinned_pollers;
        if !floats || self.cpus[index].average_idle < self.profile.thread.newly_idle_ns {
            return false;
        }
        let Some((_, at, from)) = self.busiest() else { return false };
        self.take_over(from, at, index);
        true
    }

    /// The CPU with the most threads, of those that have one to spare: their number, the spare one's place in the queue, and
    /// the CPU.
    fn busiest(&self) -> Option<(usize, usize, usize)> {
        let movable = |thread: &usize| !self.threads[*thread].pinned;
        let spare = |index: usize| {
            let cpu = &self.cpus[index];
            let threads = cpu.threads();
            let at = if threads < 2 { None } else { cpu.run_queue.iter().position(movable) };
            at.map(|at| (threads, at, index))
        };
        // The first of equals.
        (0..self.server_cpus).rev().filter_map(spare).max_by_key(|(threads, ..)| *threads)
    }

    fn take_over(&mut self, from: usize, at: usize, to: usize) {
        let thread = self.cpus[from].run_queue.remove(at).expect("in the queue");
        self.move_to(thread, to);
        self.cpus[to].run_queue.push_back(thread);
    }

    /// The tick at which waiting threads are moved from the CPUs with the most to those with the fewest.
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
