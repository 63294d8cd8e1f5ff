//! The state that a shard's lock guards: the queue pair, the NAPI instance and the protocol state.
//!
//! Nothing here waits, and only the NIC makes system calls. Effects outside of the lock, such as waking the service thread,
//! are noted in [`OnUnlock`]; [`super::Shard`] applies them when it unlocks.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use abey_delivery::handoff::Handoff;
use abey_delivery::record::{Call, Recorded};
use abey_delivery::{
    Actions, InterruptAction, Nanos, NapiIndex, NapiSettings, NapiThread, Outcome, PollContext, Poller, Softirq,
    SoftirqStep, ThreadStep,
};
use abey_nic::{Frame, LinkState, QueuePair};
use abey_tcpip::{Readiness, SocketId, Stack};

use super::device::{Device, RECEIVE_BURST};
use super::hairpin::Hairpin;
use super::kernel_link::KernelLink;
use super::latency::{LatencyProbe, LatencyView};
use super::observers::SocketTable;
use super::view::Census;
use crate::clock::{CachedClock, Clock, stack_time};
use crate::counters::Counters;

/// The most frames that are delivered before a connection moves.
const MAX_DRAINED: usize = 4096;

/// The kind of thread that holds the lock, to which system calls are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Caller {
    #[default]
    Application,
    Service,
    Worker,
}

/// The kind of a poll, for the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollKind {
    Softirq,
    SoftirqThread,
    Thread,
    Worker,
    Busy,
}

/// A connection that is being handed over.
#[derive(Debug)]
struct MovingFlow {
    local: SocketAddr,
    remote: SocketAddr,
    frames: Vec<Vec<u8>>,
}

impl MovingFlow {
    /// Keeps a frame that is a segment of the connection. Returns whether it is.
    fn take(&mut self, frame: &[u8]) -> bool {
        let is_own = abey_tcpip::is_segment_of(frame, self.local, self.remote);
        if is_own {
            self.frames.push(frame.to_vec());
        }
        is_own
    }
}

/// A frame for another shard.
#[derive(Clone, Debug)]
pub(super) struct Forwarded {
    /// The shard; `None` for all others.
    pub(super) to: Option<NapiIndex>,
    pub(super) frame: Vec<u8>,
    /// The host sent it to itself.
    pub(super) is_looped: bool,
}

/// The most frames of the host to itself that one holder of the lock delivers. The rest is due at once.
const LOOP_BUDGET: usize = 4096;

/// Effects that are applied when the shard is unlocked.
#[derive(Debug, Default)]
pub(super) struct OnUnlock {
    /// The service thread has to poll.
    pub(super) wake_service: bool,
    /// The pool of workers has to poll.
    pub(super) schedule_worker: bool,
    /// The softirq was raised.
    softirq: bool,
    /// Frames for other shards.
    pub(super) forwarded: Vec<Forwarded>,
}

/// The state under the lock.
pub(crate) struct Core {
    index: NapiIndex,
    clock: CachedClock,
    pub(super) device: Device,
    napi: Recorded,
    pub(crate) stack: Stack,
    /// The softirq of a CPU that has this one instance.
    softirq: Softirq,
    /// A softirq run exceeded its budget, and the service thread continues it.
    pub(super) softirq_handed_over: bool,
    pub(super) thread: NapiThread,
    /// Which thread receives the interrupt and the deadline.
    pub(crate) handoff: Handoff,
    pub(super) counters: Counters,
    pub(super) on_unlock: OnUnlock,
    pub(super) caller: Caller,
    /// The parked waiter ignores the deferral's deadline and sleeps until a frame arrives.
    pub(super) sleeps_past_deferral: bool,
    has_siblings: bool,
    hairpin: Arc<Hairpin>,
    /// `None` if the device is not shared with the kernel.
    kernel: Option<Arc<KernelLink>>,
    pub(crate) sockets: SocketTable,
    latency: LatencyProbe,
    /// The connection that is being handed over, and its frames.
    moving: Option<MovingFlow>,
    /// The error with which the device failed. After that it neither receives nor transmits.
    pub(crate) failed: Option<Arc<str>>,
    /// The runtime was dropped.
    pub(crate) is_shut_down: bool,
}

