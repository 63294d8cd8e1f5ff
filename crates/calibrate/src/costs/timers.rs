//! Timers: the cost of their interrupt, their lateness, and the CPU time of a timed sleep.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use abey_bench::Cpus;
use abey_loadgen::pin_to_cpus;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use rustix::time::clock_gettime;

use super::{CostError, Costs, Effort, LOW, Operation, refused};

/// Time from arming a timer to its expiry.
const SPAN: Duration = Duration::from_micros(100);
/// Duration of a sleep, typical of the datapath.
const SLEEP: Duration = Duration::from_micros(50);
/// Sleeps per sample of CPU time.
const SLEEPS: u32 = 20;

pub(super) fn measure(costs: &mut Costs, cpus: Cpus, effort: Effort) -> Result<(), CostError> {
    pin_to_cpus(&[cpus.server as usize])?;
    // Without timer slack, sleeps end on time. The thread is used for this measurement only.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let timer =
        TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC).map_err(refused(Operation::TimerInterrupt))?;
    let [mut gaps, mut usual, mut begun, mut late, mut sleeps]: [Vec<f64>; 5] = Default::default();
    for _ in 0..effort.events.div_ceil(4) {
        let due = arm(&timer)?;
        let (from, gap) = longest_gap(due + SPAN / 2);
        gaps.push(gap);
        begun.push(from.saturating_duration_since(due).as_nanos() as f64);
        usual.push(longest_gap(Instant::now() + SPAN).1);
        let due = arm(&timer)?;
        timer.wait().map_err(refused(Operation::TimerLateness))?;
        late.push(Instant::now().saturating_duration_since(due).as_nanos() as f64);
    }
    for _ in 0..effort.events.div_ceil(SLEEPS as usize) {
        let before = thread_cpu();
        for _ in 0..SLEEPS {
            std::thread::sleep(SLEEP);
        }
        sleeps.push((thread_cpu() - before) as f64 / f64::from(SLEEPS));
    }
    costs.add_difference(Operation::TimerInterrupt, (&gaps, &usual), 0.0);
    costs.add(Operation::TimerLate, &begun, 0.5);
    costs.add(Operation::TimerLateness, &late, 0.5);
    costs.add(Operation::TimedSleep, &sleeps, LOW);
    Ok(())
}

/// Arms the timer and returns its approximate expiry.
fn arm(timer: &TimerFd) -> Result<Instant, CostError> {
    let now = Instant::now();
    let span = Expiration::OneShot(TimeSpec::from_duration(SPAN));
    timer.set(span, TimerSetTimeFlags::empty()).map_err(refused(Operation::TimerSet))?;
    Ok(now + SPAN)
}

/// Returns the longest gap between two clock reads until then: its beginning and its length in nanoseconds.
fn longest_gap(until: Instant) -> (Instant, f64) {
    let mut last = Instant::now();
    let (mut from, mut longest) = (last, Duration::ZERO);
    while last < until {
        let now = Instant::now();
        if now - last > longest {
            (from, longest) = (last, now - last);
        }
        last = now;
    }
    (from, longest.as_nanos() as f64)
}

/// Returns the CPU time of the calling thread in nanoseconds.
pub(super) fn thread_cpu() -> u64 {
    let time = clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
