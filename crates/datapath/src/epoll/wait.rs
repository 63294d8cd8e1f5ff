//! A wait: the delivery core's machine ([`EpollWait`]) with the steps carried out.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use abey_delivery::{EpollWait, Nanos, WaitStep};

use super::interest::Event;
use super::queue::Candidate;
use super::{Epoll, Queue};
use crate::clock::{Clock, ReadOnce};
use crate::error::{EpollError, SystemError};
use crate::local::Local;
use crate::outside::{Ended, Outside};
use crate::shard::Shard;
use crate::wait;

/// An empty poll that took longer did not: its thread was preempted.
const LONGEST_POLL: Nanos = Nanos::from_micros(10);

/// What a thread's waits work with, kept from one to the next so that a wait does not allocate.
#[derive(Debug)]
pub(crate) struct Scratch {
    wait: EpollWait,
    candidates: Vec<Candidate>,
    /// Shards that the wait has become the driver of, or may have; most have one.
    touched: Vec<u32>,
}

impl Epoll {
    /// Waits until sockets have events, at most `timeout` (`None`: for ever; zero: looks once, which includes one poll of
    /// the queues), and puts up to `max` of them into `events`, which is emptied first. How many they are.
    ///
    /// # Errors
    /// `max` is 0, the runtime is gone, or there is no descriptor left to sleep on.
    pub fn wait(&self, events: &mut Vec<Event>, max: usize, timeout: Option<Duration>) -> Result<usize, EpollError> {
        // A signal ends no wait of ours.
        self.run(events, max, timeout, None).map(|_| events.len())
    }

    /// As [`Self::wait`], for a program that waits for something else too: `outside` is what the wait sleeps in, and ends it.
    ///
    /// It is looked at by sleeping in it, and after each round of a wait that a mode cuts into rounds (`fullbusy`: 1 ms);
    /// not when there are events, nor in a wait of no time. So whoever is busy has to look at it now and then.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_with(
        &self,
        events: &mut Vec<Event>,
        max: usize,
        timeout: Option<Duration>,
        outside: &dyn Outside,
    ) -> Result<Ended, EpollError> {
        self.run(events, max, timeout, Some(outside))
    }

    fn run(
        &self,
        events: &mut Vec<Event>,
        max: usize,
        timeout: Option<Duration>,
        outside: Option<&dyn Outside>,
    ) -> Result<Ended, EpollError> {
        if max == 0 {
            return Err(EpollError::NoRoom);
        }
        events.clear();
        let local = Local::get().map_err(SystemError::Sleep)?;
        let mut scratch = local.wait.take().unwrap_or_else(|| Scratch {
            wait: EpollWait::new(local.poller()),
            candidates: Vec::new(),
            touched: Vec::new(),
        });
        let clock = self.runtime.clock;
        let deadline = timeout.map(|timeout| clock.after(timeout));
        let mut is_first = true;
        let result = loop {
            if self.runtime.is_over() {
                break Err(EpollError::RuntimeGone);
            }
            // A mode may bound how long one wait blocks (`fullbusy`); to the caller it is still one.
            let now = clock.now();
            let bound = self.runtime.max_wait().map(|span| now + span);
            let zero = timeout.is_some_and(|timeout| timeout.is_zero());
            scratch.wait.begin(
                if zero { Nanos::ZERO } else { now },
                if zero { Some(Nanos::ZERO) } else { deadline.into_iter().chain(bound).min() },
            );
            let time = ReadOnce::new(clock, Some(now));
            let end = deadline.filter(|_| !zero);
            let round =
                Round { queue: &self.queue, local: &local, max, clock, time, end, outside, ended: Cell::new(None) };
            let is_over = || self.runtime.is_over() || self.queue.is_interrupted() || round.ended.get().is_some();
            if round.go(&mut scratch, events, is_over) {
                break Ok(Ended::Events);
            }
            if self.queue.take_interrupt() {
                break Ok(Ended::TimedOut);
            }
            if let Some(ended) = round.ended.get() {
                break Ok(ended);
            }
            if deadline.is_some_and(|deadline| clock.now() >= deadline) {
                break Ok(Ended::TimedOut);
            }
            if let Some(outside) = outside
                && let Some(ended) = self.look_outside(outside, is_first)
            {
                break Ok(ended);
            }
            is_first = false;
        };
        local.wait.replace(Some(scratch));
        result
    }

    /// Looks outside after a round, and has signals held in the rounds to come; one that came in the first does not end the
    /// wait, as one that comes just before any wait. Counted as a call of the first shard's.
    fn look_outside(&self, outside: &dyn Outside, is_first: bool) -> Option<Ended> {
        if let Some(shard) = self.runtime.shards.first() {
            shard.bill(1);
        }
        let ended = wait::look(outside);
        // In a mode without rounds the wait sleeps, and a signal ends the sleep.
        if ended.is_none() && is_first && self.runtime.max_wait().is_some() {
            outside.hold_signals();
        }
        ended
    }
}