/// The constant parts of a [`Core`].
pub(super) struct CoreConfig {
    pub(super) index: NapiIndex,
    pub(super) clock: Clock,
    pub(super) nic: Box<dyn QueuePair>,
    pub(super) napi: Recorded,
    pub(super) stack: Stack,
    pub(super) softirq: Softirq,
    pub(super) has_siblings: bool,
    pub(super) hairpin: Arc<Hairpin>,
    pub(super) kernel: Option<Arc<KernelLink>>,
}

impl Core {
    pub(super) fn new(config: CoreConfig) -> Self {
        let CoreConfig { index, clock, nic, napi, stack, softirq, has_siblings, hairpin, kernel } = config;
        Self {
            index,
            clock: CachedClock::new(clock, None),
            device: Device::new(nic, stack.config().settings()),
            napi,
            stack,
            softirq,
            softirq_handed_over: false,
            thread: NapiThread::default(),
            handoff: Handoff::default(),
            counters: Counters::default(),
            on_unlock: OnUnlock::default(),
            caller: Caller::default(),
            sleeps_past_deferral: false,
            has_siblings,
            hairpin,
            kernel,
            sockets: SocketTable::default(),
            latency: LatencyProbe::default(),
            moving: None,
            failed: None,
            is_shut_down: false,
        }
    }

    /// Returns the time, which is read once per holder of the lock and per poll.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Makes the next call of [`Self::now`] read the time again.
    pub(super) fn invalidate_time(&mut self) {
        self.clock.invalidate();
    }

    /// Returns the time as the stack's type.
    pub(crate) fn stack_now(&self) -> abey_tcpip::Instant {
        stack_time(self.now())
    }

    /// Charges system calls to the thread that holds the lock.
    pub(super) fn charge(&mut self, calls: u64) {
        match self.caller {
            Caller::Application => self.counters.application_calls += calls,
            Caller::Service => self.counters.service_calls += calls,
            Caller::Worker => self.counters.worker_calls += calls,
        }
    }

    /// Charges the NIC's system calls since the last call of this function.
    pub(super) fn charge_nic(&mut self) {
        let calls = self.device.take_calls();
        self.charge(calls);
    }
}

/// Delivery: interrupts, timers and polls.
impl Core {
    /// Applies the actions of the delivery core.
    ///
    /// A raised softirq runs in [`Core::run_pending`], before the lock is released and on the same thread: as in the kernel
    /// it runs where the event was handled.
    fn apply_actions(&mut self, mut actions: Actions) {
        while !actions.is_none() {
            let mut next = Actions::NONE;
            match actions.interrupt {
                Some(InterruptAction::Mask) => self.device.mask(),
                Some(InterruptAction::Unmask) => {
                    let pending = self.device.unmask() && self.failed.is_none();
                    let now = self.now();
                    next = self.napi.act(Call::Unmasked(now, pending));
                }
                None => {}
            }
            // `deadline` reads the timer from the instance.
            match actions.run {
                Some(PollContext::Softirq) => self.on_unlock.softirq |= self.softirq.handle_schedule(self.index),
                Some(PollContext::Thread | PollContext::BusyThread) => {
                    self.on_unlock.wake_service |= self.thread.handle_wake();
                }
                Some(PollContext::Workqueue) => self.on_unlock.schedule_worker = true,
                None => {}
            }
            actions = next;
        }
    }

    fn act(&mut self, call: Call) {
        let actions = self.napi.act(call);
        self.apply_actions(actions);
    }

