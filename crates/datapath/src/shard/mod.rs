//! A shard: a queue pair, its NAPI instance, and the TCP/IP state of the flows that arrive there, under one lock.
//!
//! All access goes through [`Shard::with`] and `Shard::unlock`. The latter handles the interrupts, timers and forwarded
//! frames that found the lock busy, runs a raised softirq, transmits, notifies observers, and hands the interrupt and the
//! deadline to a thread that waits for them ([`abey_delivery::handoff`]).
//!
//! Lock order: a shard's lock, then an epoll's. No thread holds two shards' locks.

mod core;
mod device;
mod hairpin;
mod kernel_link;
mod kick_batch;
mod latency;
mod observers;
mod port_owners;
#[cfg(test)]
mod scripted;
mod service_epoll;
mod transmit;
mod view;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use abey_delivery::handoff::Rearm;
use abey_delivery::record::{Recorded, Recorder};
use abey_delivery::{
    Nanos, Napi, NapiConfig, NapiId, NapiIndex, NapiSettings, Outcome, PollContext, Poller, Softirq, SoftirqLimits,
};
use abey_nic::QueuePair;
use abey_tcpip::{SocketId, SocketInfo, Stack};

pub(crate) use self::core::{Caller, Core};
pub(crate) use self::hairpin::Hairpin;
pub(crate) use self::kernel_link::KernelLink;
pub(crate) use self::observers::{InterestKey, Notified, Notify, Observer};
pub(crate) use self::port_owners::PortOwners;
pub(crate) use self::service_epoll::{ServiceEpoll, WakeCauses};
pub use self::view::Census;
pub(crate) use self::view::ShardView;

use self::core::{CoreConfig, Forwarded, PollKind};
use self::latency::LatencyView;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::lock::{Held, Marks, PendingLock};
use crate::parker::Parker;
use crate::work_queue::WorkQueue;

/// The NIC's descriptor was readable.
const INTERRUPT: Marks = 1;
/// The service thread's timer fired.
const TIMER: Marks = 2;
/// Another shard forwarded frames.
const FORWARDED: Marks = 4;

/// A socket in a shard, by the shard's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SocketKey {
    pub(crate) shard: u32,
    pub(crate) socket: SocketId,
}

/// A socket, or one shard's part of a socket that spans several shards.
#[derive(Clone, Debug)]
pub(crate) struct ShardSocket {
    pub(crate) shard: Arc<Shard>,
    pub(crate) id: SocketId,
}

impl ShardSocket {
    pub(crate) fn key(&self) -> SocketKey {
        SocketKey { shard: self.shard.index.0, socket: self.id }
    }
}

/// The parts of a new shard.
pub(crate) struct ShardConfig {
    pub(crate) id: NapiId,
    pub(crate) index: NapiIndex,
    pub(crate) nic: Box<dyn QueuePair>,
    pub(crate) service_epoll: ServiceEpoll,
    pub(crate) service: Arc<Parker>,
    pub(crate) stack: Stack,
    pub(crate) config: NapiConfig,
    pub(crate) settings: NapiSettings,
    pub(crate) softirq: SoftirqLimits,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) work_queue: Arc<WorkQueue>,
    pub(crate) clock: Clock,
    /// The number of shards of the NIC.
    pub(crate) shards: usize,
    pub(crate) hairpin: Arc<Hairpin>,
    /// `None` if the device is not shared with the kernel.
    pub(crate) kernel: Option<Arc<KernelLink>>,
}

/// How a thread that is attached to a shard sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepPlan {
    /// The NIC's descriptor ends the sleep.
    pub(crate) irq: bool,
    /// When the sleep ends at the latest.
    pub(crate) until: Option<Nanos>,
    /// The sleep ignores a deferral: frames that the descriptor reports are not polled before this time.
    pub(crate) not_before: Option<Nanos>,
}

