//! Threads and their scheduling: who runs on a CPU when nothing more urgent does.

use abey_delivery::{Outcome, PollContext, ThreadStep};

use super::World;
use super::cpu::IdleState;
use super::softirq::SoftPhase;
use crate::profile::Cost;

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An event-loop server.
    Server(usize),
    /// A CPU's softirq thread.
    Softirq(usize),
    /// The polling thread of this queue's NAPI instance.
    Napi(usize),
    /// A worker of the pool.
    Worker(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Asleep,
    Ready,
    Running,
}

#[derive(Debug)]
pub(super) struct Thread {
    kind: Kind,
    pub(super) cpu: usize,
    pub(super) state: State,
    /// Nanoseconds to the end of the step under way.
    pub(super) left: u64,
    /// Time on a CPU, as the scheduler counts it.
    pub(super) runtime: u64,
    /// Cycles lost to disturbance that are not paid yet.
    debt_cycles: u64,
    /// Disturbed since the step under way was priced.
    disturbed: bool,
    /// To be paid with the next step.
    owed: Cost,
    /// The poll under way: a queue (`Napi`, `Worker`), or a softirq run.
    poll: Option<SoftPhase>,
}

impl Thread {
    pub(super) fn new(kind: Kind, cpu: usize) -> Self {
        Self {
            kind,
            cpu,
            state: State::Asleep,
            left: 0,
            runtime: 0,
            debt_cycles: 0,
            disturbed: false,
            owed: Cost::NONE,
            poll: None,
        }
    }
}