    /// Acknowledges the NIC's interrupt after its descriptor was readable, and handles it.
    pub(super) fn acknowledge_interrupt(&mut self) {
        match self.device.acknowledge() {
            Ok(false) => return,
            Ok(true) => {
                self.counters.interrupts += 1;
                self.latency.frame_arrived(|| self.clock.now());
            }
            // The poll that follows has the same error, and records it.
            Err(_) => {}
        }
        let now = self.now();
        self.act(Call::Interrupt(now));
    }

    /// Handles every deadline that has passed.
    pub(super) fn check_timers(&mut self) {
        let now = self.now();
        self.device.batch.check(now);
        self.handle_stack_timeout(now);
        if self.napi.get().timer().is_some_and(|at| at <= now) {
            let actions = self.napi.act(Call::Timer(now));
            self.counters.timer_polls += u64::from(actions.run.is_some());
            self.apply_actions(actions);
        }
        if self.device.nic.deadline().is_some_and(|at| at <= now.into()) {
            self.act(Call::Interrupt(now));
        }
    }

    /// Runs the softirq if it was raised, transmits, delivers frames to this host, and notifies observers.
    pub(super) fn run_pending(&mut self) {
        let mut looped = 0;
        loop {
            while std::mem::take(&mut self.on_unlock.softirq) {
                self.run_softirq(PollKind::Softirq);
            }
            self.flush();
            if looped < LOOP_BUDGET && self.has_looped() {
                looped += self.deliver_looped();
                continue;
            }
            // On request, a full transmit ring interrupts when it has room.
            let is_blocked = self.device.transmit.is_blocked();
            if !is_blocked || self.device.asked_for_room || !self.is_unmasked() || self.failed.is_some() {
                break;
            }
            self.device.asked_for_room = true;
            if self.device.unmask() {
                let now = self.now();
                self.act(Call::Interrupt(now));
            }
        }
        self.notify_observers();
    }

    /// Runs the softirq once, within its budget.
    pub(super) fn run_softirq(&mut self, kind: PollKind) {
        let now = self.now();
        self.softirq_handed_over = false;
        self.softirq.begin_run(now);
        loop {
            let now = self.now();
            match self.softirq.next(now) {
                SoftirqStep::Poll(napi) => {
                    let (work, outcome) = self.context_poll(PollContext::Softirq, kind);
                    self.softirq.handle_polled(napi, work, outcome);
                }
                SoftirqStep::Done => break,
                SoftirqStep::HandOver(_) => {
                    self.softirq_handed_over = true;
                    self.on_unlock.wake_service = true;
                    break;
                }
            }
        }
        self.counters.squeezes += self.softirq.take_squeezes();
    }

    /// Polls once in a context, if that context owns the instance.
    pub(super) fn context_poll(&mut self, context: PollContext, kind: PollKind) -> (u16, Outcome) {
        let Some(budget) = self.napi.begin(Call::BeginPoll(context)) else { return (0, Outcome::Released) };
        let work = self.poll(budget, kind);
        let now = self.now();
        let done = self.napi.poll_done(now, work);
        self.apply_actions(done.actions);
        (work, done.outcome)
    }

    /// Polls once in the instance's thread. Returns whether the thread continues to poll.
    pub(super) fn thread_poll(&mut self) -> bool {
        let (_, outcome) = self.context_poll(PollContext::Thread, PollKind::Thread);
        self.thread.handle_polled(outcome) == ThreadStep::Poll
    }

    /// Runs one iteration of an application's busy poll. Returns the number of packets.
    pub(super) fn busy_poll(&mut self, poller: Poller, budget: u16, prefer: bool) -> u16 {
        self.device.batch.end();
        self.check_timers();
        let Some(budget) = self.napi.begin(Call::BeginBusyPoll(poller, budget, prefer)) else { return 0 };
        self.finish_busy_poll(budget)
    }

    fn finish_busy_poll(&mut self, budget: u16) -> u16 {
        let work = self.poll(budget, PollKind::Busy);
        let now = self.now();
        let done = self.napi.poll_done(now, work);
        self.apply_actions(done.actions);
        work
    }

