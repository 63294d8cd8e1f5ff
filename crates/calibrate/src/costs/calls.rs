//! System calls that do not sleep.

use std::hint::black_box;
use std::time::{Duration, Instant};

use abey_bench::Cpus;
use abey_loadgen::pin_to_cpus;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::{CostError, Costs, Effort, LOW, Operation, refused};

/// Calls of a batch, which takes some tens of microseconds.
const CALLS: u32 = 256;

pub(super) fn measure(costs: &mut Costs, cpus: Cpus, effort: Effort) -> Result<(), CostError> {
    pin_to_cpus(&[cpus.server as usize])?;
    let (idle, ready) = (epoll_with_eventfd(0)?, epoll_with_eventfd(1)?);
    let timer =
        TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC).map_err(refused(Operation::TimerSet))?;
    let wait = |epoll: &(Epoll, EventFd)| {
        let mut events = [EpollEvent::empty(); 2];
        black_box(epoll.0.wait(&mut events, EpollTimeout::ZERO)).map(drop).map_err(refused(Operation::EpollWait))
    };
    let arm = || {
        // Long enough that it never expires.
        let span = TimeSpec::from_duration(Duration::from_secs(3_600));
        timer.set(Expiration::OneShot(span), TimerSetTimeFlags::empty()).map_err(refused(Operation::TimerSet))
    };
    let mut batches: [Vec<f64>; 5] = Default::default();
    for _ in 0..effort.batches {
        batches[0].push(batch(|| discard(Instant::now()))?);
        batches[1].push(batch(|| discard(nix::unistd::getppid()))?);
        batches[2].push(batch(|| wait(&idle))?);
        batches[3].push(batch(|| wait(&ready))?);
        batches[4].push(batch(arm)?);
    }
    costs.add(Operation::ClockRead, &batches[0], LOW);
    costs.add(Operation::SystemCall, &batches[1], LOW);
    costs.add(Operation::EpollWait, &batches[2], LOW);
    costs.add_difference(Operation::EpollEvent, (&batches[3], &batches[2]), 0.0);
    costs.add(Operation::TimerSet, &batches[4], LOW);
    Ok(())
}

/// Discards a result without letting the compiler remove the call.
fn discard<T>(value: T) -> Result<(), CostError> {
    black_box(value);
    Ok(())
}

/// Creates an epoll instance with an eventfd of this value.
fn epoll_with_eventfd(value: u32) -> Result<(Epoll, EventFd), CostError> {
    let refused = refused(Operation::EpollWait);
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(&refused)?;
    let event = EventFd::from_value_and_flags(value, EfdFlags::EFD_CLOEXEC).map_err(&refused)?;
    epoll.add(&event, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(&refused)?;
    Ok((epoll, event))
}

/// Returns the mean time of a call over a batch, in nanoseconds.
pub(super) fn batch(mut call: impl FnMut() -> Result<(), CostError>) -> Result<f64, CostError> {
    let since = Instant::now();
    for _ in 0..CALLS {
        call()?;
    }
    Ok(since.elapsed().as_nanos() as f64 / f64::from(CALLS))
}
