//! Timeline of a traced run.

use std::collections::{BTreeMap, VecDeque};

use super::World;
use super::cpu::{Irq, Level};
use super::softirq::SoftPhase;
use super::thread::{Kind, State};
use crate::scenario::Responder;
use crate::trace::{Activity, CpuLevel, RequestTrace, Slice, Trace, Track};

/// Timeline in progress.
#[derive(Debug, Default)]
pub(super) struct Tracing {
    trace: Trace,
    interrupts: Vec<Since<Activity>>,
    timers: Vec<Since<Option<u64>>>,
    servers: Vec<Since<bool>>,
    /// Requests in their sockets by connection, oldest first.
    requests: BTreeMap<u32, VecDeque<RequestTrace>>,
}

/// State, and its start.
#[derive(Clone, Copy, Debug)]
struct Since<T> {
    state: T,
    since: u64,
}

impl<T: Copy + PartialEq> Since<T> {
    /// Sets the state. Returns the previous one with its start, if it differs.
    fn change(&mut self, state: T, now: u64) -> Option<Self> {
        (self.state != state).then(|| std::mem::replace(self, Self { state, since: now }))
    }
}

const LEVELS: [CpuLevel; 4] = [CpuLevel::Hardirq, CpuLevel::Softirq, CpuLevel::Thread, CpuLevel::Idle];

impl Tracing {
    pub(super) fn new(cpus: usize, queues: usize, servers: usize) -> Self {
        let mut tracing = Self {
            interrupts: vec![Since { state: Activity::Masked, since: 0 }; queues],
            timers: vec![Since { state: None, since: 0 }; queues],
            servers: vec![Since { state: false, since: 0 }; servers],
            ..Self::default()
        };
        let trace = &mut tracing.trace;
        for cpu in 0..cpus as u32 {
            LEVELS.into_iter().for_each(|level| trace.add_track(Track::Cpu { cpu, level }));
        }
        for queue in 0..queues as u32 {
            trace.add_track(Track::Interrupt { queue });
            trace.add_track(Track::Timer { queue });
        }
        (0..servers as u32).for_each(|server| trace.add_track(Track::Server { server }));
        tracing
    }

    fn add(&mut self, track: Track, what: Activity, from: u64, to: u64) {
        self.trace.add(Slice { track, what, from, to, packets: None });
    }
}

