//! A wait on an epoll: takes the steps of the delivery core's [`EpollWait`].

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use abey_delivery::{EpollWait, Nanos, WaitStep};

use super::ReadyQueue;
use super::interest::Event;
use super::ready_queue::Candidate;
use crate::app_thread::AppThread;
use crate::clock::CachedClock;
use crate::error::{EpollError, SystemError};
use crate::host::Host;
use crate::kernel_wait::{KernelWait, WaitOutcome};
use crate::shard::Shard;
use crate::wait::{self, Sleeper};

/// The longest that an empty poll takes. If it seems to take longer, its thread was preempted.
const MAX_POLL_TIME: Nanos = Nanos::from_micros(10);

/// The buffers of a wait. Each thread keeps them for its next wait, so that a wait does not allocate.
#[derive(Debug)]
struct Scratch {
    wait: EpollWait,
    candidates: Vec<Candidate>,
    /// The indices of the shards to which the thread may be attached.
    attached: Vec<u32>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    /// Returns the calling thread's buffers, which are new if the thread has none or is being destroyed.
    fn take(thread: &AppThread) -> Box<Self> {
        let scratch = SCRATCH.try_with(Cell::take).ok().flatten();
        scratch.unwrap_or_else(|| {
            let wait = EpollWait::new(thread.poller());
            Box::new(Self { wait, candidates: Vec::new(), attached: Vec::new() })
        })
    }

    /// Keeps the buffers for the calling thread's next wait.
    fn keep(self: Box<Self>) {
        // The locals of a thread that is being destroyed are inaccessible, and the buffers are dropped.
        let _ = SCRATCH.try_with(|scratch| scratch.set(Some(self)));
    }
}

/// Waits for events: see [`super::Epoll::wait_with`]. `events` are the buffer and the most events.
pub(super) fn run(
    queue: &Arc<ReadyQueue>,
    host: &Host,
    (events, max): (&mut Vec<Event>, usize),
    timeout: Option<Duration>,
    kernel: Option<&dyn KernelWait>,
) -> Result<WaitOutcome, EpollError> {
    if max == 0 {
        return Err(EpollError::NoRoom);
    }
    events.clear();
    let thread = AppThread::current().map_err(SystemError::Sleep)?;
    let mut scratch = Scratch::take(&thread);
    let clock = host.clock();
    let is_zero = timeout.is_some_and(|timeout| timeout.is_zero());
    let deadline = timeout.map(|timeout| clock.after(timeout));
    let mut is_first = true;
    let result = loop {
        if host.is_shut_down() {
            break Err(EpollError::RuntimeDropped);
        }
        // A mode may limit how long one wait blocks (`fullbusy`). For the caller the rounds are one wait.
        let now = clock.now();
        let round_end = host.max_wait().map(|span| now + span);
        scratch.wait.begin(
            if is_zero { Nanos::ZERO } else { now },
            if is_zero { Some(Nanos::ZERO) } else { deadline.into_iter().chain(round_end).min() },
        );
        let round = Round {
            queue,
            host,
            sleeper: Sleeper { thread: &thread, clock, kernel },
            max,
            time: CachedClock::new(clock, Some(now)),
            end: deadline.filter(|_| !is_zero),
            outcome: Cell::new(None),
        };
        if round.run(&mut scratch, events) {
            break Ok(WaitOutcome::Events);
        }
        if queue.take_wakeup() {
            break Ok(WaitOutcome::TimedOut);
        }
        if let Some(outcome) = round.outcome.get() {
            break Ok(outcome);
        }
        if deadline.is_some_and(|deadline| clock.now() >= deadline) {
            break Ok(WaitOutcome::TimedOut);
        }
        if let Some(kernel) = kernel
            && let Some(outcome) = poll_kernel(host, kernel, is_first)
        {
            break Ok(outcome);
        }
        is_first = false;
    };
    scratch.keep();
    result
}

/// Checks the kernel's descriptors after a round, and blocks signals for the rounds that follow. The system call is charged
/// to the first shard.
///
/// A signal during the first round does not end the wait; neither does one just before a wait.
fn poll_kernel(host: &Host, kernel: &dyn KernelWait, is_first: bool) -> Option<WaitOutcome> {
    if let Some(shard) = host.shards().first() {
        shard.charge(1);
    }
    let outcome = wait::poll_kernel(kernel);
    // In a mode without rounds the wait sleeps, and a signal ends the sleep.
    if outcome.is_none() && is_first && host.max_wait().is_some() {
        kernel.block_signals();
    }
    outcome
}