/// A queue pair with its NAPI instance and its sockets.
pub(crate) struct Shard {
    pub(crate) id: NapiId,
    pub(crate) index: NapiIndex,
    pub(crate) clock: Clock,
    lock: PendingLock<Core>,
    pub(crate) service_epoll: ServiceEpoll,
    /// Wakes the service thread.
    service: Arc<Parker>,
    work_queue: Arc<WorkQueue>,
    /// System calls that the service thread made without the lock, and that are not in the counters yet.
    service_calls: AtomicU64,
    /// Frames from other shards.
    forwarded: Mutex<Vec<Forwarded>>,
    siblings: OnceLock<Vec<Weak<Shard>>>,
    kernel: Option<Arc<KernelLink>>,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shard").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Shard {
    pub(crate) fn new(config: ShardConfig) -> Arc<Self> {
        let core = Core::new(CoreConfig {
            index: config.index,
            clock: config.clock,
            nic: config.nic,
            napi: Recorded::new(Napi::new(config.config, config.settings), config.recorder),
            stack: config.stack,
            softirq: Softirq::new(config.softirq),
            has_siblings: config.shards > 1,
            hairpin: config.hairpin,
            kernel: config.kernel.clone(),
        });
        Arc::new(Self {
            id: config.id,
            index: config.index,
            clock: config.clock,
            lock: PendingLock::new(core),
            service_epoll: config.service_epoll,
            service: config.service,
            work_queue: config.work_queue,
            service_calls: AtomicU64::new(0),
            forwarded: Mutex::default(),
            siblings: OnceLock::new(),
            kernel: config.kernel,
        })
    }

    /// Sets the other shards of the same NIC.
    ///
    /// # Panics
    /// On a second call.
    pub(crate) fn set_siblings(&self, siblings: Vec<Weak<Self>>) {
        self.siblings.set(siblings).expect("called once, when the runtime is built");
    }

    /// Runs `work` under the lock, on an application's thread.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Core) -> R) -> R {
        self.with_caller(Caller::Application, work)
    }

    pub(crate) fn with_caller<R>(&self, caller: Caller, work: impl FnOnce(&mut Core) -> R) -> R {
        let mut held = self.lock(caller);
        let result = work(&mut held);
        self.unlock(held);
        result
    }

    /// Locks. A busy lock is charged as one system call, although a short wait may take none.
    fn lock(&self, caller: Caller) -> Held<'_, Core> {
        let (mut held, waited) = self.lock.lock();
        held.caller = caller;
        held.charge(u64::from(waited));
        held
    }

    /// Unlocks. Returns whether the service thread has to poll.
    fn unlock(&self, mut held: Held<'_, Core>) -> bool {
        let (mut forwarded, mut neighbors, mut resumed) = (Vec::new(), Vec::new(), Vec::new());
        let mut has_overflow = false;
        let mut service_polls;
        loop {
            let marks = held.take_marks();
            self.handle_marks(&mut held, marks);
            held.run_pending();
            self.publish(&mut held);
            forwarded.append(&mut held.on_unlock.forwarded);
            neighbors.append(&mut held.take_neighbor_requests());
            resumed.extend(std::iter::from_fn(|| held.stack.poll_resumed_listener()).map(|at| at.port()));
            has_overflow |= held.stack.take_overflow_notice();
            held.charge_nic();
            if self.service_calls.load(Ordering::Relaxed) > 0 {
                held.counters.service_calls += self.service_calls.swap(0, Ordering::Relaxed);
            }
            service_polls = held.softirq_handed_over || !held.thread.is_asleep();
            held.invalidate_time();
            let caller = held.caller;
            match held.release() {
                None => break,
                Some(again) => {
                    held = again;
                    held.caller = caller;
                    held.counters.marks += 1;
                }
            }
        }
        if !forwarded.is_empty() {
            self.forward(&forwarded);
        }
        if let Some(kernel) = self.kernel.as_ref().filter(|_| !neighbors.is_empty()) {
            kernel.request_neighbors(&neighbors);
        }
        if let Some(kernel) = self.kernel.as_ref().filter(|_| !resumed.is_empty()) {
            kernel.report_resumed_listeners(self.index, &resumed);
        }
        if let Some(kernel) = self.kernel.as_ref().filter(|_| has_overflow) {
            kernel.notify_overflow();
        }
        service_polls
    }

    fn handle_marks(&self, core: &mut Core, marks: Marks) {
        if marks & INTERRUPT != 0 {
            core.handoff.irq_fired();
            core.acknowledge_interrupt();
        }
        if marks & TIMER != 0 {
            core.handoff.timer_fired();
            core.check_timers();
        }
        if marks & FORWARDED != 0 {
            let now = core.now();
            let frames = std::mem::take(&mut *self.forwarded());
            for frame in frames {
                core.handle_forwarded(now, &frame);
            }
        }
    }

    /// Hands the interrupt and the deadline to a thread that waits for them, and wakes the threads that have to poll.
    fn publish(&self, core: &mut Core) {
        let is_live = !core.is_shut_down;
        let deadline = core.service_deadline().filter(|_| is_live);
        let rearm = core.handoff.publish(core.is_unmasked() && is_live, deadline);
        self.rearm(core, rearm);
        if std::mem::take(&mut core.on_unlock.wake_service) && core.caller != Caller::Service {
            let calls = self.service.unpark();
            core.charge(calls);
        }
        if std::mem::take(&mut core.on_unlock.schedule_worker) {
            self.work_queue.schedule(self.index);
        }
    }

    /// Makes the system calls of a hand-over.
    fn rearm(&self, core: &mut Core, rearm: Rearm) {
        if let Some(on) = rearm.irq {
            self.service_epoll.arm(on);
            core.charge(1);
        }
        if let Some(at) = rearm.timer {
            self.service_epoll.set_timer(at.saturating_sub(core.now()).into());
            core.charge(1);
        }
    }

    fn forwarded(&self) -> MutexGuard<'_, Vec<Forwarded>> {
        self.forwarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forwards frames to other shards. A shard whose lock is busy handles them when it is unlocked.
    fn forward(&self, frames: &[Forwarded]) {
        for sibling in self.siblings.get().into_iter().flatten().filter_map(Weak::upgrade) {
            let addressed = frames.iter().filter(|frame| frame.to.is_none_or(|to| to == sibling.index));
            let mut copies = addressed.cloned().collect();
            sibling.forwarded().append(&mut copies);
            if let Some(mut held) = sibling.lock.lock_or_mark(FORWARDED) {
                held.caller = Caller::Application;
                sibling.unlock(held);
            }
        }
    }
}