impl World<'_> {
    /// Records the activity of a CPU since that time.
    pub(super) fn trace_cpu(&mut self, index: usize, level: Level, since: u64) {
        if self.tracing.is_none() {
            return;
        }
        let (named, (what, packets)) = match level {
            Level::Halted => return,
            Level::Hard => (CpuLevel::Hardirq, self.describe_hard(index)),
            Level::Soft => (CpuLevel::Softirq, self.describe_soft(index)),
            Level::Thread => (CpuLevel::Thread, self.describe_current(index)),
            Level::Idle => (CpuLevel::Idle, (Activity::IdleLoop, None)),
        };
        let track = Track::Cpu { cpu: index as u32, level: named };
        let slice = Slice { track, what, from: since, to: self.now, packets };
        if let Some(tracing) = &mut self.tracing {
            tracing.trace.add(slice);
        }
    }

    fn describe_hard(&self, index: usize) -> (Activity, Option<u32>) {
        match self.cpus[index].hard {
            Some((Irq::Nic(_), _)) => (Activity::NicInterrupt, None),
            _ => (Activity::TimerInterrupt, None),
        }
    }

    fn describe_soft(&self, index: usize) -> (Activity, Option<u32>) {
        match self.cpus[index].soft {
            Some((SoftPhase::Polling(queue), _)) => (Activity::SoftirqPoll, Some(self.queues[queue].packets())),
            _ => (Activity::Softirq, None),
        }
    }

    fn describe_current(&self, index: usize) -> (Activity, Option<u32>) {
        let Some(thread) = self.cpus[index].current.map(|current| &self.threads[current]) else {
            return (Activity::Wait, None);
        };
        let polled = match thread.poll {
            Some(SoftPhase::Polling(queue)) => Some(self.queues[queue].packets()),
            _ => None,
        };
        match thread.kind {
            Kind::Server(server) => {
                let (what, queue) = self.servers[server].doing();
                (what, queue.map(|queue| self.queues[queue].packets()))
            }
            Kind::Softirq(_) => (Activity::SoftirqThread, polled),
            Kind::Napi(_) => (Activity::NapiThread, polled),
            Kind::Worker(_) => (Activity::Worker, polled),
        }
    }

    /// Records the changes of queues and servers.
    pub(super) fn trace_changes(&mut self) {
        let Some(tracing) = &mut self.tracing else { return };
        let now = self.now;
        for (index, queue) in self.queues.iter().enumerate() {
            let state = if !queue.rx.masked {
                Activity::Unmasked
            } else if queue.napi.get().is_suspended() {
                Activity::Suspended
            } else {
                Activity::Masked
            };
            if let Some(before) = tracing.interrupts[index].change(state, now) {
                tracing.add(Track::Interrupt { queue: index as u32 }, before.state, before.since, now);
            }
            if let Some(before) = tracing.timers[index].change(queue.deadline, now)
                && before.state.is_some()
            {
                tracing.add(Track::Timer { queue: index as u32 }, Activity::Armed, before.since, now);
            }
        }
        for (index, server) in self.servers.iter().enumerate() {
            let asleep = self.threads[server.thread].state == State::Asleep;
            if let Some(before) = tracing.servers[index].change(asleep, now)
                && before.state
            {
                tracing.add(Track::Server { server: index as u32 }, Activity::Asleep, before.since, now);
            }
        }
    }

    /// Records that a request was delivered to its socket.
    pub(super) fn trace_delivered(&mut self, conn: u32) {
        let now = self.now;
        let Some(tracing) = &mut self.tracing else { return };
        // Round trips between hosts are not traced.
        if self.scenario.responder == Responder::RoundTrip {
            return;
        }
        let waiting = tracing.requests.entry(conn).or_default();
        waiting.push_back(RequestTrace { connection: conn, arrived: 0, delivered: now, begun: 0, answered: 0 });
    }

    /// Records that the server began to serve the oldest delivered request of a connection.
    pub(super) fn trace_begun(&mut self, conn: u32) {
        let now = self.now;
        let Some(tracing) = &mut self.tracing else { return };
        let mut waiting = tracing.requests.get_mut(&conn).into_iter().flatten();
        if let Some(request) = waiting.find(|request| request.begun == 0) {
            request.begun = now;
        }
    }

    /// Records the answer to the oldest request of a connection, which arrived at `arrived`.
    pub(super) fn trace_answered(&mut self, conn: u32, arrived: u64) {
        let now = self.now;
        let Some(tracing) = &mut self.tracing else { return };
        let Some(request) = tracing.requests.get_mut(&conn).and_then(VecDeque::pop_front) else { return };
        let begun = request.begun.max(request.delivered);
        tracing.trace.add_request(RequestTrace { arrived, begun, answered: now, ..request });
    }

    /// Returns the finished timeline.
    pub(super) fn take_trace(&mut self) -> Option<Trace> {
        let mut tracing = self.tracing.take()?;
        let now = self.now;
        for index in 0..tracing.interrupts.len() {
            let queue = index as u32;
            let (interrupt, timer) = (tracing.interrupts[index], tracing.timers[index]);
            tracing.add(Track::Interrupt { queue }, interrupt.state, interrupt.since, now);
            if timer.state.is_some() {
                tracing.add(Track::Timer { queue }, Activity::Armed, timer.since, now);
            }
        }
        for index in 0..tracing.servers.len() {
            let server = tracing.servers[index];
            if server.state {
                tracing.add(Track::Server { server: index as u32 }, Activity::Asleep, server.since, now);
            }
        }
        Some(tracing.trace)
    }
}
