//! Event-loop servers: wait, take the events, serve each of them, wait again.

use std::collections::VecDeque;

use abey_delivery::{NapiId, PollContext, TimerAction, WaitStep};

use abey_delivery::record::Call;

use super::World;
use super::thread::{Kind, State};
use super::waiter::Waiter;
use crate::events::Event;
use crate::profile::Cost;
use crate::recording::What;
use crate::scenario::Responder;
use crate::trace::Activity;

/// Connection with a request in its socket.
#[derive(Clone, Copy, Debug)]
struct Ready {
    conn: u32,
    /// Its packet was processed on top of a thread.
    disturbed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// In a wait, running or asleep.
    Waiting,
    /// In a wait, interrupted by the softirq that a resume raised.
    Resuming,
    /// In a busy poll of this queue.
    Polling(usize),
    Serving,
}

pub(super) struct Server {
    pub(super) thread: usize,
    wait: Waiter,
    phase: Phase,
    started: bool,
    ready: VecDeque<Ready>,
    /// Events of the last wait that are not served yet; the first one is being served.
    batch: VecDeque<Ready>,
    /// Number of the wait, to recognize outdated deadlines.
    generation: u32,
}

impl Server {
    pub(super) fn new(thread: usize, wait: Waiter) -> Self {
        Self {
            thread,
            wait,
            phase: Phase::Waiting,
            started: false,
            ready: VecDeque::new(),
            batch: VecDeque::new(),
            generation: 0,
        }
    }

    pub(super) fn add_socket(&mut self, napi: NapiId) {
        self.wait.add_socket(napi);
    }

    pub(super) fn handle_ready(&mut self, napi: NapiId) {
        self.wait.handle_ready(napi);
    }

    /// Returns the current activity of its thread, and the queue that it polls.
    pub(super) fn doing(&self) -> (Activity, Option<usize>) {
        match self.phase {
            Phase::Waiting | Phase::Resuming => (Activity::Wait, None),
            Phase::Polling(queue) => (Activity::BusyPoll, Some(queue)),
            Phase::Serving => (Activity::Serve, None),
        }
    }

    pub(super) fn busy_polls(&self) -> bool {
        self.wait.busy_polls()
    }
}

