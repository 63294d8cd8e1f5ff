//! CPU: hardirqs over softirqs over threads over the idle loop, with the remaining time of each and the time spent.

use std::collections::VecDeque;

use abey_delivery::{Softirq, SoftirqLimits};

use super::World;
use super::softirq::SoftPhase;
use crate::events::Event;

/// Activity of a CPU. As a number, the index of the time spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Halted, or leaving the halt.
    Halted,
    Hard,
    Soft,
    Thread,
    Idle,
}

/// Interrupt request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Irq {
    /// NIC interrupt of this queue.
    Nic(usize),
    /// NAPI timer of this queue.
    Timer(usize),
    /// Timer that ends the sleep of the server that waits for this queue.
    SleepOver(usize),
    /// Not an interrupt: the server that waits for this queue falls asleep.
    FallAsleep(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleState {
    Off,
    /// In the idle loop for this many more nanoseconds.
    Entering(u64),
    Halted,
    /// Leaving the halt for this many more nanoseconds.
    Waking(u64),
}

#[derive(Debug)]
pub(super) struct Cpu {
    /// Current activity; `None` while an event is handled.
    pub(super) running: Option<Level>,
    since: u64,
    generation: u32,
    pub(super) hard: Option<(Irq, u64)>,
    /// When the current hardirq began.
    pub(super) hard_since: u64,
    pub(super) hard_queue: VecDeque<Irq>,
    pub(super) softirq: Softirq,
    pub(super) raised: bool,
    pub(super) soft: Option<(SoftPhase, u64)>,
    pub(super) current: Option<usize>,
    pub(super) run_queue: VecDeque<usize>,
    /// When the current thread began its slice.
    pub(super) slice_start: u64,
    pub(super) reschedule: bool,
    pub(super) idle: IdleState,
    /// Whether it was idle since a thread ran.
    pub(super) idled: bool,
    pub(super) ksoftirqd: usize,
    /// Nanoseconds added to the next activity, for wake-ups that this CPU has performed.
    pub(super) wakeup_cost_ns: u64,
    /// Time of the last halt, and duration of the one before.
    halted_at: u64,
    pub(super) last_halt: u64,
    /// Minimum runtime of the threads here, as in the scheduler's `min_vruntime`; it never decreases.
    pub(super) floor: u64,
    /// When the CPU became idle, if no thread runs here.
    pub(super) idle_since: Option<u64>,
    /// Moving average of idle periods, over about eight.
    pub(super) average_idle: u64,
    /// Nanoseconds spent, by [`Level`].
    pub(super) spent: [u64; 5],
}

impl Cpu {
    pub(super) fn new(limits: SoftirqLimits) -> Self {
        Self {
            running: Some(Level::Halted),
            since: 0,
            generation: 0,
            hard: None,
            hard_since: 0,
            hard_queue: VecDeque::new(),
            softirq: Softirq::new(limits),
            raised: false,
            soft: None,
            current: None,
            run_queue: VecDeque::new(),
            slice_start: 0,
            reschedule: false,
            idle: IdleState::Halted,
            idled: true,
            ksoftirqd: 0,
            wakeup_cost_ns: 0,
            halted_at: 0,
            last_halt: 0,
            floor: 0,
            idle_since: Some(0),
            average_idle: 0,
            spent: [0; 5],
        }
    }

    /// Returns whether the CPU executes nothing: it is halted, or is leaving the halt.
    pub(super) fn is_halted(&self) -> bool {
        matches!(self.idle, IdleState::Halted | IdleState::Waking(_))
    }

    /// Returns how many threads run or wait here.
    pub(super) fn threads(&self) -> usize {
        usize::from(self.current.is_some()) + self.run_queue.len()
    }
}

impl World<'_> {
    /// Interrupts the activity of a CPU, so that its work can change. It continues after the event.
    pub(super) fn touch(&mut self, index: usize) {
        let cpu = &mut self.cpus[index];
        let Some(level) = cpu.running.take() else { return };
        let since = cpu.since;
        self.trace_cpu(index, level, since);
        let cpu = &mut self.cpus[index];
        let elapsed = self.now - since;
        cpu.spent[level as usize] += elapsed;
        cpu.generation = cpu.generation.wrapping_add(1);
        let left = match level {
            Level::Halted => match &mut cpu.idle {
                IdleState::Waking(left) => Some(left),
                _ => None,
            },
            Level::Hard => cpu.hard.as_mut().map(|(_, left)| left),
            Level::Soft => cpu.soft.as_mut().map(|(_, left)| left),
            Level::Thread => {
                let thread = &mut self.threads[cpu.current.expect("a thread runs")];
                thread.runtime += elapsed;
                Some(&mut thread.left)
            }
            Level::Idle => match &mut cpu.idle {
                IdleState::Entering(left) => Some(left),
                _ => None,
            },
        };
        if let Some(left) = left {
            *left -= elapsed;
        }
        self.touched.push(index);
    }

    pub(super) fn start_touched(&mut self) {
        while let Some(cpu) = self.touched.pop() {
            self.start(cpu);
        }
    }

    /// Starts the most urgent activity of a CPU.
    fn start(&mut self, index: usize) {
        let (level, mut left) = self.most_urgent(index);
        let cpu = &mut self.cpus[index];
        if cpu.wakeup_cost_ns > 0 && level != Level::Halted {
            left = self.add_wakeup_cost(index, level);
        }
        let cpu = &mut self.cpus[index];
        cpu.running = Some(level);
        cpu.since = self.now;
        if left == Some(0) && self.recording.is_some() {
            // An activity that takes no time is completed at once, without an event in between.
            let generation = cpu.generation;
            return self.work_done(index, generation);
        }
        if let Some(left) = left {
            let event = Event::Done { cpu: index as u32, generation: cpu.generation };
            self.events.push(self.now + left, event);
        }
    }

    /// Adds the cost of performed wake-ups to the next activity. Returns the duration of that activity.
    fn add_wakeup_cost(&mut self, index: usize, level: Level) -> Option<u64> {
        let cpu = &mut self.cpus[index];
        let cost = std::mem::take(&mut cpu.wakeup_cost_ns);
        let left = match level {
            Level::Hard => cpu.hard.as_mut().map(|(_, left)| left),
            Level::Soft => cpu.soft.as_mut().map(|(_, left)| left),
            Level::Thread => cpu.current.map(|thread| &mut self.threads[thread].left),
            Level::Idle | Level::Halted => match &mut cpu.idle {
                IdleState::Entering(left) => Some(left),
                _ => None,
            },
        };
        left.map(|left| {
            *left += cost;
            *left
        })
    }

    fn most_urgent(&mut self, index: usize) -> (Level, Option<u64>) {
        loop {
            let cpu = &mut self.cpus[index];
            if let IdleState::Waking(left) = cpu.idle {
                return (Level::Halted, Some(left));
            }
            let wanted = !cpu.hard_queue.is_empty() || cpu.raised || !cpu.run_queue.is_empty();
            if cpu.idle == IdleState::Halted {
                if !wanted {
                    return (Level::Halted, None);
                }
                let halted = self.now - cpu.halted_at;
                // The CPU of a sender is awake.
                let awake = self.recording.is_some() || index >= self.server_cpus;
                let exit_ns = if awake { 0 } else { self.profile.idle.exit_ns(cpu.last_halt, halted) };
                cpu.last_halt = halted;
                cpu.idle = IdleState::Waking(exit_ns);
                continue;
            }
            if let Some((_, left)) = cpu.hard {
                return (Level::Hard, Some(left));
            }
            // In a recorded run nothing may happen between an interrupt and its softirq; in user space one thread
            // does both.
            let together = self.recording.is_some() || self.profile.service_thread.is_some();
            let softirq_first = together && (cpu.raised || cpu.soft.is_some());
            if !softirq_first && let Some(irq) = cpu.hard_queue.pop_front() {
                self.begin_hard(index, irq);
                continue;
            }
            if let Some((_, left)) = cpu.soft {
                return (Level::Soft, Some(left));
            }
            if cpu.raised {
                cpu.raised = false;
                self.begin_soft(index);
                continue;
            }
            if let Some(thread) = cpu.current {
                return (Level::Thread, Some(self.resume_thread(thread)));
            }
            if !cpu.run_queue.is_empty() {
                self.pick_thread(index);
                continue;
            }
            if let IdleState::Entering(left) = cpu.idle {
                return (Level::Idle, Some(left));
            }
            if self.fetch(index) {
                continue;
            }
            let left = self.spend(self.profile.idle.enter);
            let cpu = &mut self.cpus[index];
            cpu.idle = IdleState::Entering(left);
            cpu.idled = true;
            cpu.idle_since.get_or_insert(self.now);
            self.note_idle(index);
        }
    }

    pub(super) fn work_done(&mut self, index: usize, generation: u32) {
        let cpu = &self.cpus[index];
        if cpu.generation != generation {
            return;
        }
        let level = cpu.running.expect("a CPU that is done was running");
        self.touch(index);
        match level {
            Level::Halted => self.cpus[index].idle = IdleState::Off,
            Level::Hard => self.hard_done(index),
            Level::Soft => self.soft_done(index),
            Level::Thread => self.thread_done(index),
            Level::Idle => {
                self.cpus[index].idle = IdleState::Halted;
                self.cpus[index].halted_at = self.now;
            }
        }
    }

    pub(super) fn interrupt(&mut self, index: usize, irq: Irq) {
        self.touch(index);
        self.cpus[index].hard_queue.push_back(irq);
    }
}