struct Round<'a> {
    queue: &'a Arc<Queue>,
    local: &'a Local,
    max: usize,
    clock: Clock,
    time: ReadOnce,
    /// When the wait is over, busy polling or not: the kernel's busy poll goes on to its own end, which may be a
    /// millisecond later.
    end: Option<Nanos>,
    /// What it sleeps in.
    outside: Option<&'a dyn Outside>,
    /// What it ended by, if not by something of ours.
    ended: Cell<Option<Ended>>,
}

impl Round<'_> {
    /// Takes the steps of one wait, up to its end. Whether there are events.
    fn go(&self, scratch: &mut Scratch, events: &mut Vec<Event>, is_over: impl Fn() -> bool) -> bool {
        let Scratch { wait, candidates, touched } = scratch;
        let (mut polls, mut empty_since, mut spun) = (0, None, Nanos::ZERO);
        let delivered = loop {
            let step = {
                let mut inner = self.queue.inner();
                if events.is_empty() && inner.has_candidates() {
                    drop(inner);
                    self.queue.harvest(candidates, events, self.max);
                    inner = self.queue.inner();
                }
                let now = self.time.now();
                spun =
                    spun + empty_since.take().map_or(Nanos::ZERO, |since| now.saturating_sub(since).min(LONGEST_POLL));
                // Only after every queue was polled: a short wait must not pass over the last ones.
                if polls >= self.queue.shards.len() && events.is_empty() && self.end.is_some_and(|end| now >= end) {
                    wait.handle_signal(now);
                }
                wait.next(&mut inner.context, now, !events.is_empty())
            };
            match step {
                WaitStep::Deliver => break true,
                WaitStep::TimedOut => break false,
                WaitStep::Sleep { until } => {
                    debug_assert!(events.is_empty(), "an edge is told once, so nobody would wake the thread for it");
                    self.touch_members(touched);
                    // What the softirq does on this thread is not the wait's business: as in the kernel it sleeps on, until
                    // there are events.
                    while !self.sleep(until) && until.is_none_or(|until| self.time.now() < until) && !is_over() {
                        self.queue.harvest(candidates, events, self.max);
                        if !events.is_empty() {
                            break;
                        }
                    }
                    if is_over() {
                        wait.handle_signal(self.time.now());
                    }
                }
                WaitStep::Poll { napi, .. } | WaitStep::EndPoll { napi } => {
                    let Some(shard) = self.queue.shard(napi) else { continue };
                    self.touch(touched, shard);
                    let begin = self.time.now();
                    let work = wait::busy_step(shard, self.local.thread, step);
                    self.time.forget();
                    if matches!(step, WaitStep::Poll { .. }) {
                        wait.handle_polled(work);
                        polls += 1;
                        empty_since = (work == 0).then_some(begin);
                    }
                }
                WaitStep::Suspend { napi } => {
                    let Some(shard) = self.queue.shard(napi) else { continue };
                    shard.suspend_and_leave(self.local.thread);
                    touched.retain(|touched| *touched != shard.index.0);
                }
                WaitStep::Resume { napi } => {
                    let Some(shard) = self.queue.shard(napi) else { continue };
                    shard.resume();
                }
            }
        };
        self.queue.spun(spun);
        for shard in touched.drain(..) {
            self.queue.shards[shard as usize].leave(self.local.thread);
        }
        delivered
    }

    fn touch(&self, touched: &mut Vec<u32>, shard: &Shard) {
        if !touched.contains(&shard.index.0) {
            touched.push(shard.index.0);
        }
    }

    fn members(&self) -> Vec<&Shard> {
        self.queue.inner().context.members().filter_map(|id| self.queue.shard(id)).map(|shard| &**shard).collect()
    }

    fn touch_members(&self, touched: &mut Vec<u32>) {
        for shard in self.members() {
            self.touch(touched, shard);
        }
    }

    /// Whether the thread was woken, or there are events.
    fn sleep(&self, until: Option<Nanos>) -> bool {
        let sleeper = &self.local.sleeper;
        let members = self.members().into_iter();
        let slept =
            wait::sleep(self.local, self.clock, members, until, self.outside, || self.queue.begin_sleep(sleeper));
        self.queue.end_sleep(sleeper);
        self.time.forget();
        if self.outside.is_some() {
            self.ended.set(slept.ended());
        }
        slept.woken
    }
}
