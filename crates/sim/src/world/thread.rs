//! Threads and their steps.

use abey_delivery::{Outcome, PollContext, ThreadStep};

use super::World;
use super::softirq::SoftPhase;
use crate::profile::Cost;
use crate::recording::What;

/// Purpose of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Event-loop server.
    Server(usize),
    /// Softirq thread of a CPU.
    Softirq(usize),
    /// Polling thread of this queue's NAPI instance.
    Napi(usize),
    /// Worker of the pool.
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
    pub(super) kind: Kind,
    /// CPU on which it runs or ran last.
    pub(super) cpu: usize,
    /// Whether it never leaves its CPU.
    pub(super) pinned: bool,
    pub(super) state: State,
    /// Remaining nanoseconds of the current step.
    pub(super) left: u64,
    /// Time on a CPU, as the scheduler counts it.
    pub(super) runtime: u64,
    /// Cycles for refilling the caches that no step has included yet.
    refill_cycles: u64,
    /// Whether it was disturbed since the cost of the current step was computed.
    disturbed: bool,
    /// Cost that is added to the next step.
    extra_cost: Cost,
    /// Poll in progress: of a queue (`Napi`, `Worker`), or a softirq run.
    pub(super) poll: Option<SoftPhase>,
}

impl Thread {
    pub(super) fn new(kind: Kind, cpu: usize, pinned: bool) -> Self {
        Self {
            kind,
            cpu,
            pinned,
            state: State::Asleep,
            left: 0,
            runtime: 0,
            refill_cycles: 0,
            disturbed: false,
            extra_cost: Cost::NONE,
            poll: None,
        }
    }
}

impl World<'_> {
    /// Displaces a thread's working set from the caches. A second disturbance displaces only what was refilled since.
    pub(super) fn disturb(&mut self, thread: usize, cycles: u64) {
        let thread = &mut self.threads[thread];
        thread.refill_cycles = thread.refill_cycles.max(cycles);
        thread.disturbed = true;
    }

    pub(super) fn add_cost(&mut self, thread: usize, cost: Cost) {
        let thread = &mut self.threads[thread];
        thread.extra_cost = thread.extra_cost + cost;
    }

    /// Sets the cost of a thread's next step.
    pub(super) fn begin_step(&mut self, thread: usize, cost: Cost) {
        let cost = cost + std::mem::take(&mut self.threads[thread].extra_cost);
        let extra = self.pay(thread, cost.instructions);
        let left = self.spend(cost) + self.cycles(extra);
        self.threads[thread].left = left;
    }

    /// Like [`Self::begin_step`], for a step whose main cost is already known in nanoseconds.
    fn begin_priced_step(&mut self, thread: usize, left: u64) {
        self.begin_step(thread, Cost::NONE);
        self.threads[thread].left += left;
    }

    /// Returns the cycles for refilling caches while a thread executes this many instructions, and subtracts them.
    fn pay(&mut self, thread: usize, instructions: u64) -> u64 {
        let recovery = self.profile.processor.recovery_instructions;
        let thread = &mut self.threads[thread];
        thread.disturbed = false;
        let paid = thread.refill_cycles * instructions / (instructions + recovery);
        thread.refill_cycles -= paid;
        paid
    }

    /// Returns the remaining time of the current step, with disturbances since its interruption.
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

    pub(super) fn thread_done(&mut self, index: usize) {
        let thread = self.cpus[index].current.expect("a thread was running");
        match self.threads[thread].kind {
            Kind::Server(server) => self.server_step(server),
            Kind::Softirq(_) => self.softirq_thread_step(thread, index),
            Kind::Napi(queue) => self.napi_thread_step(thread, queue),
            Kind::Worker(_) => self.worker_step(thread),
        }
        self.give_way(index, thread);
    }

    /// Wakes a sleeping worker of the pool: the one on this CPU or after it if workers are pinned, else the one that
    /// slept last.
    pub(super) fn wake_worker(&mut self, near: usize) {
        let Some(worker) = self.workers.take(near % self.server_cpus) else { return };
        self.wake(worker, near);
    }

    fn softirq_thread_step(&mut self, thread: usize, cpu: usize) {
        let phase = self.threads[thread].poll.take();
        if phase.is_none() && self.cpus[cpu].softirq.is_empty() {
            return self.sleep(thread);
        }
        if phase.is_none() {
            self.note(What::Turn);
        }
        let next = self.softirq_step(cpu, phase.unwrap_or(SoftPhase::Entering));
        match next {
            Some((phase, left)) => {
                self.threads[thread].poll = Some(phase);
                self.begin_priced_step(thread, left);
            }
            // The run is over. If there is more to poll, another one follows after the scheduler's decision.
            None if self.cpus[cpu].softirq.is_empty() => self.sleep(thread),
            None => self.begin_step(thread, self.profile.softirq.enter),
        }
    }

    fn napi_thread_step(&mut self, thread: usize, queue: usize) {
        let cpu = self.threads[thread].cpu;
        if self.threads[thread].poll.take().is_some() {
            if let Some(left) = self.poll_goes_on(queue, cpu) {
                self.threads[thread].poll = Some(SoftPhase::Polling(queue));
                return self.begin_priced_step(thread, left);
            }
            let outcome = self.context_poll_done(queue, cpu).1;
            match self.queues[queue].napi_thread.handle_polled(outcome) {
                ThreadStep::Sleep => return self.sleep(thread),
                // The scheduler may preempt between two polls.
                ThreadStep::Poll => return self.begin_step(thread, self.profile.softirq.enter),
            }
        }
        self.note(What::Turn);
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
            if let Some(left) = self.poll_goes_on(queue, cpu) {
                self.threads[thread].poll = Some(SoftPhase::Polling(queue));
                return self.begin_priced_step(thread, left);
            }
            let outcome = self.context_poll_done(queue, cpu).1;
            self.pool.handle_polled(self.napi_index(queue), outcome);
            return self.begin_step(thread, self.profile.softirq.enter);
        }
        while let Some(napi) = self.pool.take() {
            let queue = napi.as_usize();
            self.note(What::Turn);
            if let Some(left) = self.begin_context_poll(queue, PollContext::Workqueue, cpu) {
                self.threads[thread].poll = Some(SoftPhase::Polling(queue));
                if self.recording.is_none() {
                    self.add_cost(thread, self.profile.thread.work_item);
                }
                // A poll's working set is in the cache of the CPU that polled last.
                if std::mem::replace(&mut self.queues[queue].worked_on, cpu) != cpu {
                    self.disturb(thread, self.profile.thread.migration_cycles);
                }
                return self.begin_priced_step(thread, left);
            }
            self.pool.handle_polled(napi, Outcome::Released);
        }
        self.sleep(thread);
    }

    /// Returns whether the instance will be polled: it is on a list, or a poll of it is in progress.
    pub(super) fn is_runnable(&self, queue: usize) -> bool {
        let napi = self.napi_index(queue);
        self.queues[queue].polling
            || self.cpus.iter().any(|cpu| cpu.softirq.iter().any(|listed| listed == napi))
            || self.pool.iter().any(|listed| listed == napi)
            || !self.queues[queue].napi_thread.is_asleep()
    }
}
