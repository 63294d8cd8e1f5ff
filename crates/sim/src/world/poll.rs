//! Queues: polls in every context, and the actions that the core requests.

use abey_delivery::check::Monitor;
use abey_delivery::{Actions, InterruptAction, NapiId, NapiIndex, NapiThread, Outcome, PollContext, TimerAction};

use abey_delivery::handoff::Handoff;
use abey_delivery::record::{Call, Recorded};

use super::World;
use super::cpu::Irq;
use super::drive::Service;
use super::thread::State;
use crate::events::Event;
use crate::nic::{Packet, RxQueue};
use crate::profile::{Cost, Profile};
use crate::random::Random;

pub(super) struct Queue {
    pub(super) rx: RxQueue,
    pub(super) napi: Recorded,
    pub(super) id: NapiId,
    /// CPU that receives its interrupts.
    pub(super) cpu: usize,
    /// CPU that armed its timer.
    pub(super) timer_cpu: usize,
    /// CPU on which a worker of the pool polled it last.
    pub(super) worked_on: usize,
    /// Servers that have sockets on it.
    pub(super) servers: Vec<usize>,
    pub(super) napi_thread: NapiThread,
    pub(super) thread: usize,
    /// Packets that the current poll has taken and not delivered yet.
    batch: Vec<Packet>,
    budget: u16,
    work: u16,
    /// Whether the current poll interrupted a thread.
    disturbing: bool,
    /// Time of the pending timer event, which may be early.
    pub(super) timer_event: Option<u64>,
    /// Deadline that the core requested last.
    pub(super) deadline: Option<u64>,
    pub(super) handoff: Handoff,
    pub(super) service: Service,
    pub(super) monitor: Option<Monitor>,
    pub(super) polling: bool,
}

impl Queue {
    pub(super) fn new(
        profile: &Profile,
        random: Random,
        id: NapiId,
        napi: Recorded,
        cpu: usize,
        thread: usize,
    ) -> Self {
        Self {
            rx: RxQueue::new(&profile.nic, random),
            napi,
            id,
            cpu,
            timer_cpu: cpu,
            worked_on: cpu,
            servers: Vec::new(),
            napi_thread: NapiThread::default(),
            thread,
            batch: Vec::new(),
            budget: 0,
            work: 0,
            disturbing: false,
            timer_event: None,
            deadline: None,
            handoff: Handoff::default(),
            service: Service::default(),
            monitor: None,
            polling: false,
        }
    }

    /// Returns how many packets the current poll has taken.
    pub(super) fn packets(&self) -> u32 {
        self.work.into()
    }
}

/// Returns the cost of processing these packets up to their sockets.
fn packets_cost(profile: &Profile, packets: &[Packet], disturbing: bool) -> Cost {
    let (mut data, mut segments, mut acks) = (0, 0, 0);
    for packet in packets {
        match packet {
            Packet::Data { .. } => data += 1,
            Packet::Segment => segments += 1,
            Packet::Ack | Packet::Window { .. } => acks += 1,
        }
    }
    let costs = &profile.softirq;
    let mut cost = costs.request.times(data) + costs.ack.times(acks);
    if segments > 0 {
        cost = cost + costs.segment.unwrap_or(costs.request).times(segments);
    }
    if disturbing {
        // Segments that arrive together displace as much as one.
        cost.stall_cycles += profile.disturbance.packet_cycles * (data + acks);
    }
    cost
}