/// What the threads of applications do inside a wait.
impl Shard {
    /// Runs one iteration of a busy poll, and attaches the thread to the shard unless another thread is. Returns the
    /// number of packets.
    pub(crate) fn busy_poll(&self, poller: Poller, budget: u16, prefer: bool) -> u16 {
        self.with(|core| {
            core.handoff.attach(poller.0);
            core.busy_poll(poller, budget, prefer)
        })
    }

    pub(crate) fn end_busy_poll(&self, poller: Poller) {
        self.with(|core| core.end_busy_poll(poller));
    }

    /// Suspends interrupts because the application takes events, and detaches the thread.
    pub(crate) fn suspend_and_detach(&self, thread: u32) {
        self.with(|core| {
            core.suspend();
            core.handoff.detach(thread);
        });
    }

    pub(crate) fn resume(&self) {
        self.with(Core::resume);
    }

    /// Detaches a thread whose wait ends.
    pub(crate) fn detach(&self, thread: u32) {
        self.with(|core| core.handoff.detach(thread));
    }

    /// Prepares the sleep of a thread. Returns `None` if the shard is handled by other threads meanwhile.
    pub(crate) fn begin_sleep(&self, thread: u32) -> Option<SleepPlan> {
        let mut held = self.lock(Caller::Application);
        held.device.batch.end();
        // Polls in threads and in the pool of workers never run on an application's thread.
        if !held.polls_in_softirq() || !held.handoff.attach(thread) {
            held.handoff.detach(thread);
            self.unlock(held);
            return None;
        }
        held.check_timers();
        held.run_pending();
        held.sleeps_past_deferral = held.may_sleep_past_deferral();
        let plan = match held.napi_timer() {
            Some(at) if held.sleeps_past_deferral => SleepPlan { irq: true, until: None, not_before: Some(at) },
            _ => SleepPlan { irq: held.is_unmasked(), until: held.deadline(), not_before: None },
        };
        let rearm = held.handoff.park(plan.until, plan.irq);
        self.rearm(&mut held, rearm);
        held.counters.driven_sleeps += 1;
        self.unlock(held);
        Some(plan)
    }

