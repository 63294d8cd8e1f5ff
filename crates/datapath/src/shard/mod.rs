//! A shard: a queue pair, its NAPI instance and the TCP/IP state of the flows that arrive on it, under one lock.
//!
//! Everything that touches a shard goes through [`Shard::with`] or [`Shard::with_or_mark`], and so through one way of
//! letting go: take the interrupts, timers and mail that found the lock busy, run the softirq if it was raised, send, post
//! events, and see to it that somebody is responsible for what may happen next (`cover.rs`).

mod carry;
mod core;
mod line;
mod transmit;
mod watch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use abey_delivery::{Nanos, Napi, NapiConfig, NapiId, NapiIndex, NapiSettings, Outcome, PollContext, Poller, Softirq};
use abey_nic::QueuePair;
use abey_tcpip::Stack;

pub(crate) use self::core::{By, Core};
pub(crate) use self::line::{Causes, Line};
pub(crate) use self::watch::Watch;

use self::core::PollBy;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::cover::Orders;
use crate::lock::{Held, Marks, PendingLock};
use crate::pool::Pool;
use crate::record::{Recorded, Recorder};
use crate::sleeper::Sleeper;

const INTERRUPT: Marks = 1;
const TIMER: Marks = 2;
const MAIL: Marks = 4;

/// What a shard is made of.
pub(crate) struct Parts {
    pub(crate) id: NapiId,
    pub(crate) index: NapiIndex,
    pub(crate) nic: Box<dyn QueuePair>,
    pub(crate) line: Line,
    pub(crate) service: Arc<Sleeper>,
    pub(crate) stack: Stack,
    pub(crate) config: NapiConfig,
    pub(crate) settings: NapiSettings,
    pub(crate) softirq: abey_delivery::SoftirqLimits,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) clock: Clock,
    pub(crate) shards: usize,
}

