//! Wake-ups: of a thread on the same CPU, and of one that sleeps on another.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use abey_bench::Cpus;
use abey_load::pin_to_cpus;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::timers::thread_cpu;
use super::{CostError, Costs, Effort, LOW, Operation, refused};

/// Round trips of one batch.
const ROUND_TRIPS: usize = 100;
/// How long the other CPU sleeps before it is woken: the time between two requests of a load that is neither low nor high.
const ASLEEP: Duration = Duration::from_micros(100);
/// Wake-ups that one figure of CPU time is over.
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

fn event() -> Result<EventFd, CostError> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(refused(Operation::WakeSameCpu))
}

/// A thread that is woken by an eventfd, again and again, until it is told to end. It is told also when `work` fails.
fn with_partner<T>(
    cpu: u32,
    bell: &EventFd,
    answer: impl Fn() + Sync,
    work: impl FnOnce() -> Result<T, CostError>,
) -> Result<T, CostError> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let partner = scope.spawn(|| -> Result<(), CostError> {
            pin_to_cpus(&[cpu as usize])?;
            loop {
                bell.read().map_err(refused(Operation::WakeSameCpu))?;
                if over.load(Ordering::Acquire) {
                    return Ok(());
                }
                answer();
            }
        });
        let done = work();
        over.store(true, Ordering::Release);
        bell.write(1).map_err(refused(Operation::WakeSameCpu))?;
        partner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        done
    })
}

/// Nanoseconds of a round trip between two threads of one CPU, by batch.
fn round_trips(cpu: u32, batches: usize) -> Result<Vec<f64>, CostError> {
    pin_to_cpus(&[cpu as usize])?;
    let (there, back) = (event()?, event()?);
    let refused = refused(Operation::WakeSameCpu);
    let answer = || {
        // A round trip that does not come back is noticed by whoever waits for it.
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

/// Single wake-ups across CPUs, ns.
#[derive(Default)]
struct Across {
    latency: Vec<f64>,
    charged: Vec<f64>,
    /// By batch, of the woken thread.
    cpu: Vec<f64>,
}

fn across(cpus: Cpus, count: usize) -> Result<Across, CostError> {
    pin_to_cpus(&[cpus.client as usize])?;
    let bell = event()?;
    let base = Instant::now();
    // When the partner ran, ns after `base`, and its CPU time so far.
    let (woken, cpu) = (AtomicU64::new(0), AtomicU64::new(0));
    let answer = || {
        let at = base.elapsed().as_nanos() as u64;
        cpu.store(thread_cpu(), Ordering::Relaxed);
        woken.store(at, Ordering::Release);
    };
    let read_clock = clock_read();
    with_partner(cpus.server, &bell, answer, || {
        let mut found = Across::default();
        let mut before = None;
        for number in 0..count {
            spin_for(ASLEEP);
            woken.store(0, Ordering::Relaxed);
            let rung = base.elapsed();
            bell.write(1).map_err(refused(Operation::WakeOtherCpu))?;
            let written = base.elapsed();
            let at = await_answer(&woken);
            found.latency.push((at as f64 - rung.as_nanos() as f64 - read_clock).max(0.0));
            found.charged.push(((written - rung).as_nanos() as f64 - read_clock).max(0.0));
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

/// What reading the clock takes of each span, ns.
fn clock_read() -> f64 {
    let since = Instant::now();
    (0..1_000).for_each(|_| _ = std::hint::black_box(Instant::now()));
    since.elapsed().as_nanos() as f64 / 1e3
}