    /// Ends an application's busy poll.
    pub(super) fn end_busy_poll(&mut self, poller: Poller) {
        let now = self.now();
        let (last, actions) = self.napi.end_busy_poll(now, poller);
        self.apply_actions(actions);
        if let Some(budget) = last {
            self.finish_busy_poll(budget);
        }
    }

    /// Suspends interrupts: an application takes events.
    pub(super) fn suspend(&mut self) {
        let now = self.now();
        let actions = self.napi.act(Call::Suspend(now));
        self.counters.suspensions += u64::from(actions.timer.is_some());
        self.apply_actions(actions);
    }

    /// Ends the suspension of interrupts: an application found no events.
    pub(super) fn resume(&mut self) {
        let now = self.now();
        let actions = self.napi.act(Call::Resume(now));
        self.counters.resumes += u64::from(actions.run.is_some());
        self.apply_actions(actions);
    }

    pub(super) fn apply_settings(&mut self, settings: NapiSettings) {
        let actions = self.napi.act(Call::Settings(settings));
        debug_assert!(actions.is_none(), "settings take effect at the next schedule");
    }

    pub(super) fn enable(&mut self) {
        self.act(Call::Enable);
    }

    /// Takes the instance out of delivery, also from a context that owns it.
    pub(super) fn disable(&mut self) {
        self.act(Call::Disable);
    }

    /// Returns whether interrupts may come.
    pub(super) fn is_unmasked(&self) -> bool {
        !self.napi.get().is_masked() && !self.napi.get().is_unmasking()
    }

    pub(super) fn is_masked(&self) -> bool {
        self.napi.get().is_masked()
    }

    pub(super) fn settings(&self) -> &NapiSettings {
        self.napi.get().settings()
    }

    /// Returns whether polls run in the softirq, so that the thread that handles an interrupt may run them.
    pub(super) fn polls_in_softirq(&self) -> bool {
        self.settings().context == PollContext::Softirq
    }
}

/// Deadlines.
impl Core {
    /// Returns whether a thread that parks may ignore the deferral's deadline and sleep until a frame arrives.
    ///
    /// A deferral is a time during which the queue is *not* polled after a poll. When it ends, a poll is due; if that poll
    /// finds nothing, the next deferral begins, up to a hundred times. A timed sleep for each of them costs more than
    /// everything else (13 us of CPU on the machine this was written on, for a deferral of 20 us). If the descriptor
    /// reports frames even while the interrupt is masked, all polls that would find nothing can be omitted. The first poll
    /// that finds something is as late as its wake-up, which the delivery core allows of any timer, and never early.
    ///
    /// Not while interrupts are suspended: then an application is working and will poll again.
    pub(super) fn may_sleep_past_deferral(&mut self) -> bool {
        let napi = self.napi.get();
        napi.is_masked()
            && !napi.is_owned()
            && !napi.is_suspended()
            && napi.timer().is_some()
            && self.failed.is_none()
            && self.device.nic.readable_while_masked()
            && self.device.nic.deadline().is_none()
            && !self.device.transmit.is_blocked()
            && matches!(self.device.nic.acknowledge(), Ok(false))
    }

    /// Returns whether the sleep that ends had ignored the deferral's deadline, and clears the flag.
    pub(super) fn finish_sleep_past_deferral(&mut self) -> bool {
        let was_past = std::mem::take(&mut self.sleeps_past_deferral);
        if was_past {
            let deferred_until = self.napi.get().timer();
            self.latency.woke_from_deferral(deferred_until, || self.clock.now());
        }
        was_past
    }

    /// Returns when the instance's timer expires.
    pub(super) fn napi_timer(&self) -> Option<Nanos> {
        self.napi.get().timer()
    }