pub(crate) struct Shard {
    pub(crate) id: NapiId,
    pub(crate) index: NapiIndex,
    pub(crate) clock: Clock,
    lock: PendingLock<Core>,
    pub(crate) line: Line,
    service: Arc<Sleeper>,
    pool: Arc<Pool>,
    /// System calls of the service thread that are not billed yet: it also makes some without the lock.
    owed: AtomicU64,
    /// Frames from other shards.
    mail: Mutex<Vec<Vec<u8>>>,
    siblings: OnceLock<Vec<Weak<Shard>>>,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shard").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Shard {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let napi = Recorded::new(Napi::new(parts.config, parts.settings), parts.recorder);
        let softirq = Softirq::new(parts.softirq);
        let core = Core::new(parts.index, parts.clock, parts.nic, napi, parts.stack, softirq, parts.shards > 1);
        Arc::new(Self {
            id: parts.id,
            index: parts.index,
            clock: parts.clock,
            lock: PendingLock::new(core),
            line: parts.line,
            service: parts.service,
            pool: parts.pool,
            owed: AtomicU64::new(0),
            mail: Mutex::new(Vec::new()),
            siblings: OnceLock::new(),
        })
    }

    /// The other shards of the same NIC.
    pub(crate) fn set_siblings(&self, siblings: Vec<Weak<Self>>) {
        self.siblings.set(siblings).expect("set once, when the runtime is built");
    }

    /// Does something with the lock held, on an application's thread.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Core) -> R) -> R {
        self.with_by(By::Application, work)
    }

    pub(crate) fn with_by<R>(&self, by: By, work: impl FnOnce(&mut Core) -> R) -> R {
        let (mut held, waited) = self.lock.lock();
        held.by = by;
        if waited {
            // Perhaps it was a short wait without one; counted all the same.
            held.calls(1);
        }
        let result = work(&mut held);
        self.let_go(held);
        result
    }

    /// An event for the shard: dealt with now if the lock is free, else by its holder.
    fn with_or_mark(&self, by: By, marks: Marks) {
        if let Some(mut held) = self.lock.lock_or_mark(marks) {
            held.by = by;
            self.let_go(held);
        }
    }

    /// The one way out of the lock. Whether the service thread has polls to do.
    fn let_go(&self, mut held: Held<'_, Core>) -> bool {
        let mut mail = Vec::new();
        let mut work;
        loop {
            let marks = held.take_marks();
            self.deal_with(&mut held, marks);
            held.work_off();
            self.settle(&mut held);
            mail.append(&mut held.notes.mail);
            held.bill_nic();
            if self.owed.load(Ordering::Relaxed) > 0 {
                held.counters.service_calls += self.owed.swap(0, Ordering::Relaxed);
            }
            work = held.handed_over || !held.thread.is_asleep();
            held.time_passes();
            let by = held.by;
            match held.release() {
                None => break,
                Some(again) => {
                    held = again;
                    held.by = by;
                    held.counters.marks += 1;
                }
            }
        }
        if !mail.is_empty() {
            self.send_mail(&mail);
        }
        work
    }

    fn deal_with(&self, core: &mut Core, marks: Marks) {
        if marks & INTERRUPT != 0 {
            core.cover.line_fired();
            core.take_interrupt();
        }
        if marks & TIMER != 0 {
            core.cover.timer_fired();
            core.check_timers();
        }
        if marks & MAIL != 0 {
            let now = core.now();
            let mail = std::mem::take(&mut *self.mail.lock().unwrap_or_else(PoisonError::into_inner));
            for frame in mail {
                core.take_mail(now, &frame);
            }
        }
    }

    /// Sees to it that somebody is responsible when the lock is free.
    fn settle(&self, core: &mut Core) {
        let deadline = core.service_deadline().map(Nanos::as_nanos);
        let orders = core.cover.settle(core.is_unmasked() && !core.over, deadline.filter(|_| !core.over));
        self.execute(core, orders);
        if std::mem::take(&mut core.notes.wake_service) && core.by != By::Service {
            let calls = self.service.wake();
            core.calls(calls);
        }
        if std::mem::take(&mut core.notes.hand_to_pool) {
            self.pool.schedule(self.index);
        }
    }

    fn execute(&self, core: &mut Core, orders: Orders) {
        if let Some(on) = orders.line {
            self.line.arm(on);
            core.calls(1);
        }
        if let Some(at) = orders.timer {
            let now = core.now();
            self.line.set_timer(at.map(|at| Nanos::from_nanos(at).saturating_sub(now).into()));
            core.calls(1);
        }
    }

    fn send_mail(&self, mail: &[Vec<u8>]) {
        for sibling in self.siblings.get().into_iter().flatten().filter_map(Weak::upgrade) {
            sibling.mail.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(mail);
            sibling.with_or_mark(By::Application, MAIL);
        }
    }
}

/// What a waiting application does; see `wait.rs`.
impl Shard {
    /// One iteration of a busy poll. The thread becomes the driver, if nobody is.
    pub(crate) fn busy_poll(&self, thread: u32, poller: Poller, budget: u16, prefer: bool) -> (u16, bool) {
        self.with(|core| {
            let drives = core.cover.take(thread);
            (core.busy_poll(poller, budget, prefer), drives)
        })
    }

    pub(crate) fn end_busy_poll(&self, poller: Poller) {
        self.with(|core| core.end_busy_poll(poller));
    }

    /// The application takes events: interrupts stay away, and the shard is given back.
    pub(crate) fn suspend_and_leave(&self, thread: u32) {
        self.with(|core| {
            core.suspend();
            core.cover.leave(thread);
        });
    }

    pub(crate) fn resume(&self) {
        self.with(Core::resume);
    }

    /// The wait is over: the shard is given back.
    pub(crate) fn leave(&self, thread: u32) {
        self.with(|core| core.cover.leave(thread));
    }

