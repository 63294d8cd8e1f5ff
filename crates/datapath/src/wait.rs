//! Sleeping in an application's thread: on its own wake-up, and on the interrupts and deadlines of the shards it drives.

use std::os::fd::AsFd;
use std::time::Duration;

use abey_delivery::{Nanos, Poller, SocketBusyPoll, SocketWait, WaitStep};
use abey_tcpip::{Readiness, SocketId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::clock::Clock;
use crate::error::SystemError;
use crate::local::Local;
use crate::outside::{Ended, Outside};
use crate::shard::{Drive, Shard, Watch};
use std::sync::Arc;

/// A socket, or one shard's part of a socket that spans several.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) shard: Arc<Shard>,
    pub(crate) socket: SocketId,
}

/// The shards of a sleep, and which of them are ours to drive.
struct Driven<'a> {
    shard: &'a Shard,
    drive: Drive,
}

/// A time so near is waited for awake: a timer costs as much.
const NEAR: Nanos = Nanos::from_micros(15);

/// How a sleep went.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slept {
    /// It was woken (or did not sleep), rather than having done a shard's work.
    pub(crate) woken: bool,
    /// Something outside is ready.
    pub(crate) outside: bool,
    /// A signal ended it.
    pub(crate) signal: bool,
}

impl Slept {
    /// What of it ends a wait with an [`Outside`], if not the sockets.
    pub(crate) fn ended(self) -> Option<Ended> {
        self.outside.then_some(Ended::Outside).or_else(|| self.signal.then_some(Ended::Signal))
    }
}

/// What the system call told.
struct Told {
    slept: Slept,
    interrupts: Vec<bool>,
}

/// Sleeps until woken, until an interrupt or deadline of a driven shard was dealt with, until something `outside` is
/// ready, until a signal comes, or until `until`.
///
/// `prepare` is called when the shards were taken and before the thread sleeps: it announces the sleep
/// ([`crate::sleeper::Sleeper::begin`]), looks a last time, and says whether to sleep.
pub(crate) fn sleep<'a>(
    local: &Local,
    clock: Clock,
    shards: impl Iterator<Item = &'a Shard>,
    until: Option<Nanos>,
    outside: Option<&dyn Outside>,
    prepare: impl FnOnce() -> bool,
) -> Slept {
    let mut driven = Vec::new();
    let mut until = until;
    let mut first = None;
    for shard in shards {
        first = first.or(Some(shard));
        if let Some(drive) = shard.begin_sleep(local.thread) {
            driven.push(Driven { shard, drive });
            until = until.into_iter().chain(drive.until).min();
        }
    }
    let mut calls = 0;
    let mut told = Told { slept: Slept { woken: true, ..Slept::default() }, interrupts: Vec::new() };
    let sleeps = prepare();
    if sleeps {
        told = block(local, clock, until, &driven, outside);
        calls += 1;
    }
    let Told { mut slept, interrupts } = told;
    calls += local.sleeper.end(sleeps && slept.woken);
    if driven.is_empty()
        && let Some(shard) = first
    {
        shard.bill(calls);
    }
    let mut interrupted = interrupts.into_iter();
    for Driven { shard, drive } in driven {
        let interrupted = drive.listens && interrupted.next().unwrap_or(false);
        if let Some(at) = drive.not_before.filter(|at| interrupted && *at <= clock.now() + NEAR) {
            spin_until(clock, at);
        }
        shard.end_sleep(local.thread, interrupted, std::mem::take(&mut calls));
    }
    #[cfg(test)]
    crate::replay::awake();
    // The shards' work may have made something ready and have woken its own thread, which would not sleep the next time.
    slept.woken |= local.sleeper.forget();
    slept
}

/// The system call.
fn block(
    local: &Local,
    clock: Clock,
    until: Option<Nanos>,
    driven: &[Driven<'_>],
    outside: Option<&dyn Outside>,
) -> Told {
    #[cfg(test)]
    if let Some((woken, interrupted)) = crate::replay::sleep(until, driven.first().map(|driven| driven.drive.listens)) {
        return Told { slept: Slept { woken, ..Slept::default() }, interrupts: vec![interrupted] };
    }
    let mut descriptors = Vec::with_capacity(2 + driven.len());
    descriptors.push(PollFd::new(&local.sleeper, PollFlags::IN));
    let listening = driven.iter().filter(|driven| driven.drive.listens);
    descriptors.extend(listening.map(|driven| PollFd::from_borrowed_fd(driven.shard.line.nic.as_fd(), PollFlags::IN)));
    let mut call = |timeout: Option<&Timespec>| {
        let outside = match outside {
            None => poll(&mut descriptors, timeout).map(|_| false),
            Some(outside) => outside.poll(&mut descriptors, timeout),
        }?;
        Ok(Found { own: descriptors.iter().any(|descriptor| !descriptor.revents().is_empty()), outside })
    };
    let answer = match until {
        #[cfg(test)]
        until if crate::replay::is_live() => crate::replay::asleep(until, || {
            let found = call(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            Ok((found, found.own || found.outside))
        }),
        Some(until) => sleep_until(local, clock, until, &mut call),
        None => call(None),
    };
    let signal = answer == Err(Errno::INTR);
    let mut told = descriptors.iter().map(|descriptor| answer.is_ok() && !descriptor.revents().is_empty());
    let woken = told.next().unwrap_or(false);
    let outside = answer.is_ok_and(|found| found.outside);
    Told { slept: Slept { woken, outside, signal }, interrupts: told.collect() }
}

/// On which side a sleep found something.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    own: bool,
    outside: bool,
}

/// Sleeps by `call` until that finds something or `until` has come, rather exactly.
fn sleep_until(
    local: &Local,
    clock: Clock,
    until: Nanos,
    call: impl FnOnce(Option<&Timespec>) -> rustix::io::Result<Found>,
) -> rustix::io::Result<Found> {
    let begin = clock.now();
    let span = until.saturating_sub(begin);
    let mut lateness = local.lateness.get();
    let asked = span - lateness.lead(span);
    let timeout = Timespec::try_from(Duration::from(asked)).ok();
    let answer = call(timeout.as_ref());
    if answer == Ok(Found { own: false, outside: false }) {
        lateness.observe(clock.now().saturating_sub(begin + asked));
        local.lateness.set(lateness);
        spin_until(clock, until);
    }
    answer
}

fn spin_until(clock: Clock, until: Nanos) {
    #[cfg(test)]
    crate::replay::spin(until);
    while clock.now() < until {
        std::hint::spin_loop();
    }
}

/// Looks outside, without waiting.
pub(crate) fn look(outside: &dyn Outside) -> Option<Ended> {
    match outside.poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(true) => Some(Ended::Outside),
        Err(Errno::INTR) => Some(Ended::Signal),
        _ => None,
    }
}