    /// Returns when the shard must be polled at the latest.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.napi_timer().into_iter().chain(self.protocol_deadline()).chain(self.loop_deadline()).min()
    }

    /// Returns when frames to this host must be delivered that the last holder of the lock left.
    fn loop_deadline(&self) -> Option<Nanos> {
        self.has_looped().then(|| self.now())
    }

    fn protocol_deadline(&self) -> Option<Nanos> {
        let stack = self.stack.poll_timeout().map(|at| Nanos::from_nanos(at.0));
        stack.into_iter().chain(self.device.deadline()).chain(self.device.batch.deadline()).min()
    }

    /// Returns when the service thread must poll the shard at the latest.
    ///
    /// TCP's timers are rounded up to a jiffy (4 ms), as the kernel's are. While the instance's own timer is armed, they
    /// wait for it, because the queue is polled then anyway. So they cost nothing while interrupts are suspended.
    pub(super) fn service_deadline(&self) -> Option<Nanos> {
        const JIFFY: u64 = 4_000_000;
        let round_up = |at: Nanos| Nanos::from_nanos(at.as_nanos().div_ceil(JIFFY) * JIFFY);
        let ignores_timer = self.sleeps_past_deferral && !self.napi.get().is_suspended();
        let timer = self.napi_timer().filter(|_| !ignores_timer).or_else(|| self.protocol_deadline().map(round_up));
        timer.into_iter().chain(self.device.batch.deadline()).chain(self.loop_deadline()).min()
    }
}

/// Frames.
impl Core {
    /// Delivers up to `budget` packets from the queue to their sockets, and transmits the stack's answers.
    fn poll(&mut self, budget: u16, kind: PollKind) -> u16 {
        let now = self.now();
        self.device.set_time(now);
        let mut work = 0;
        while work < budget && self.failed.is_none() {
            let burst = usize::from(budget - work).min(RECEIVE_BURST);
            match self.device.receive(burst) {
                Ok(frames) => {
                    let count = frames.len();
                    if self.has_siblings {
                        let shared = frames.iter().filter(|frame| concerns_all_shards(frame));
                        let copies =
                            shared.map(|frame| Forwarded { to: None, frame: frame.to_vec(), is_looped: false });
                        self.on_unlock.forwarded.extend(copies);
                    }
                    let owners = self.kernel.as_ref().and_then(|kernel| kernel.port_owners.as_ref());
                    if owners.is_some() || self.moving.is_some() {
                        let (index, forwarded) = (self.index, &mut self.on_unlock.forwarded);
                        let moving = &mut self.moving;
                        let own = frames.iter().filter(|frame| {
                            if moving.as_mut().is_some_and(|moving| moving.take(frame)) {
                                return false;
                            }
                            let to = owners.and_then(|owners| owners.forward_to(frame, index));
                            forwarded.extend(to.map(|_| Forwarded { to, frame: frame.to_vec(), is_looped: false }));
                            to.is_none()
                        });
                        self.stack.handle_frames(stack_time(now), own.map(|frame| &**frame));
                    } else if count > 0 {
                        self.stack.handle_frames(stack_time(now), frames.iter().map(|frame: &Frame| &**frame));
                    }
                    work += count as u16;
                    if count < burst {
                        break;
                    }
                }
                Err(error) => self.fail(&error),
            }
        }
        self.latency.polled(now, work, budget);
        self.count_poll(work, kind);
        self.handle_stack_timeout(now);
        self.flush();
        if work > 0 {
            self.invalidate_time();
        }
        work
    }

    /// Delivers the frames that are in the receive ring now, even if another context owns the NAPI instance, because a
    /// connection is about to move. At most [`MAX_DRAINED`].
    pub(crate) fn drain_ring(&mut self) {
        let mut left = MAX_DRAINED;
        while left > 0 && self.failed.is_none() {
            let work = self.poll(RECEIVE_BURST as u16, PollKind::Softirq);
            if usize::from(work) < RECEIVE_BURST {
                break;
            }
            left -= RECEIVE_BURST;
        }
    }

    /// Does what [`Self::drain_ring`] does, but returns the frames of one TCP connection instead of delivering them.
    pub(crate) fn drain_flow(&mut self, local: SocketAddr, remote: SocketAddr) -> Vec<Vec<u8>> {
        self.moving = Some(MovingFlow { local, remote, frames: Vec::new() });
        self.drain_ring();
        self.moving.take().map_or_else(Vec::new, |moving| moving.frames)
    }