/// One round of a wait.
struct Round<'a> {
    queue: &'a Arc<ReadyQueue>,
    host: &'a Host,
    sleeper: Sleeper<'a>,
    max: usize,
    time: CachedClock,
    /// When the wait ends, even if it busy polls. The kernel's busy poll continues to its own end, which may be a
    /// millisecond later.
    end: Option<Nanos>,
    /// The reason for which a sleep ended the wait.
    outcome: Cell<Option<WaitOutcome>>,
}

impl Round<'_> {
    /// Takes the steps of the round. Returns whether there are events.
    fn run(&self, scratch: &mut Scratch, events: &mut Vec<Event>) -> bool {
        let Scratch { wait, candidates, attached } = scratch;
        let (mut polls, mut empty_since, mut spun) = (0, None, Nanos::ZERO);
        let has_events = loop {
            let step = {
                let mut inner = self.queue.inner();
                if events.is_empty() && inner.has_candidates() {
                    drop(inner);
                    self.queue.collect_events(candidates, events, self.max);
                    inner = self.queue.inner();
                }
                let now = self.time.now();
                let empty = empty_since.take().map_or(Nanos::ZERO, |since| now.saturating_sub(since));
                spun = spun + empty.min(MAX_POLL_TIME);
                // Only after every queue was polled, so that a short wait does not omit the last of them.
                if polls >= self.queue.shards.len() && events.is_empty() && self.end.is_some_and(|end| now >= end) {
                    wait.handle_signal(now);
                }
                wait.next(&mut inner.context, now, !events.is_empty())
            };
            match step {
                WaitStep::Deliver => break true,
                WaitStep::TimedOut => break false,
                WaitStep::Sleep { until } => {
                    debug_assert!(
                        events.is_empty(),
                        "an edge is reported once, so nothing would wake the thread for it"
                    );
                    self.members().iter().for_each(|shard| attach(attached, shard));
                    self.sleep(until, candidates, events);
                    if self.is_over() {
                        wait.handle_signal(self.time.now());
                    }
                }
                WaitStep::Poll { napi, .. } | WaitStep::EndPoll { napi } => {
                    let Some(shard) = self.queue.shard(napi) else { continue };
                    attach(attached, shard);
                    let begin = self.time.now();
                    let work = wait::busy_step(shard, self.sleeper.thread, step);
                    self.time.invalidate();
                    if matches!(step, WaitStep::Poll { .. }) {
                        wait.handle_polled(work);
                        polls += 1;
                        empty_since = (work == 0).then_some(begin);
                    }
                }
                WaitStep::Suspend { napi } => {
                    let Some(shard) = self.queue.shard(napi) else { continue };
                    shard.suspend_and_detach(self.sleeper.thread.number);
                    attached.retain(|index| *index != shard.index.0);
                }
                WaitStep::Resume { napi } => {
                    let Some(shard) = self.queue.shard(napi) else { continue };
                    shard.resume();
                }
            }
        };
        self.queue.add_time_spun(spun);
        for index in attached.drain(..) {
            self.queue.shards[index as usize].detach(self.sleeper.thread.number);
        }
        has_events
    }

    /// Returns whether the wait must end without events.
    fn is_over(&self) -> bool {
        self.host.is_shut_down() || self.queue.has_wakeup() || self.outcome.get().is_some()
    }

    fn members(&self) -> Vec<&Shard> {
        self.queue.inner().context.members().filter_map(|id| self.queue.shard(id)).map(|shard| &**shard).collect()
    }

    /// Sleeps until there are events, the thread is woken, or `until`.
    ///
    /// A sleep in which the thread ran the softirq does not end the wait: as in the kernel, the thread sleeps again unless
    /// there are events.
    fn sleep(&self, until: Option<Nanos>, candidates: &mut Vec<Candidate>, events: &mut Vec<Event>) {
        while !self.sleep_once(until) && until.is_none_or(|until| self.time.now() < until) && !self.is_over() {
            self.queue.collect_events(candidates, events, self.max);
            if !events.is_empty() {
                break;
            }
        }
    }

    /// Sleeps once. Returns whether the thread was woken, or there may be events.
    fn sleep_once(&self, until: Option<Nanos>) -> bool {
        let parker = &self.sleeper.thread.parker;
        let members = self.members().into_iter();
        let slept = self.sleeper.sleep(members, until, || self.queue.begin_sleep(parker));
        self.queue.end_sleep(parker);
        self.time.invalidate();
        if self.sleeper.kernel.is_some() {
            self.outcome.set(slept.outcome());
        }
        slept.woken
    }
}

/// Records that the thread may be attached to a shard.
fn attach(attached: &mut Vec<u32>, shard: &Shard) {
    if !attached.contains(&shard.index.0) {
        attached.push(shard.index.0);
    }
}
