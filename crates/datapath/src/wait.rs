//! Waiting in an application's thread, asleep or busy polling.
//!
//! A thread sleeps on its own parker, and on the interrupts and deadlines of the shards to which it is attached.

use std::os::fd::AsFd;
use std::time::Duration;

use abey_delivery::{Nanos, SocketBusyPoll, SocketWait, WaitStep};
use abey_tcpip::Readiness;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};

use crate::app_thread::AppThread;
use crate::clock::Clock;
use crate::environment::{Env, Environment, Found};
use crate::error::SystemError;
use crate::kernel_wait::{KernelWait, WaitOutcome};
use crate::shard::{Observer, Shard, ShardSocket, SleepPlan};

/// The longest time that a thread busy-waits for, because a timer would cost as much.
const SPIN_LIMIT: Nanos = Nanos::from_micros(15);

/// A shard to which a sleeping thread is attached.
struct Attached<'a> {
    shard: &'a Shard,
    plan: SleepPlan,
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SleepResult {
    /// Another thread woke it, or it did not sleep.
    pub(crate) woken: bool,
    /// One of the kernel's descriptors is ready.
    pub(crate) kernel: bool,
    /// A signal came.
    pub(crate) signal: bool,
}

impl SleepResult {
    /// Returns the outcome of a wait with a [`KernelWait`] that this sleep ends, if it ends the wait.
    pub(crate) fn outcome(self) -> Option<WaitOutcome> {
        self.kernel.then_some(WaitOutcome::Kernel).or_else(|| self.signal.then_some(WaitOutcome::Signal))
    }
}

/// The sleeps of one wait.
#[derive(Clone, Copy)]
pub(crate) struct Sleeper<'a> {
    pub(crate) thread: &'a AppThread,
    pub(crate) clock: Clock,
    /// The system call in which the wait sleeps; `None` for a plain `ppoll`.
    pub(crate) kernel: Option<&'a dyn KernelWait>,
}

impl Sleeper<'_> {
    /// Sleeps until another thread wakes this one, an interrupt or deadline of a shard was handled, one of the kernel's
    /// descriptors is ready, a signal comes, or `until`.
    ///
    /// `prepare` runs when the thread is attached to the shards, and before it sleeps. It announces the sleep
    /// ([`Parker::park`](crate::parker::Parker::park)), checks the condition of the wait a last time, and returns whether to
    /// sleep.
    pub(crate) fn sleep<'s>(
        &self,
        shards: impl Iterator<Item = &'s Shard>,
        until: Option<Nanos>,
        prepare: impl FnOnce() -> bool,
    ) -> SleepResult {
        let mut attached = Vec::new();
        let (mut until, mut first) = (until, None);
        for shard in shards {
            first = first.or(Some(shard));
            if let Some(plan) = shard.begin_sleep(self.thread.number) {
                attached.push(Attached { shard, plan });
                until = until.into_iter().chain(plan.until).min();
            }
        }
        let mut calls = 0;
        let (mut result, mut irqs) = (SleepResult { woken: true, ..SleepResult::default() }, Vec::new());
        let sleeps = prepare();
        if sleeps {
            (result, irqs) = self.block(until, &attached);
            calls += 1;
        }
        calls += self.thread.parker.finish(sleeps && result.woken);
        if attached.is_empty()
            && let Some(shard) = first
        {
            shard.charge(calls);
        }
        let mut irqs = irqs.into_iter();
        for Attached { shard, plan } in attached {
            let interrupted = plan.irq && irqs.next().unwrap_or(false);
            if let Some(at) = plan.not_before.filter(|at| interrupted && *at <= self.clock.now() + SPIN_LIMIT) {
                self.spin_until(at);
            }
            shard.end_sleep(self.thread.number, interrupted, std::mem::take(&mut calls));
        }
        Env::after_sleep();
        // The work of the shards may have made a socket ready and have notified this thread. Then it must not sleep again.
        result.woken |= self.thread.parker.take_notification();
        result
    }

    /// Makes the system call of a sleep. Returns its result, and for each attached shard with an interrupt whether that
    /// came.
    fn block(&self, until: Option<Nanos>, attached: &[Attached<'_>]) -> (SleepResult, Vec<bool>) {
        let mut descriptors = Vec::with_capacity(1 + attached.len());
        descriptors.push(PollFd::new(&self.thread.parker, PollFlags::IN));
        let with_irq = attached.iter().filter(|attached| attached.plan.irq);
        let nics = with_irq.map(|attached| attached.shard.service_epoll.nic.as_fd());
        descriptors.extend(nics.map(|nic| PollFd::from_borrowed_fd(nic, PollFlags::IN)));
        let poll_once = |timeout: Option<&Timespec>| {
            let kernel = match self.kernel {
                None => poll(&mut descriptors, timeout).map(|_| false),
                Some(kernel) => kernel.poll(&mut descriptors, timeout),
            }?;
            let is_ready = |descriptor: &PollFd<'_>| !descriptor.revents().is_empty();
            let (own, nics) = (&descriptors[0], &descriptors[1..]);
            let irqs = if nics.iter().any(is_ready) { nics.iter().map(is_ready).collect() } else { Vec::new() };
            Ok(Found { unparked: is_ready(own), irqs, kernel })
        };
        let has_irq = attached.first().map(|attached| attached.plan.irq);
        let found = Env::sleep(until, has_irq, poll_once, |until, poll_once| self.sleep_until(until, poll_once));
        let signal = found == Err(Errno::INTR);
        let Found { unparked, irqs, kernel } = found.unwrap_or_default();
        (SleepResult { woken: unparked, kernel, signal }, irqs)
    }

    /// Sleeps by `poll_once` until that finds something, or until `until`, rather exactly: the timeout is shortened by the
    /// lateness of earlier sleeps, and the thread busy-waits for the rest.
    fn sleep_until(
        &self,
        until: Nanos,
        mut poll_once: impl FnMut(Option<&Timespec>) -> Result<Found>,
    ) -> Result<Found> {
        let begin = self.clock.now();
        let span = until.saturating_sub(begin);
        let mut lateness = self.thread.lateness.get();
        let asked = span - lateness.lead(span);
        let timeout = Timespec::try_from(Duration::from(asked)).ok();
        let found = poll_once(timeout.as_ref());
        if found.as_ref().is_ok_and(Found::is_empty) {
            lateness.observe(self.clock.now().saturating_sub(begin + asked));
            self.thread.lateness.set(lateness);
            self.spin_until(until);
        }
        found
    }

    fn spin_until(&self, until: Nanos) {
        Env::before_spin(until);
        while self.clock.now() < until {
            std::hint::spin_loop();
        }
    }
}