    fn count_poll(&mut self, work: u16, kind: PollKind) {
        let counters = &mut self.counters;
        match kind {
            PollKind::Softirq => counters.softirq_polls += 1,
            PollKind::SoftirqThread => counters.softirq_thread_polls += 1,
            PollKind::Thread => counters.thread_polls += 1,
            PollKind::Worker => counters.worker_polls += 1,
            PollKind::Busy => {
                counters.busy_polls += 1;
                counters.busy_poll_packets += u64::from(work);
            }
        }
        counters.empty_polls += u64::from(work == 0);
        counters.packets += u64::from(work);
    }

    fn handle_stack_timeout(&mut self, now: Nanos) {
        if self.stack.poll_timeout().is_some_and(|at| at <= stack_time(now)) {
            self.stack.handle_timeout(stack_time(now));
        }
    }

    /// Handles a frame that another shard received, or sent to this host.
    pub(super) fn handle_forwarded(&mut self, now: Nanos, forwarded: &Forwarded) {
        if forwarded.is_looped {
            self.stack.handle_looped(stack_time(now), [&forwarded.frame[..]]);
        } else {
            self.stack.handle_frame(stack_time(now), &forwarded.frame);
        }
    }

    fn has_looped(&self) -> bool {
        !self.device.transmit.looped.is_empty()
    }

    /// Delivers the stack's frames to this host, and returns their number.
    fn deliver_looped(&mut self) -> usize {
        let mut frames = std::mem::take(&mut self.device.transmit.looped);
        let count = frames.len();
        self.counters.looped += count as u64;
        if self.has_siblings {
            let (index, forwarded, hairpin) = (self.index, &mut self.on_unlock.forwarded, &self.hairpin);
            frames.retain(|frame| {
                let to = hairpin.shard_of(frame);
                let all = concerns_all_shards(frame);
                if all || to != index {
                    let to = (!all).then_some(to);
                    forwarded.push(Forwarded { to, frame: frame.clone(), is_looped: true });
                }
                all || to == index
            });
        }
        let now = self.stack_now();
        self.stack.handle_looped(now, frames.iter().map(|frame| &frame[..]));
        count
    }

    /// Transmits the stack's frames.
    fn flush(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let now = self.now();
        let sent = match self.device.transmit(now, &mut self.stack) {
            Ok(sent) => sent,
            Err(error) => return self.fail(&error),
        };
        self.counters.transmitted += sent;
        if self.caller != Caller::Application || self.device.transmit.is_blocked() {
            self.device.batch.end();
        }
        if let Err(error) = self.device.kick_if_due(sent, now) {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &dyn std::error::Error) {
        self.counters.device_errors += 1;
        self.failed = Some(error.to_string().into());
        self.device.transmit.clear();
        self.notify_all();
    }

    /// Returns the neighbours that the stack needs and the kernel must resolve; none if the stack resolves them itself.
    pub(super) fn take_neighbor_requests(&mut self) -> Vec<IpAddr> {
        if self.kernel.is_none() {
            return Vec::new();
        }
        std::iter::from_fn(|| self.stack.poll_neighbor_request()).collect()
    }

    /// Returns the Ethernet address of this end.
    pub(crate) fn mac(&self) -> [u8; 6] {
        self.stack.config().settings().mac
    }

    pub(crate) fn nic_counters(&self) -> abey_nic::Counters {
        self.device.nic.counters()
    }

    pub(crate) fn nic_link(&self) -> LinkState {
        self.device.nic.link()
    }

    pub(crate) fn nic_warning(&self) -> Option<abey_nic::Warning> {
        self.device.nic.warning()
    }

    /// Returns whether the link was up before and is down now. May cost a system call.
    pub(crate) fn link_is_lost(&mut self) -> bool {
        self.device.link_is_lost()
    }
}

/// Sockets.
impl Core {
    /// Begins a transmit batch: a wait reports this number of sockets.
    pub(crate) fn begin_batch(&mut self, sockets: usize) {
        self.device.batch.begin(sockets);
    }