/// A busy poll's steps at one shard.
pub(crate) fn busy_step(shard: &Shard, thread: u32, step: WaitStep) -> u16 {
    let work = match step {
        WaitStep::Poll { budget, prefer, .. } => shard.busy_poll(thread, Poller(thread), budget, prefer).0,
        WaitStep::EndPoll { .. } => {
            shard.end_busy_poll(Poller(thread));
            0
        }
        _ => 0,
    };
    #[cfg(test)]
    crate::replay::pause();
    work
}

/// Waits until a socket is ready for some of `interest`, or has failed, or `until` has come. Whether it is.
pub(crate) fn wait_for(
    parts: &[Part],
    interest: Readiness,
    until: Option<Nanos>,
    busy: Option<SocketBusyPoll>,
) -> Result<bool, SystemError> {
    let wanted = parts.iter().map(|part| (part, interest));
    // A signal ends the sleep early, and the loop looks again.
    Ok(wait_any(wanted, until, busy, None)? == Ended::Events)
}

/// Waits until one of the sockets is ready for some of what it is `wanted` for, or has failed; until something `outside`
/// is, or a signal came; or until `until` has come. With no sockets it is over at once.
pub(crate) fn wait_any<'a>(
    wanted: impl Iterator<Item = (&'a Part, Readiness)> + Clone,
    until: Option<Nanos>,
    busy: Option<SocketBusyPoll>,
    outside: Option<&dyn Outside>,
) -> Result<Ended, SystemError> {
    let local = Local::get().map_err(SystemError::Sleep)?;
    let Some((Part { shard: first, .. }, _)) = wanted.clone().next() else { return Ok(Ended::TimedOut) };
    let is_ready = |(part, interest): (&Part, Readiness)| {
        let room = interest.contains(Readiness::WRITABLE);
        let readiness = part.shard.with(|core| core.readiness(part.socket, room));
        readiness.intersects(interest | Readiness::ERROR | Readiness::HANG_UP)
    };
    for (part, interest) in wanted.clone() {
        let watch = Watch::Thread { sleeper: local.sleeper.clone(), interest };
        part.shard.with(|core| core.watches(part.socket).map(|watches| watches.add(watch)));
    }
    let mut wait = SocketWait::new(local.poller());
    wait.begin(until, Some(first.id), busy);
    let mut shards: Vec<&Shard> = Vec::new();
    for (Part { shard, .. }, _) in wanted.clone() {
        if !shards.iter().any(|known| known.index == shard.index) {
            shards.push(shard);
        }
    }
    // Their queues are polled in turn.
    let mut turn = shards.iter().cycle();
    let ended = loop {
        let ready = wanted.clone().any(is_ready);
        match wait.next(first.clock.now(), ready) {
            WaitStep::Deliver => break Ended::Events,
            WaitStep::TimedOut => break Ended::TimedOut,
            WaitStep::Sleep { until } => {
                let is_idle = || local.sleeper.begin() && !wanted.clone().any(is_ready);
                let slept = sleep(&local, first.clock, shards.iter().copied(), until, outside, is_idle);
                // A signal ends the wait of a program that has something outside to be told of it, and no call of ours.
                if let Some(ended) = slept.ended().filter(|_| outside.is_some()) {
                    break ended;
                }
            }
            step @ WaitStep::EndPoll { .. } => {
                for shard in &shards {
                    busy_step(shard, local.thread, step);
                }
            }
            step => {
                busy_step(turn.next().unwrap_or(&&**first), local.thread, step);
            }
        }
    };
    for (part, _) in wanted {
        part.shard.with(|core| {
            if let Some(watches) = core.watches(part.socket) {
                watches.remove_thread(&local.sleeper);
            }
            core.cover.leave(local.thread);
        });
    }
    Ok(ended)
}
