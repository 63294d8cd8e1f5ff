//! Sleeping in an application's thread: on its own wake-up, and on the interrupts and deadlines of the shards it drives.

use std::os::fd::AsFd;
use std::time::Duration;

use abey_delivery::{Nanos, Poller, SocketBusyPoll, SocketWait, WaitStep};
use abey_tcpip::{Readiness, SocketId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::clock::Clock;
use crate::error::SystemError;
use crate::local::Local;
use crate::shard::{Shard, Watch};
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
    listens: bool,
}

/// Sleeps until woken, until an interrupt or deadline of a driven shard was dealt with, or until `until`. Whether it was
/// woken (or did not sleep), rather than having done a shard's work.
///
/// `prepare` is called when the shards were taken and before the thread sleeps: it announces the sleep
/// ([`crate::sleeper::Sleeper::begin`]), looks a last time, and says whether to sleep.
pub(crate) fn sleep<'a>(
    local: &Local,
    shards: impl Iterator<Item = &'a Shard>,
    until: Option<Nanos>,
    prepare: impl FnOnce() -> bool,
) -> bool {
    let mut driven = Vec::new();
    let mut until = until;
    let mut clock = None;
    let mut first = None;
    for shard in shards {
        clock = Some(shard.clock);
        first = first.or(Some(shard));
        if let Some((listens, deadline)) = shard.begin_sleep(local.thread) {
            driven.push(Driven { shard, listens });
            until = until.into_iter().chain(deadline).min();
        }
    }
    let (mut calls, mut readable, mut interrupted) = (0, false, Vec::new());
    let slept = prepare();
    if slept {
        (readable, interrupted) = block(local, clock, until, &driven);
        calls += 1;
    }
    calls += local.sleeper.end(readable);
    if driven.is_empty()
        && let Some(shard) = first
    {
        shard.bill(calls);
    }
    let mut interrupted = interrupted.into_iter();
    for Driven { shard, listens } in driven {
        let interrupted = listens && interrupted.next().unwrap_or(false);
        shard.end_sleep(local.thread, interrupted, std::mem::take(&mut calls));
    }
    #[cfg(test)]
    crate::replay::awake();
    // The shards' work may have made something ready and have woken its own thread, which would not sleep the next time.
    let woken = local.sleeper.forget();
    readable || !slept || woken
}

/// The system call: whether the thread was woken, and which of the interrupts that it listens to came.
fn block(local: &Local, clock: Option<Clock>, until: Option<Nanos>, driven: &[Driven<'_>]) -> (bool, Vec<bool>) {
    #[cfg(test)]
    if let Some((woken, interrupted)) = crate::replay::sleep(until, driven.first().map(|driven| driven.listens)) {
        return (woken, vec![interrupted]);
    }
    let mut descriptors = Vec::with_capacity(1 + driven.len());
    descriptors.push(PollFd::new(&local.sleeper, PollFlags::IN));
    let listening = driven.iter().filter(|driven| driven.listens);
    descriptors.extend(listening.map(|driven| PollFd::from_borrowed_fd(driven.shard.line.nic.as_fd(), PollFlags::IN)));
    // A signal ends the sleep early, and the caller looks again.
    let ready = match (clock, until) {
        (Some(clock), Some(until)) => poll_until(local, clock, until, &mut descriptors),
        // Without shards there is nothing to wait for but the wake-up.
        (None, Some(_)) => poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok(),
        (_, None) => poll(&mut descriptors, None).is_ok(),
    };
    let mut told = descriptors.iter().map(|descriptor| ready && !descriptor.revents().is_empty());
    (told.next().unwrap_or(false), told.collect())
}

/// Sleeps until a descriptor is readable or `until` has come, rather exactly. Whether the descriptors tell anything.
fn poll_until(local: &Local, clock: Clock, until: Nanos, descriptors: &mut [PollFd<'_>]) -> bool {
    let begin = clock.now();
    let span = until.saturating_sub(begin);
    let mut lateness = local.lateness.get();
    let asked = span - lateness.lead(span);
    let timeout = Timespec::try_from(Duration::from(asked)).ok();
    let answer = poll(descriptors, timeout.as_ref());
    if answer == Ok(0) {
        lateness.observe(clock.now().saturating_sub(begin + asked));
        local.lateness.set(lateness);
        while clock.now() < until {
            std::hint::spin_loop();
        }
    }
    answer.is_ok()
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
    let local = Local::get().map_err(SystemError::Sleep)?;
    let wanted = interest | Readiness::ERROR | Readiness::HANG_UP;
    let ready = || {
        let room = interest.contains(Readiness::WRITABLE);
        parts.iter().any(|part| part.shard.with(|core| core.readiness(part.socket, room)).intersects(wanted))
    };
    for part in parts {
        let watch = Watch::Thread { sleeper: local.sleeper.clone(), interest };
        part.shard.with(|core| core.watches(part.socket).map(|watches| watches.add(watch)));
    }
    let mut wait = SocketWait::new(local.poller());
    let napi = match parts {
        [part] => Some(part.shard.id),
        _ => None,
    };
    wait.begin(until, napi, busy);
    let is_ready = loop {
        let is_ready = ready();
        let Some(Part { shard, .. }) = parts.first() else { break false };
        match wait.next(shard.clock.now(), is_ready) {
            WaitStep::Deliver => break true,
            WaitStep::TimedOut => break false,
            WaitStep::Sleep { until } => {
                sleep(&local, parts.iter().map(|part| &*part.shard), until, || local.sleeper.begin() && !ready());
            }
            step => {
                busy_step(shard, local.thread, step);
            }
        }
    };
    for part in parts {
        part.shard.with(|core| {
            if let Some(watches) = core.watches(part.socket) {
                watches.remove_thread(&local.sleeper);
            }
            core.cover.leave(local.thread);
        });
    }
    Ok(is_ready)
}