impl World<'_> {
    /// Delivers a request to its socket on this CPU. If the network stack responds, answers it.
    pub(super) fn deliver(&mut self, conn: u32, cpu: usize, disturbed: bool) {
        self.trace_delivered(conn);
        if self.scenario.responder == Responder::Stack {
            return self.answer(conn);
        }
        let queue = self.clients.queue(conn);
        let id = self.queues[queue].id;
        let server = &mut self.servers[self.clients.server(conn)];
        let thread = server.thread;
        server.ready.push_back(Ready { conn, disturbed: disturbed && self.threads[thread].cpu == cpu });
        server.wait.handle_ready(id);
        self.wake(thread, cpu);
    }

    /// Handles the end of a step of a server's thread.
    pub(super) fn server_step(&mut self, index: usize) {
        let server = &mut self.servers[index];
        match server.phase {
            Phase::Waiting if server.started => {
                self.note(What::Step);
                self.wait_on(index);
            }
            Phase::Waiting => {
                server.started = true;
                self.begin_wait(index);
            }
            Phase::Resuming => {
                server.phase = Phase::Waiting;
                self.wait_on(index);
            }
            Phase::Polling(queue) => {
                let thread = server.thread;
                let cpu = self.threads[thread].cpu;
                if let Some(left) = self.poll_goes_on(queue, cpu) {
                    self.threads[thread].left = left;
                    return;
                }
                let work = self.busy_poll_done(queue, cpu);
                let server = &mut self.servers[index];
                server.wait.handle_polled(work);
                server.phase = Phase::Waiting;
                if self.recording.is_some() {
                    return self.begin_step(thread, self.profile.busy_poll.iteration);
                }
                self.wait_on(index);
            }
            Phase::Serving => {
                let served = server.batch.pop_front().expect("a request was being served");
                self.served(served.conn);
                self.serve_next(index);
            }
        }
    }

    fn begin_wait(&mut self, index: usize) {
        let now = self.clock();
        let deadline = self.settings.max_wait.map(|span| now + span);
        self.counts.waits += 1;
        let server = &mut self.servers[index];
        server.phase = Phase::Waiting;
        server.generation = server.generation.wrapping_add(1);
        server.wait.begin(now, deadline);
        self.begin_step(self.servers[index].thread, self.profile.epoll.wait);
    }

    fn serve_next(&mut self, index: usize) {
        let server = &self.servers[index];
        let Some(&next) = server.batch.front() else { return self.begin_wait(index) };
        self.trace_begun(next.conn);
        let server = &self.servers[index];
        let costs = &self.profile.server;
        let mut cost = self.request_cost(next.conn);
        if next.disturbed {
            cost.stall_cycles += self.profile.disturbance.request_cycles;
        }
        let backlog = (server.batch.len() + server.ready.len()) as u64;
        cost.stall_cycles += costs.backlog_cycles * backlog / (backlog + costs.backlog_requests);
        self.begin_step(self.servers[index].thread, cost);
    }

    /// Continues a wait until a step takes time or the thread sleeps.
    fn wait_on(&mut self, index: usize) {
        loop {
            let now = self.clock();
            let server = &mut self.servers[index];
            let thread = server.thread;
            let ready = !server.ready.is_empty();
            match server.wait.next(now, ready) {
                WaitStep::Poll { napi, budget, prefer } => return self.busy_poll(index, napi, budget, prefer),
                WaitStep::EndPoll { napi } => {
                    if self.end_busy_poll(index, napi) {
                        return;
                    }
                    if self.recording.is_some() {
                        return self.begin_step(thread, self.profile.busy_poll.end);
                    }
                }
                WaitStep::Suspend { napi } => {
                    let queue = self.queue_of(napi);
                    self.detach(queue, index);
                    let actions = self.queues[queue].napi.act(Call::Suspend(now));
                    self.note_suspend(queue, actions.timer);
                    self.apply_actions(queue, self.threads[thread].cpu, actions);
                }
                WaitStep::Resume { napi } => {
                    let queue = self.queue_of(napi);
                    if let Some(monitor) = &mut self.queues[queue].monitor {
                        monitor.handle_resume();
                    }
                    let actions = self.queues[queue].napi.act(Call::Resume(now));
                    self.apply_actions(queue, self.threads[thread].cpu, actions);
                    if actions.run == Some(PollContext::Softirq) {
                        // The softirq runs before the thread continues.
                        self.servers[index].phase = Phase::Resuming;
                        self.threads[thread].left = 0;
                        return;
                    }
                }
                WaitStep::Sleep { until } => {
                    if let Some(until) = until {
                        let generation = self.servers[index].generation;
                        self.events.push(until.as_nanos(), Event::WaitOver { thread: thread as u32, generation });
                    }
                    self.attach_all(index);
                    return self.sleep(thread);
                }
                WaitStep::Deliver => {
                    self.detach_all(index);
                    return self.take_events(index);
                }
                WaitStep::TimedOut => {
                    self.detach_all(index);
                    return self.begin_wait(index);
                }
            }
        }
    }

    fn take_events(&mut self, index: usize) {
        // A receive returns one datagram.
        let receive = self.scenario.responder == Responder::Receive;
        let max = if receive { 1 } else { self.profile.server.max_events as usize };
        let server = &mut self.servers[index];
        let count = server.ready.len().min(max);
        server.batch.extend(server.ready.drain(..count));
        server.phase = Phase::Serving;
        let thread = server.thread;
        self.counts.deliveries += 1;
        self.counts.events += count as u64;
        self.add_cost(thread, self.profile.epoll.event.times(count as u64));
        self.serve_next(index);
    }

    fn busy_poll(&mut self, index: usize, napi: NapiId, budget: u16, prefer: bool) {
        let queue = self.queue_of(napi);
        self.attach(queue, index);
        let server = &mut self.servers[index];
        let (thread, poller) = (server.thread, server.wait.poller());
        let extra = self.profile.busy_poll.iteration;
        if let Some(budget) = self.queues[queue].napi.begin(Call::BeginBusyPoll(poller, budget, prefer)) {
            self.servers[index].phase = Phase::Polling(queue);
            let left = self.begin_poll(queue, budget, false, Cost::NONE);
            self.begin_poll_step(thread, extra, left);
        } else {
            if let Some(monitor) = &mut self.queues[queue].monitor {
                monitor.handle_refused(prefer);
            }
            self.begin_step(thread, extra);
        }
    }

    /// Ends a busy-poll loop. Returns true if there is a last poll, which takes time.
    fn end_busy_poll(&mut self, index: usize, napi: NapiId) -> bool {
        let now = self.clock();
        let queue = self.queue_of(napi);
        let server = &self.servers[index];
        let (thread, poller) = (server.thread, server.wait.poller());
        let (budget, actions) = self.queues[queue].napi.end_busy_poll(now, poller);
        self.apply_actions(queue, self.threads[thread].cpu, actions);
        let Some(budget) = budget else { return false };
        self.servers[index].phase = Phase::Polling(queue);
        let left = self.begin_poll(queue, budget, false, Cost::NONE);
        self.begin_poll_step(thread, self.profile.busy_poll.end, left);
        true
    }

    fn begin_poll_step(&mut self, thread: usize, extra: Cost, left: u64) {
        if self.recording.is_some() {
            // The cost of the poll follows the poll.
            self.threads[thread].left = 0;
            return;
        }
        self.begin_step(thread, extra);
        self.threads[thread].left += left;
    }

    /// Handles the deadline of a wait.
    pub(super) fn wait_over(&mut self, thread: usize, generation: u32) {
        let Kind::Server(server) = self.threads[thread].kind else { return };
        if self.threads[thread].state == State::Asleep && self.servers[server].generation == generation {
            self.wake(thread, self.threads[thread].cpu);
        }
    }

    fn note_suspend(&mut self, queue: usize, timer: Option<TimerAction>) {
        let now = self.clock();
        let state = &self.queues[queue];
        if let Some(monitor) = &state.monitor {
            monitor.handle_suspend(now, state.napi.get(), timer).expect("the core keeps its invariants");
        }
    }
}