    /// Ends the sleep of a thread. `interrupted` is whether the NIC's descriptor is readable, `calls` the number of the
    /// sleep's system calls that are charged to this shard.
    pub(crate) fn end_sleep(&self, thread: u32, interrupted: bool, calls: u64) {
        self.with(|core| {
            core.charge(calls);
            if !core.handoff.attach(thread) {
                return;
            }
            // A frame during a deferral is not an interrupt: the queue is polled when the timer has expired.
            let was_past_deferral = core.finish_sleep_past_deferral();
            if interrupted && !(was_past_deferral && core.is_masked()) {
                core.acknowledge_interrupt();
            }
            core.check_timers();
        });
    }

    /// Charges system calls of an application's thread.
    pub(crate) fn charge(&self, calls: u64) {
        self.with(|core| core.charge(calls));
    }
}

/// What the service thread and the workers do.
impl Shard {
    /// Charges system calls of the service thread, without the lock.
    pub(crate) fn charge_service(&self, calls: u64) {
        self.service_calls.fetch_add(calls, Ordering::Relaxed);
    }

    /// Handles a wake-up of the service thread; if the lock is busy, its holder does. Returns whether the service thread
    /// has to poll.
    pub(crate) fn serve(&self, causes: WakeCauses) -> bool {
        let marks = (INTERRUPT * u32::from(causes.irq)) | (TIMER * u32::from(causes.timer));
        let mut held = match self.lock.lock_or_mark(marks) {
            Some(held) => held,
            // The thread that woke the service thread has left it polls to do.
            None if causes.unparked => self.lock.lock().0,
            None => return false,
        };
        held.caller = Caller::Service;
        self.unlock(held)
    }

    /// Continues a softirq run that was handed over, or polls once in `threaded`. Returns whether there is more to poll,
    /// and whether the poll found nothing.
    pub(crate) fn serve_poll(&self) -> (bool, bool) {
        let mut held = self.lock(Caller::Service);
        let packets = held.counters.packets;
        held.check_timers();
        if held.softirq_handed_over {
            held.run_softirq(PollKind::SoftirqThread);
        }
        if !held.thread.is_asleep() {
            held.thread_poll();
        }
        let idle = held.counters.packets == packets;
        (self.unlock(held), idle)
    }

    /// Returns whether a thread waits for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        self.lock.is_contended()
    }

    /// Polls once on a worker of the pool.
    pub(crate) fn worker_poll(&self) -> Outcome {
        self.with_caller(Caller::Worker, |core| core.context_poll(PollContext::Workqueue, PollKind::Worker).1)
    }

    /// Wakes the service thread.
    pub(crate) fn wake_service(&self) {
        self.service.unpark();
    }
}

/// What the runtime does.
impl Shard {
    pub(crate) fn apply_settings(&self, settings: NapiSettings) {
        self.with(|core| core.apply_settings(settings));
    }

    pub(crate) fn enable(&self) {
        self.with(Core::enable);
    }

    /// Resets every socket, stops delivery, and wakes every waiting thread.
    pub(crate) fn shut_down(&self) {
        self.with(|core| {
            core.abort_all();
            core.run_pending();
            core.is_shut_down = true;
            core.disable();
            core.notify_all();
        });
    }

    pub(crate) fn counters(&self) -> Counters {
        self.with(|core| {
            core.charge_nic();
            core.counters
        })
    }

    pub(crate) fn view(&self) -> ShardView {
        self.with(|core| {
            core.charge_nic();
            let nic = &core.device.nic;
            ShardView {
                settings: *core.settings(),
                masked: core.is_masked(),
                counters: core.counters,
                census: core.census(),
                stack: *core.stack.counters(),
                nic: nic.counters(),
                link: nic.link(),
                mtu: nic.capabilities().mtu,
                warning: nic.warning(),
                failed: core.failed.clone(),
            }
        })
    }

    /// Returns the number of sockets, and descriptions of up to `max` of them.
    pub(crate) fn sockets(&self, max: usize) -> (usize, Vec<SocketInfo>) {
        let mut some = Vec::with_capacity(max);
        self.with(|core| {
            let sockets = core.stack.sockets();
            let count = sockets.len();
            some.extend(sockets.take(max));
            (count, some)
        })
    }

    /// Measures latencies for `span` from now. Returns the measurements so far.
    pub(crate) fn query_latency(&self, span: Nanos) -> LatencyView {
        self.with(|core| core.query_latency(span))
    }
}
