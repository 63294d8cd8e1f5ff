//! Polls by the softirq, the threads and the pool: one step takes the packets, another reports the poll.

use abey_delivery::check::Violation;
use abey_delivery::{Outcome, PollContext, PollDone, SoftirqStep, ThreadStep};

use super::{CpuPhase, Worker, World, id};

/// A poll that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InPoll {
    pub(crate) instance: usize,
    /// The number of packets taken.
    pub(crate) work: u16,
}

impl World {
    /// Takes up to `budget` packets from the queue.
    pub(super) fn take(&mut self, instance: usize, budget: u16) -> Result<InPoll, Violation> {
        let on = &mut self.instances[instance];
        on.monitor.handle_poll_begin(&on.napi)?;
        let work = on.packets.min(budget);
        on.packets -= work;
        Ok(InPoll { instance, work })
    }

    /// Reports the end of the poll to the instance, and delivers its packets.
    pub(super) fn done(&mut self, poll: InPoll, cpu: usize, to: Option<usize>) -> Result<PollDone, Violation> {
        let now = self.now;
        let on = &mut self.instances[poll.instance];
        let by_context = on.napi.context().is_some();
        let done = on.napi.handle_poll_done(now, poll.work);
        on.monitor.handle_poll_done(now, &on.napi, poll.work, on.packets > 0, by_context, &done)?;
        if let Some(to) = to {
            self.apps[to].receive(id(poll.instance));
        }
        self.act(poll.instance, cpu, done.actions);
        Ok(done)
    }

    pub(super) fn softirq_take(&mut self, cpu: usize) -> Result<(), Violation> {
        let index = match self.cpus[cpu].softirq.next(self.now) {
            SoftirqStep::Poll(index) => index,
            SoftirqStep::Done => {
                self.cpus[cpu].phase = CpuPhase::Idle;
                return Ok(());
            }
            SoftirqStep::HandOver(_) => {
                let _ = self.cpus[cpu].softirq.take_squeezes();
                self.cpus[cpu].phase = CpuPhase::Raised;
                return Ok(());
            }
        };
        match self.instances[index.as_usize()].napi.begin_poll(PollContext::Softirq) {
            Some(budget) => self.cpus[cpu].phase = CpuPhase::Polling(self.take(index.as_usize(), budget)?),
            None => {
                self.cpus[cpu].softirq.handle_polled(index, 0, Outcome::Released);
                self.cpus[cpu].phase = CpuPhase::Running;
            }
        }
        Ok(())
    }

    pub(super) fn softirq_done(&mut self, cpu: usize, to: Option<usize>) -> Result<(), Violation> {
        let CpuPhase::Polling(poll) = self.cpus[cpu].phase else { unreachable!("only offered while polling") };
        let done = self.done(poll, cpu, to)?;
        self.cpus[cpu].softirq.handle_polled(Self::index(poll.instance), poll.work, done.outcome);
        self.cpus[cpu].phase = CpuPhase::Running;
        // No party can observe the moment between the last poll and the end of the run.
        if self.cpus[cpu].softirq.is_empty() { self.softirq_take(cpu) } else { Ok(()) }
    }

    pub(super) fn thread_take(&mut self, n: usize) -> Result<(), Violation> {
        match self.instances[n].napi.begin_poll(PollContext::Thread) {
            Some(budget) => self.instances[n].thread_poll = Some(self.take(n, budget)?),
            None => {
                let _: ThreadStep = self.instances[n].thread.handle_polled(Outcome::Released);
            }
        }
        Ok(())
    }

    pub(super) fn thread_done(&mut self, n: usize, to: Option<usize>) -> Result<(), Violation> {
        let poll = self.instances[n].thread_poll.take().expect("only offered while polling");
        let done = self.done(poll, self.home(n), to)?;
        let _: ThreadStep = self.instances[n].thread.handle_polled(done.outcome);
        Ok(())
    }

    pub(super) fn worker_take(&mut self, n: usize) -> Result<(), Violation> {
        let Some(index) = self.pool.list.take() else {
            self.pool.workers[n] = Worker::Asleep;
            return Ok(());
        };
        if let Some(budget) = self.instances[index.as_usize()].napi.begin_poll(PollContext::Workqueue) {
            self.pool.workers[n] = Worker::Polling(self.take(index.as_usize(), budget)?);
        }
        Ok(())
    }

    pub(super) fn worker_done(&mut self, n: usize, to: Option<usize>) -> Result<(), Violation> {
        let Worker::Polling(poll) = self.pool.workers[n] else { unreachable!("only offered while polling") };
        self.pool.workers[n] = Worker::Awake;
        let done = self.done(poll, self.home(poll.instance), to)?;
        self.pool.list.handle_polled(Self::index(poll.instance), done.outcome);
        Ok(())
    }
}
