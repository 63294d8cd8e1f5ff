//! Wake-ups of a thread on the same CPU, and of a thread on another, idle CPU.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abey_bench::Cpus;
use abey_loadgen::pin_to_cpus;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::timers::thread_cpu;
use super::{CostError, Costs, Effort, LOW, Operation, refused};

/// Round trips of a batch.
const ROUND_TRIPS: usize = 100;
/// Time that the other CPU is idle before the wake-up, as between two requests of a medium load.
const IDLE_TIME: Duration = Duration::from_micros(100);
/// Wake-ups per sample of CPU time.
const WAKES: usize = 20;

pub(super) fn measure(costs: &mut Costs, cpus: Cpus, effort: Effort) -> Result<(), CostError> {
    let call = costs.ns(Operation::SystemCall).unwrap_or(0.0);
    let trips = round_trips(cpus.server, effort.batches.div_ceil(4))?;
    let halves: Vec<f64> = trips.iter().map(|trip| (trip / 2.0 - 2.0 * call).max(0.0)).collect();
    costs.add(Operation::WakeSameCpu, &halves, LOW);
    let across = across(cpus, effort.events)?;
    costs.add(Operation::WakeOtherCpu, &across.latency, 0.5);
    costs.add(Operation::WakeCharged, &across.charged, 0.5);
    costs.add(Operation::WokenCpu, &across.cpu, 0.5);
    Ok(())
}

fn eventfd() -> Result<EventFd, CostError> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(refused(Operation::WakeSameCpu))
}

/// Runs `work` with a partner thread, which calls `answer` each time the eventfd wakes it. Stops the partner when `work` ends, also
/// with an error.
fn with_partner<T>(
    cpu: u32,
    wake: &EventFd,
    answer: impl Fn() + Sync,
    work: impl FnOnce() -> Result<T, CostError>,
) -> Result<T, CostError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let partner = scope.spawn(|| -> Result<(), CostError> {
            pin_to_cpus(&[cpu as usize])?;
            loop {
                wake.read().map_err(refused(Operation::WakeSameCpu))?;
                if stop.load(Ordering::Acquire) {
                    return Ok(());
                }
                answer();
            }
        });
        let done = work();
        stop.store(true, Ordering::Release);
        wake.write(1).map_err(refused(Operation::WakeSameCpu))?;
        partner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        done
    })
}

/// Returns the time of a round trip between two threads on one CPU for each batch, in nanoseconds.
fn round_trips(cpu: u32, batches: usize) -> Result<Vec<f64>, CostError> {
    pin_to_cpus(&[cpu as usize])?;
    let (there, back) = (eventfd()?, eventfd()?);
    let refused = refused(Operation::WakeSameCpu);
    let answer = || {
        // If the write fails, the other thread's read reports an error.
        let _ = back.write(1);
    };
    with_partner(cpu, &there, answer, || {
        let mut trips = Vec::with_capacity(batches);
        for _ in 0..batches {
            let since = Instant::now();
            for _ in 0..ROUND_TRIPS {
                there.write(1).map_err(&refused)?;
                back.read().map_err(&refused)?;
            }
            trips.push(since.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64);
        }
        Ok(trips)
    })
}

/// Samples of wake-ups across CPUs, in nanoseconds.
#[derive(Default)]
struct Across {
    latency: Vec<f64>,
    charged: Vec<f64>,
    /// CPU time of the woken thread, by batch.
    cpu: Vec<f64>,
}

fn across(cpus: Cpus, count: usize) -> Result<Across, CostError> {
    pin_to_cpus(&[cpus.client as usize])?;
    let wake = eventfd()?;
    let base = Instant::now();
    // The time at which the partner ran, in nanoseconds after `base`, and its CPU time.
    let (woken, cpu) = (AtomicU64::new(0), AtomicU64::new(0));
    let answer = || {
        let at = base.elapsed().as_nanos() as u64;
        cpu.store(thread_cpu(), Ordering::Relaxed);
        woken.store(at, Ordering::Release);
    };
    let read_clock = clock_read();
    with_partner(cpus.server, &wake, answer, || {
        let mut found = Across::default();
        let mut before = None;
        for number in 0..count {
            spin_for(IDLE_TIME);
            woken.store(0, Ordering::Relaxed);
            let sent = base.elapsed();
            wake.write(1).map_err(refused(Operation::WakeOtherCpu))?;
            let written = base.elapsed();
            let at = await_answer(&woken);
            found.latency.push((at as f64 - sent.as_nanos() as f64 - read_clock).max(0.0));
            found.charged.push(((written - sent).as_nanos() as f64 - read_clock).max(0.0));
            if number % WAKES == 0 {
                let now = cpu.load(Ordering::Relaxed);
                found.cpu.extend(before.map(|before| (now - before) as f64 / WAKES as f64));
                before = Some(now);
            }
        }
        Ok(found)
    })
}

fn spin_for(span: Duration) {
    let until = Instant::now() + span;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

fn await_answer(woken: &AtomicU64) -> u64 {
    loop {
        match woken.load(Ordering::Acquire) {
            0 => std::hint::spin_loop(),
            at => return at,
        }
    }
}

/// Returns the time of a clock read in nanoseconds.
fn clock_read() -> f64 {
    let since = Instant::now();
    (0..1_000).for_each(|_| _ = std::hint::black_box(Instant::now()));
    since.elapsed().as_nanos() as f64 / 1e3
}