impl World<'_> {
    pub(super) fn disturb(&mut self, thread: usize, cycles: u64) {
        let thread = &mut self.threads[thread];
        thread.debt_cycles += cycles;
        thread.disturbed = true;
    }

    pub(super) fn owe(&mut self, thread: usize, cost: Cost) {
        let thread = &mut self.threads[thread];
        thread.owed = thread.owed + cost;
    }

    /// Sets the price of a thread's next step.
    pub(super) fn begin_step(&mut self, thread: usize, cost: Cost) {
        let cost = cost + std::mem::take(&mut self.threads[thread].owed);
        let extra = self.pay(thread, cost.instructions);
        let left = self.spend(cost) + self.cycles(extra);
        self.threads[thread].left = left;
    }

    /// As [`Self::begin_step`], for a step whose main part is priced already.
    fn begin_priced_step(&mut self, thread: usize, left: u64) {
        self.begin_step(thread, Cost::NONE);
        self.threads[thread].left += left;
    }

    /// The part of its debt that a thread pays while it executes this many instructions.
    fn pay(&mut self, thread: usize, instructions: u64) -> u64 {
        let recovery = self.profile.processor.recovery_instructions;
        let thread = &mut self.threads[thread];
        thread.disturbed = false;
        let paid = thread.debt_cycles * instructions / (instructions + recovery);
        thread.debt_cycles -= paid;
        paid
    }

    /// How long the step under way still takes, disturbances since it was put down included.
    pub(super) fn resume_thread(&mut self, index: usize) -> u64 {
        let thread = &self.threads[index];
        if thread.disturbed && thread.left > 0 {
            let processor = &self.profile.processor;
            let instructions =
                thread.left * processor.frequency_mhz / processor.warm_cycles_per_1000_instructions.max(1);
            let extra = self.pay(index, instructions);
            let extra = self.cycles(extra);
            self.threads[index].left += extra;
        }
        self.threads[index].left
    }

    pub(super) fn wake(&mut self, index: usize) {
        if self.threads[index].state != State::Asleep {
            return;
        }
        let cpu = self.threads[index].cpu;
        self.touch(cpu);
        self.owe(index, self.profile.thread.wake);
        // A sleeper is not owed all the time it slept, only half a slice of it.
        let credit = self.profile.thread.slice_ns / 2;
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
        cpu.reschedule |= current.is_some_and(|current| runtime < current);
    }

    fn least_runtime(&self, cpu: usize) -> Option<u64> {
        let cpu = &self.cpus[cpu];
        cpu.current.iter().chain(&cpu.run_queue).map(|thread| self.threads[*thread].runtime).min()
    }

    pub(super) fn wake_worker(&mut self, near: usize) {
        let asleep = |thread: &Thread| matches!(thread.kind, Kind::Worker(_)) && thread.state == State::Asleep;
        let count = self.threads.len();
        let first = self.threads.iter().position(|thread| thread.cpu == near).unwrap_or(0);
        if let Some(index) = (first..first + count).map(|n| n % count).find(|n| asleep(&self.threads[*n])) {
            self.wake(index);
        }
    }

    /// Gives the CPU to the thread that had the least of it.
    pub(super) fn pick_thread(&mut self, index: usize) {
        let cpu = &self.cpus[index];
        let at = (0..cpu.run_queue.len())
            .min_by_key(|at| self.threads[cpu.run_queue[*at]].runtime)
            .expect("a thread is ready");
        let cpu = &mut self.cpus[index];
        let thread = cpu.run_queue.remove(at).expect("in the queue");
        let from_idle = std::mem::take(&mut cpu.idled);
        cpu.idle = IdleState::Off;
        cpu.current = Some(thread);
        cpu.slice_start = self.now;
        cpu.reschedule = false;
        let costs = self.profile;
        self.disturb(thread, if from_idle { costs.idle.cold_cycles } else { costs.thread.cold_cycles });
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
        let cpu = thread.cpu;
        self.cpus[cpu].current = None;
    }

    pub(super) fn thread_done(&mut self, index: usize) {
        let thread = self.cpus[index].current.expect("a thread was running");
        match self.threads[thread].kind {
            Kind::Server(server) => self.server_step(server),
            Kind::Softirq(_) => self.softirq_thread_step(thread, index),
            Kind::Napi(queue) => self.napi_thread_step(thread, queue),
            Kind::Worker(_) => self.worker_step(thread),
        }
        let cpu = &mut self.cpus[index];
        let waits = !cpu.run_queue.is_empty() && cpu.current.is_some() && self.threads[thread].poll.is_none();
        if waits && (cpu.reschedule || self.now - cpu.slice_start >= self.profile.thread.slice_ns) {
            cpu.current = None;
            cpu.run_queue.push_back(thread);
            self.threads[thread].state = State::Ready;
        }
    }

    fn softirq_thread_step(&mut self, thread: usize, cpu: usize) {
        let phase = self.threads[thread].poll.take();
        if phase.is_none() && self.cpus[cpu].softirq.is_empty() {
            return self.sleep(thread);
        }
        let next = self.softirq_step(cpu, phase.unwrap_or(SoftPhase::Entering));
        match next {
            Some((phase, left)) => {
                self.threads[thread].poll = Some(phase);
                self.begin_priced_step(thread, left);
            }
            // The run is over; another one if there is more, after the scheduler has had a look.
            None if self.cpus[cpu].softirq.is_empty() => self.sleep(thread),
            None => self.begin_step(thread, self.profile.softirq.enter),
        }
    }

    fn napi_thread_step(&mut self, thread: usize, queue: usize) {
        let cpu = self.threads[thread].cpu;
        if self.threads[thread].poll.take().is_some() {
            if let Some(left) = self.poll_goes_on(queue) {
                self.threads[thread].poll = Some(SoftPhase::Polling(queue));
                return self.begin_priced_step(thread, left);
            }
            let outcome = self.context_poll_done(queue, cpu).1;
            match self.queues[queue].napi_thread.handle_polled(outcome) {
                ThreadStep::Sleep => return self.sleep(thread),
                // Between two polls the scheduler has a look.
                ThreadStep::Poll => return self.begin_step(thread, self.profile.softirq.enter),
            }
        }
        match self.begin_context_poll(queue, PollContext::Thread, cpu) {
            Some(left) => {
                self.threads[thread].poll = Some(SoftPhase::Polling(queue));
                self.begin_priced_step(thread, left);
            }
            None => match self.queues[queue].napi_thread.handle_polled(Outcome::Released) {
                ThreadStep::Sleep => self.sleep(thread),
                ThreadStep::Poll => self.begin_step(thread, self.profile.softirq.enter),
            },
        }
    }

    fn worker_step(&mut self, thread: usize) {
        let cpu = self.threads[thread].cpu;
        if let Some(SoftPhase::Polling(queue)) = self.threads[thread].poll.take() {
            if let Some(left) = self.poll_goes_on(queue) {
                self.threads[thread].poll = Some(SoftPhase::Polling(queue));
                return self.begin_priced_step(thread, left);
            }
            let outcome = self.context_poll_done(queue, cpu).1;
            self.pool.handle_polled(self.napi_index(queue), outcome);
            return self.begin_step(thread, self.profile.softirq.enter);
        }
        while let Some(napi) = self.pool.take() {
            let queue = napi.as_usize();
            if let Some(left) = self.begin_context_poll(queue, PollContext::Workqueue, cpu) {
                self.threads[thread].poll = Some(SoftPhase::Polling(queue));
                return self.begin_priced_step(thread, left);
            }
            self.pool.handle_polled(napi, Outcome::Released);
        }
        self.sleep(thread);
    }

    pub(super) fn describe_thread(&self, index: usize) -> &'static str {
        match self.threads[index].kind {
            Kind::Server(server) => self.servers[server].doing(),
            Kind::Softirq(_) => "softirq thread",
            Kind::Napi(_) => "NAPI thread",
            Kind::Worker(_) => "worker",
        }
    }

    /// Whether anything is going to run this instance: a list it is on, or a poll of it under way.
    pub(super) fn is_runnable(&self, queue: usize) -> bool {
        let napi = self.napi_index(queue);
        self.queues[queue].polling
            || self.cpus.iter().any(|cpu| cpu.softirq.iter().any(|listed| listed == napi))
            || self.pool.iter().any(|listed| listed == napi)
            || !self.queues[queue].napi_thread.is_asleep()
    }
}