    /// Records that the program uses a socket, for the transmit batch.
    pub(crate) fn use_socket(&mut self, socket: SocketId) {
        self.device.batch.use_socket(socket);
    }

    /// Notifies every observer of every socket, so that it checks the socket again.
    pub(super) fn notify_all(&mut self) {
        let calls = self.sockets.notify_all();
        self.charge(calls);
    }

    /// Notifies the observers of the sockets that have events.
    fn notify_observers(&mut self) {
        let mut calls = 0;
        while let Some(event) = self.stack.poll_event() {
            let (socket, stack, sockets) = (event.socket, &mut self.stack, &self.sockets);
            let has_data = || {
                stack.readable_bytes(socket).is_ok_and(|bytes| bytes > 0)
                    || matches!(stack.next_datagram_bytes(socket), Ok(Some(_)))
            };
            self.latency.event(socket, event.edges, || sockets.is_incoming(socket), has_data);
            calls += self.sockets.notify(socket, event.edges);
        }
        calls += self.sockets.notify_room(&self.stack);
        self.charge(calls);
    }

    /// Returns what a socket is ready for.
    ///
    /// If it `wants_room` and the socket is not writable, its observers are notified when it becomes writable.
    pub(crate) fn readiness(&mut self, socket: SocketId, wants_room: bool) -> Readiness {
        if self.failed.is_some() || self.is_shut_down {
            return Readiness::READABLE | Readiness::WRITABLE | Readiness::ERROR | Readiness::HANG_UP;
        }
        let readiness = self.stack.readiness(socket);
        if wants_room && !readiness.contains(Readiness::WRITABLE) {
            self.sockets.await_room(socket);
        }
        readiness
    }

    /// Resets every socket, listeners included.
    pub(super) fn abort_all(&mut self) {
        let now = self.stack_now();
        for socket in self.sockets.ids() {
            // The connection may have ended already.
            let _ = self.stack.abort(now, socket);
        }
    }

    /// Measures latencies for `span` from now. Returns the measurements so far.
    pub(crate) fn query_latency(&mut self, span: Nanos) -> LatencyView {
        let now = self.now();
        self.latency.query(now, span)
    }

    /// Records that the program wrote to a socket.
    #[inline]
    pub(crate) fn note_answer(&mut self, socket: SocketId) {
        self.latency.answered(socket, || self.clock.now());
    }

    /// Records that this end opened the connection.
    pub(crate) fn note_outgoing(&mut self, socket: SocketId) {
        self.sockets.set_outgoing(socket);
    }

    /// Returns the numbers of sockets.
    pub(crate) fn census(&self) -> Census {
        Census {
            sockets: self.stack.socket_count(),
            time_waits: self.stack.time_wait_count(),
            held: self.sockets.len(),
            kernel_ports: 0,
        }
    }
}

/// Returns whether every shard needs a frame that the NIC delivered to one of them: an ARP answer or neighbour
/// advertisement, or an ICMP error, which the NIC steers by other addresses than those of the flow it is about.
fn concerns_all_shards(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        // ARP: answers.
        Some([0x08, 0x06]) => frame.get(20..22) == Some(&[0, 2]),
        // ICMP: unreachable, time exceeded, parameter problem.
        Some([0x08, 0x00]) => {
            let header = frame.get(14).map_or(0, |first| usize::from(first & 15) * 4);
            frame.get(23) == Some(&1) && matches!(frame.get(14 + header), Some(3 | 11 | 12))
        }
        // ICMPv6: errors, neighbour advertisements.
        Some([0x86, 0xdd]) => frame.get(20) == Some(&58) && matches!(frame.get(54), Some(1..=4 | 136)),
        _ => false,
    }
}