    /// The thread is about to sleep. If it may drive: whether to listen to the interrupt, and when to look at the latest.
    pub(crate) fn begin_sleep(&self, thread: u32) -> Option<(bool, Option<Nanos>)> {
        let (mut held, waited) = self.lock.lock();
        held.by = By::Application;
        held.calls(u64::from(waited));
        if !held.polls_in_softirq() || !held.cover.take(thread) {
            // Somebody else looks after it; what is in threads or in the pool is not done here.
            held.cover.leave(thread);
            self.let_go(held);
            return None;
        }
        held.check_timers();
        held.work_off();
        let (unmasked, until) = (held.is_unmasked(), held.deadline());
        let now = held.now();
        let orders = held.cover.sleep(now.as_nanos(), until.map(Nanos::as_nanos), unmasked);
        self.execute(&mut held, orders);
        held.counters.driven_sleeps += 1;
        self.let_go(held);
        Some((unmasked, until))
    }

    /// The driver is awake again. `calls`: the system calls of its sleep, if they are billed to this shard.
    pub(crate) fn end_sleep(&self, thread: u32, interrupted: bool, calls: u64) {
        self.with(|core| {
            core.calls(calls);
            if !core.cover.take(thread) {
                return;
            }
            if interrupted {
                core.take_interrupt();
            }
            core.check_timers();
        });
    }

    pub(crate) fn bill(&self, calls: u64) {
        self.with(|core| core.calls(calls));
    }
}

/// What the service thread, the pool and the runtime do.
impl Shard {
    /// The service thread has made system calls.
    pub(crate) fn owe(&self, calls: u64) {
        self.owed.fetch_add(calls, Ordering::Relaxed);
    }

    /// The service thread woke up. Whether it has polls to do; if the lock is busy, its holder deals with the causes.
    pub(crate) fn serve(&self, causes: Causes) -> bool {
        let marks = (INTERRUPT * u32::from(causes.nic)) | (TIMER * u32::from(causes.timer));
        let mut held = match self.lock.lock_or_mark(marks) {
            Some(held) => held,
            // Somebody has left it work.
            None if causes.woken => self.lock.lock().0,
            None => return false,
        };
        held.by = By::Service;
        self.let_go(held)
    }

    /// One piece of the service thread's own polling: a softirq run that was handed over, or a poll of `threaded`.
    /// Whether there is more, and whether it found nothing.
    pub(crate) fn serve_poll(&self) -> (bool, bool) {
        let (mut held, waited) = self.lock.lock();
        held.by = By::Service;
        held.calls(u64::from(waited));
        let packets = held.counters.packets;
        held.check_timers();
        if held.handed_over {
            held.run_softirq(PollBy::SoftirqThread);
        }
        if !held.thread.is_asleep() {
            held.thread_poll();
        }
        let idle = held.counters.packets == packets;
        (self.let_go(held), idle)
    }

    /// Whether somebody waits for the lock.
    pub(crate) fn is_contended(&self) -> bool {
        self.lock.is_contended()
    }

    /// One poll by a worker of the pool.
    pub(crate) fn worker_poll(&self) -> Outcome {
        self.with_by(By::Worker, |core| core.context_poll(PollContext::Workqueue, PollBy::Worker).1)
    }

    pub(crate) fn apply_settings(&self, settings: NapiSettings) {
        self.with(|core| core.apply_settings(settings));
    }

    pub(crate) fn enable(&self) {
        self.with(Core::enable);
    }

    /// The runtime ends: resets what is open, stops delivery, wakes everybody.
    pub(crate) fn shut_down(&self) {
        self.with(|core| {
            let now = core.stack_now();
            for socket in core.sockets() {
                // Listeners and connections alike; one that is gone is gone.
                let _ = core.stack.abort(now, socket);
            }
            core.work_off();
            core.over = true;
            core.disable();
            core.wake_everybody();
        });
    }

    pub(crate) fn counters(&self) -> Counters {
        self.with(|core| {
            core.bill_nic();
            core.counters
        })
    }

    /// Wakes the service thread.
    pub(crate) fn wake_service(&self) {
        self.service.wake();
    }
}
