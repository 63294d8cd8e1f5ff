//! A shard: a queue pair, its NAPI instance and the TCP/IP state of the flows that arrive on it, under one lock.
//!
//! Everything that touches a shard goes through [`Shard::with`] or [`Shard::with_or_mark`], and so through one way of
//! letting go: take the interrupts, timers and mail that found the lock busy, run the softirq if it was raised, send, post
//! events, and see to it that somebody is responsible for what may happen next (`cover.rs`).

mod burst;
mod carry;
mod core;
mod drive;
mod events;
mod latency;
mod line;
mod serve;
mod transmit;
mod view;
mod watch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use abey_delivery::{Nanos, Napi, NapiConfig, NapiId, NapiIndex, NapiSettings, Softirq};
use abey_nic::QueuePair;
use abey_tcpip::Stack;

pub(crate) use self::core::{By, Core};
pub(crate) use self::drive::Drive;
pub(crate) use self::line::{Causes, Line};
pub(crate) use self::view::ShardView;
pub(crate) use self::watch::Watch;

use self::core::Mail;
use crate::clock::Clock;
use crate::cover::Orders;
use crate::kernel::Kernel;
use crate::lock::{Held, Marks, PendingLock};
use crate::pool::Pool;
use crate::sleeper::Sleeper;
use abey_record::{Recorded, Recorder};

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
    pub(crate) kernel: Option<Arc<Kernel>>,
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
    /// Where the device is shared with the kernel.
    kernel: Option<Arc<Kernel>>,
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
        let mut core = Core::new(parts.index, parts.clock, parts.nic, napi, parts.stack, softirq, parts.shards > 1);
        core.kernel.clone_from(&parts.kernel);
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
            kernel: parts.kernel,
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
        let (mut mail, mut wanted) = (Vec::new(), Vec::new());
        let mut work;
        loop {
            let marks = held.take_marks();
            self.deal_with(&mut held, marks);
            held.work_off();
            self.settle(&mut held);
            mail.append(&mut held.notes.mail);
            wanted.append(&mut held.wanted_neighbors());
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
        if let Some(kernel) = self.kernel.as_ref().filter(|_| !wanted.is_empty()) {
            kernel.ask(&wanted);
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
            self.line.set_timer(Nanos::from_nanos(at).saturating_sub(now).into());
            core.calls(1);
        }
    }

    fn send_mail(&self, mail: &[Mail]) {
        for sibling in self.siblings.get().into_iter().flatten().filter_map(Weak::upgrade) {
            let its = mail.iter().filter(|mail| mail.to.is_none_or(|to| to == sibling.index));
            let mut its = its.map(|mail| mail.frame.clone()).collect();
            sibling.mail.lock().unwrap_or_else(PoisonError::into_inner).append(&mut its);
            sibling.with_or_mark(By::Application, MAIL);
        }
    }
}
