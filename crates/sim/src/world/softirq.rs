//! Hardirqs and softirqs of a CPU.

use abey_delivery::{Outcome as PollOutcome, PollContext, SoftirqStep};

use abey_delivery::record::Call;

use super::World;
use super::cpu::{IdleState, Irq};
use crate::profile::Cost;
use crate::recording::What;

/// Phase of a softirq run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SoftPhase {
    Entering,
    Polling(usize),
}

impl World<'_> {
    pub(super) fn begin_hard(&mut self, index: usize, irq: Irq) {
        let cost = match irq {
            Irq::Nic(queue) => self.interrupt_cost(queue),
            Irq::Timer(_) => self.profile.service_thread.map_or(self.profile.interrupt.timer, |service| service.wake),
            Irq::SleepOver(_) => self.profile.interrupt.timer,
            Irq::FallAsleep(_) => self.profile.service_thread.map_or(Cost::NONE, |service| service.sleep),
        };
        let mut left = if self.recording.is_some() { 0 } else { self.spend(cost) };
        if let Irq::SleepOver(queue) = irq {
            left = left.max(self.spin_ns(queue));
        }
        let cpu = &mut self.cpus[index];
        cpu.hard = Some((irq, left));
        cpu.hard_since = self.now;
        cpu.idle = IdleState::Off;
        if let Some(thread) = cpu.current {
            self.disturb(thread, self.profile.interrupt.cold_cycles);
        }
    }

    pub(super) fn hard_done(&mut self, index: usize) {
        let (irq, _) = self.cpus[index].hard.take().expect("a hardirq was running");
        let now = self.clock();
        match irq {
            Irq::Nic(queue) => {
                self.note(What::Interrupt);
                self.counts.interrupts += 1;
                let state = &mut self.queues[queue];
                let pending = !state.rx.ring.is_empty();
                if let Some(monitor) = &mut state.monitor {
                    monitor.handle_interrupt(state.napi.get(), pending);
                }
                let actions = state.napi.act(Call::Interrupt(now));
                self.apply_actions(queue, index, actions);
            }
            Irq::FallAsleep(_) => {}
            Irq::Timer(queue) | Irq::SleepOver(queue) => {
                self.note(What::Timer);
                let queue_state = &mut self.queues[queue];
                if irq == Irq::Timer(queue) && self.profile.service_thread.is_some() {
                    queue_state.timer_event = None;
                    queue_state.handoff.timer_fired();
                }
                let due = queue_state.napi.get().timer().is_some_and(|at| at <= now);
                let owned = queue_state.napi.get().is_owned();
                let actions = queue_state.napi.act(Call::Timer(now));
                if due {
                    queue_state.deadline = None;
                }
                if let Some(monitor) = queue_state.monitor.as_mut().filter(|_| due && !owned) {
                    monitor.handle_timer();
                }
                self.apply_actions(queue, index, actions);
                self.rearm(queue);
            }
        }
    }

    pub(super) fn begin_soft(&mut self, index: usize) {
        let left = if self.recording.is_some() { 0 } else { self.spend(self.profile.softirq.enter) };
        let cpu = &mut self.cpus[index];
        cpu.soft = Some((SoftPhase::Entering, left));
        cpu.idle = IdleState::Off;
    }

    pub(super) fn soft_done(&mut self, index: usize) {
        let (phase, _) = self.cpus[index].soft.take().expect("a softirq was running");
        let next = self.softirq_step(index, phase);
        self.cpus[index].soft = next;
    }

    /// Returns the next phase of a softirq run, in the softirq or in the CPU's thread, or `None` at its end.
    pub(super) fn softirq_step(&mut self, index: usize, phase: SoftPhase) -> Option<(SoftPhase, u64)> {
        match phase {
            SoftPhase::Entering => {
                let now = self.clock();
                self.cpus[index].softirq.begin_run(now);
            }
            SoftPhase::Polling(queue) => {
                if let Some(left) = self.poll_goes_on(queue, index) {
                    return Some((phase, left));
                }
                let (work, outcome) = self.context_poll_done(queue, index);
                let napi = self.napi_index(queue);
                self.cpus[index].softirq.handle_polled(napi, work, outcome);
            }
        }
        loop {
            let now = self.clock();
            match self.cpus[index].softirq.next(now) {
                SoftirqStep::Poll(napi) => {
                    let queue = napi.as_usize();
                    if let Some(left) = self.begin_context_poll(queue, PollContext::Softirq, index) {
                        return Some((SoftPhase::Polling(queue), left));
                    }
                    self.cpus[index].softirq.handle_polled(napi, 0, PollOutcome::Released);
                }
                SoftirqStep::Done => return None,
                SoftirqStep::HandOver(_) => {
                    self.wake(self.cpus[index].ksoftirqd, index);
                    return None;
                }
            }
        }
    }
}