impl World<'_> {
    pub(super) fn napi_index(&self, queue: usize) -> NapiIndex {
        NapiIndex(queue as u32)
    }

    pub(super) fn queue_of(&self, id: NapiId) -> usize {
        self.store.lookup(id).expect("queues are not torn down").as_usize()
    }

    /// Applies the core's actions on this CPU.
    pub(super) fn apply_actions(&mut self, queue: usize, cpu: usize, mut actions: Actions) {
        while !actions.is_none() {
            let mut next = Actions::NONE;
            if let Some(timer) = actions.timer {
                let state = &mut self.queues[queue];
                state.deadline = match timer {
                    TimerAction::Arm(at) => Some(at.as_nanos()),
                    TimerAction::Cancel => None,
                };
                state.timer_cpu = cpu;
                self.rearm(queue);
            }
            match actions.interrupt {
                Some(InterruptAction::Mask) => self.queues[queue].rx.mask(),
                Some(InterruptAction::Unmask) => {
                    let now = self.clock();
                    let state = &mut self.queues[queue];
                    state.rx.unmask(self.now);
                    let pending = !state.rx.ring.is_empty();
                    if let Some(monitor) = state.monitor.as_mut().filter(|_| pending) {
                        monitor.handle_interrupt(state.napi.get(), true);
                    }
                    next = state.napi.act(Call::Unmasked(now, pending));
                }
                None => {}
            }
            if let Some(context) = actions.run {
                self.hand_over(queue, cpu, context);
            }
            actions = next;
        }
    }

    fn hand_over(&mut self, queue: usize, cpu: usize, context: PollContext) {
        match context {
            PollContext::Softirq => {
                let napi = self.napi_index(queue);
                self.touch(cpu);
                let thread = self.cpus[cpu].ksoftirqd;
                let left_to_thread =
                    self.profile.softirq.yields_to_thread && self.threads[thread].state != State::Asleep;
                if self.cpus[cpu].softirq.handle_schedule(napi) && !left_to_thread {
                    self.cpus[cpu].raised = true;
                }
            }
            PollContext::Thread | PollContext::BusyThread => {
                if self.queues[queue].napi_thread.handle_wake() {
                    self.wake(self.queues[queue].thread, cpu);
                }
            }
            PollContext::Workqueue => {
                if self.pool.handle_schedule(self.napi_index(queue)) {
                    self.wake_worker(cpu);
                }
            }
        }
    }

    /// Schedules a timer event at the core's deadline, unless an earlier one is pending.
    pub(super) fn rearm(&mut self, queue: usize) {
        if self.profile.service_thread.is_some() {
            return; // see `publish`
        }
        let state = &mut self.queues[queue];
        let Some(at) = state.deadline else { return };
        let at = at.max(self.now) + self.profile.interrupt.timer_late_ns;
        if state.timer_event.is_none_or(|pending| pending > at) {
            state.timer_event = Some(at);
            self.events.push(at, Event::Timer { queue: queue as u32 });
        }
    }

    /// Handles a timer event: raises the interrupt if the deadline has come, or schedules a later event.
    pub(super) fn timer_event(&mut self, queue: usize) {
        let state = &mut self.queues[queue];
        if state.timer_event != Some(self.now) {
            return;
        }
        if self.profile.service_thread.is_some() {
            return self.service_timer(queue);
        }
        state.timer_event = None;
        match state.deadline {
            Some(at) if at <= self.now => self.interrupt(self.queues[queue].timer_cpu, Irq::Timer(queue)),
            Some(_) => self.rearm(queue),
            None => {}
        }
    }

    /// Starts a poll in a context. Returns the duration of its first part, or `None` if the context does not own the
    /// instance.
    pub(super) fn begin_context_poll(&mut self, queue: usize, by: PollContext, cpu: usize) -> Option<u64> {
        let budget = self.queues[queue].napi.begin(Call::BeginPoll(by))?;
        let disturbing = by == PollContext::Softirq && self.cpus[cpu].current.is_some();
        Some(self.begin_poll(queue, budget, disturbing, Cost::NONE))
    }

    /// Starts a poll. Returns the duration of its first part, with `extra`.
    pub(super) fn begin_poll(&mut self, queue: usize, budget: u16, disturbing: bool, extra: Cost) -> u64 {
        let state = &mut self.queues[queue];
        if let Some(monitor) = &mut state.monitor {
            monitor.handle_poll_begin(state.napi.get()).expect("the core keeps its invariants");
        }
        state.polling = true;
        state.budget = budget;
        state.work = 0;
        state.disturbing = disturbing;
        let cost = self.take_packets(queue) + self.profile.softirq.poll + extra;
        if self.recording.is_some() { 0 } else { self.spend(cost) }
    }

    /// Takes packets from the ring within the budget. Returns their cost.
    fn take_packets(&mut self, queue: usize) -> Cost {
        let profile = self.profile;
        let state = &mut self.queues[queue];
        state.batch.clear();
        let count = state.rx.take(self.now, usize::from(state.budget - state.work), &mut state.batch);
        state.work += count as u16;
        packets_cost(profile, &state.batch, state.disturbing)
    }

    /// Delivers the packets of one part of a poll. Returns the duration of the next part, or `None` if the queue is
    /// empty or the budget is used up.
    pub(super) fn poll_goes_on(&mut self, queue: usize, cpu: usize) -> Option<u64> {
        let batch = std::mem::take(&mut self.queues[queue].batch);
        for packet in &batch {
            match *packet {
                Packet::Data { conn, segments } => {
                    self.data_received(conn, segments, cpu, self.queues[queue].disturbing);
                }
                Packet::Window { conn, segments } => self.window_opens(conn, segments),
                Packet::Segment | Packet::Ack => {}
            }
        }
        let state = &mut self.queues[queue];
        state.batch = batch;
        if state.rx.ring.is_empty() || state.work == state.budget {
            return None;
        }
        let cost = self.take_packets(queue);
        Some(self.spend(cost))
    }

    /// Completes a poll in a context. Returns its work and the outcome for the instance.
    pub(super) fn context_poll_done(&mut self, queue: usize, cpu: usize) -> (u16, Outcome) {
        self.poll_done(queue, cpu, true)
    }

    /// Completes a busy poll. Returns its work.
    pub(super) fn busy_poll_done(&mut self, queue: usize, cpu: usize) -> u16 {
        self.poll_done(queue, cpu, false).0
    }

    fn poll_done(&mut self, queue: usize, cpu: usize, by_context: bool) -> (u16, Outcome) {
        let now = self.clock();
        let state = &mut self.queues[queue];
        let work = state.work;
        state.polling = false;
        self.counts.polls += 1;
        self.counts.polled += u64::from(work);
        self.counts.empty_polls += u64::from(work == 0);
        let done = state.napi.poll_done(now, work);
        if let Some(monitor) = &mut state.monitor {
            let pending = !state.rx.ring.is_empty();
            monitor
                .handle_poll_done(now, state.napi.get(), work, pending, by_context, &done)
                .expect("the core keeps its invariants");
        }
        self.apply_actions(queue, cpu, done.actions);
        (work, done.outcome)
    }
}