/// Checks the kernel's descriptors without waiting.
pub(crate) fn poll_kernel(kernel: &dyn KernelWait) -> Option<WaitOutcome> {
    match kernel.poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(true) => Some(WaitOutcome::Kernel),
        Err(Errno::INTR) => Some(WaitOutcome::Signal),
        _ => None,
    }
}

/// Takes one step of a busy poll at one shard. Returns the number of packets.
pub(crate) fn busy_step(shard: &Shard, thread: &AppThread, step: WaitStep) -> u16 {
    let work = match step {
        WaitStep::Poll { budget, prefer, .. } => shard.busy_poll(thread.poller(), budget, prefer),
        WaitStep::EndPoll { .. } => {
            shard.end_busy_poll(thread.poller());
            0
        }
        _ => 0,
    };
    Env::after_poll();
    work
}

/// Waits until a socket is ready for some of `interest` or has failed, or until `until`. Returns whether it is ready.
pub(crate) fn wait_for(
    sockets: &[ShardSocket],
    interest: Readiness,
    until: Option<Nanos>,
    busy: Option<SocketBusyPoll>,
) -> std::result::Result<bool, SystemError> {
    let wanted = sockets.iter().map(|socket| (socket, interest));
    // A signal ends a sleep early, and the wait sleeps again.
    Ok(wait_any(wanted, until, busy, None)? == WaitOutcome::Events)
}

/// Waits until one of the `wanted` sockets is ready for some of its interest or has failed, one of the kernel's descriptors
/// is ready, a signal comes, or until `until`. Without sockets it returns at once.
pub(crate) fn wait_any<'a>(
    wanted: impl Iterator<Item = (&'a ShardSocket, Readiness)> + Clone,
    until: Option<Nanos>,
    busy: Option<SocketBusyPoll>,
    kernel: Option<&dyn KernelWait>,
) -> std::result::Result<WaitOutcome, SystemError> {
    let thread = AppThread::current().map_err(SystemError::Sleep)?;
    let mut shards: Vec<&Shard> = Vec::new();
    for (ShardSocket { shard, .. }, _) in wanted.clone() {
        if !shards.iter().any(|known| known.index == shard.index) {
            shards.push(shard);
        }
    }
    let Some(first) = shards.first().copied() else { return Ok(WaitOutcome::TimedOut) };
    for (socket, interest) in wanted.clone() {
        let observer = Observer::Thread { parker: thread.parker.clone(), interest };
        socket.shard.with(|core| core.sockets.observe(socket.id, observer));
    }
    let is_ready = |(socket, interest): (&ShardSocket, Readiness)| {
        let wants_room = interest.contains(Readiness::WRITABLE);
        let readiness = socket.shard.with(|core| core.readiness(socket.id, wants_room));
        // A connection that the peer has closed may still have data to send.
        let ends = if interest == Readiness::DRAINED { Readiness::NONE } else { Readiness::ERROR | Readiness::HANG_UP };
        readiness.intersects(interest | ends)
    };
    let sleeper = Sleeper { thread: &thread, clock: first.clock, kernel };
    let mut wait = SocketWait::new(thread.poller());
    wait.begin(until, Some(first.id), busy);
    // A busy poll polls the shards in turn.
    let mut turn = shards.iter().cycle();
    let outcome = loop {
        let ready = wanted.clone().any(is_ready);
        match wait.next(first.clock.now(), ready) {
            WaitStep::Deliver => break WaitOutcome::Events,
            WaitStep::TimedOut => break WaitOutcome::TimedOut,
            WaitStep::Sleep { until } => {
                let is_idle = || thread.parker.park() && !wanted.clone().any(is_ready);
                let slept = sleeper.sleep(shards.iter().copied(), until, is_idle);
                // A signal ends a wait with a `KernelWait`, and no other.
                if let Some(outcome) = slept.outcome().filter(|_| kernel.is_some()) {
                    break outcome;
                }
            }
            step @ WaitStep::EndPoll { .. } => {
                for shard in &shards {
                    busy_step(shard, &thread, step);
                }
            }
            step => {
                busy_step(turn.next().unwrap_or(&first), &thread, step);
            }
        }
    };
    for (socket, _) in wanted {
        socket.shard.with(|core| {
            core.sockets.remove_thread(socket.id, &thread.parker);
            core.handoff.detach(thread.number);
        });
    }
    Ok(outcome)
}
