//! Fit of the costs that cannot be measured in isolation to rows of a bench. Measured costs stay fixed.

use abey_delivery::Nanos;
use abey_sim::fit::{Fitted, Options, Parameter, search};
use abey_sim::reference::run_all;
use abey_sim::{InputError, Load, Outcome, Profile, Scenario};

use abey_sim::profile::Delivery;

use crate::training::BenchedRow;

/// Effort of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Number of candidate profiles.
    pub evaluations: usize,
    /// Responses to simulate per row and candidate.
    pub requests: f64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { evaluations: 700, requests: 4_000.0 }
    }
}

const fn parameter(key: &'static str, low: f64, high: f64) -> Parameter {
    Parameter { key, low, high }
}

/// Fitted parameters of the kernel's NAPI over a veth, in nanoseconds.
const LINUX: [Parameter; 14] = [
    parameter("idle.exit_ns", 500.0, 80_000.0),
    parameter("idle.cold_cycles", 50.0, 40_000.0),
    parameter("idle.cold_half_ns", 500.0, 500_000.0),
    parameter("interrupt.timer.instructions", 200.0, 60_000.0),
    parameter("interrupt.timer_late_ns", 50.0, 60_000.0),
    parameter("softirq.poll.instructions", 50.0, 5_000.0),
    parameter("softirq.request.instructions", 300.0, 10_000.0),
    parameter("thread.wake.instructions", 200.0, 60_000.0),
    parameter("busy_poll.iteration.instructions", 50.0, 10_000.0),
    parameter("busy_poll.end.instructions", 50.0, 20_000.0),
    parameter("server.request.instructions", 1_000.0, 25_000.0),
    parameter("client.base_ns", 500.0, 60_000.0),
    parameter("client.jitter_ns", 50.0, 40_000.0),
    parameter("client.late_ns_per_connection_rps", 1.0, 60.0),
];

/// Fitted parameters of the datapath over the shared-memory NIC, in nanoseconds.
const DATAPATH: [Parameter; 17] = [
    parameter("idle.exit_ns", 500.0, 80_000.0),
    parameter("idle.exit_half_ns", 50.0, 200_000.0),
    parameter("idle.cold_cycles", 50.0, 40_000.0),
    parameter("idle.cold_half_ns", 500.0, 500_000.0),
    parameter("interrupt.nic.instructions", 200.0, 40_000.0),
    parameter("interrupt.timer.instructions", 200.0, 60_000.0),
    parameter("interrupt.timer_late_ns", 50.0, 60_000.0),
    parameter("softirq.request.instructions", 100.0, 10_000.0),
    parameter("thread.wake.instructions", 100.0, 60_000.0),
    parameter("service_thread.wake.instructions", 1_000.0, 60_000.0),
    parameter("service_thread.sleep.instructions", 200.0, 40_000.0),
    parameter("service_thread.arm.instructions", 200.0, 30_000.0),
    parameter("epoll.wait.instructions", 50.0, 10_000.0),
    parameter("busy_poll.end.instructions", 50.0, 20_000.0),
    parameter("server.request.instructions", 200.0, 25_000.0),
    parameter("client.base_ns", 200.0, 60_000.0),
    parameter("client.jitter_ns", 50.0, 40_000.0),
];

/// Returns the fitted parameters of a world.
pub const fn parameters(world: Delivery) -> &'static [Parameter] {
    match world {
        Delivery::Linux => &LINUX,
        Delivery::Datapath => &DATAPATH,
    }
}

/// Maximum duration of a simulated run of a mode that spins, in nanoseconds of virtual time.
const SPINNING_NS: u64 = 80_000_000;

/// Returns the scenario of a row of the bench.
pub fn scenario(world: Delivery, profile: &Profile, row: &BenchedRow, requests: f64, seed: u64) -> Scenario {
    let connections = profile.calibrated.map_or(1, |calibrated| calibrated.connections);
    let nanos = (requests * 1e9 / row.rate as f64) as u64;
    // A spinning wait is slow to simulate: each poll is an event.
    let spins = row.mode.settings().epoll.is_some_and(|epoll| epoll.usecs > 0);
    let nanos = if spins { nanos.min(SPINNING_NS) } else { nanos };
    Scenario {
        connections,
        warmup: Nanos::from_millis(20),
        duration: Nanos::from_nanos(nanos.max(50_000_000)),
        seed,
        linux: world == Delivery::Linux,
        ..Scenario::new(row.mode, Load::Open(row.rate as f64))
    }
}

/// Fits a profile, given as text, to the rows marked as fitted. Ends soon once `stop` returns true.
///
/// # Errors
/// [`InputError`] if the text is no valid profile.
pub fn fit(
    world: Delivery,
    text: &str,
    rows: &[BenchedRow],
    effort: Effort,
    stop: &dyn Fn() -> bool,
    progress: &mut dyn FnMut(usize, f64),
) -> Result<Fitted, InputError> {
    let rows: Vec<&BenchedRow> = rows.iter().filter(|row| row.fitted).collect();
    let seed = 7;
    let mut cost = |profile: &Profile| {
        if stop() {
            return f64::INFINITY;
        }
        let scenarios: Vec<Scenario> =
            rows.iter().map(|row| scenario(world, profile, row, effort.requests, seed)).collect();
        match run_all(profile, &scenarios) {
            Ok(outcomes) => rows.iter().zip(&outcomes).map(|(row, outcome)| row_cost(row, outcome)).sum(),
            Err(_) => f64::INFINITY,
        }
    };
    let options = Options { evaluations: effort.evaluations, seed, spread: 0.5, ..Options::default() };
    search(text, parameters(world), &options, &mut cost, progress)
}

// Errors of a good fit: shares of latencies, points of CPU use.
const GOOD_AVERAGE: f64 = 0.05;
const GOOD_MEDIAN: f64 = 0.10;
const GOOD_TAIL: f64 = 0.40;
const GOOD_CPU: f64 = 2.0;

fn row_cost(row: &BenchedRow, outcome: &Outcome) -> f64 {
    // The tolerance grows with the uncertainty of the measured figure.
    let share = |measured: crate::training::Measured, predicted: f64, good: f64| {
        let uncertain = measured.uncertain / measured.median.max(0.1);
        misfit(log_ratio(predicted, measured.median) / (good + uncertain))
    };
    let cpu = (outcome.cpu_percent - row.cpu_percent.median) / (GOOD_CPU + row.cpu_percent.uncertain);
    let behind = (1.0 - outcome.qps / row.rate as f64).max(0.0);
    share(row.avg_us, outcome.avg_us, GOOD_AVERAGE)
        + share(row.p50_us, outcome.p50_us, GOOD_MEDIAN)
        + share(row.p95_us, outcome.p95_us, GOOD_TAIL)
        + misfit(cpu)
        + 100.0 * (behind - 0.05).max(0.0)
}

/// Cauchy's loss of an error in units of a good fit: the square of a small error; a large error has little weight, so that a
/// disturbed row, or one with an effect that the model lacks, does not dominate the fit.
fn misfit(error: f64) -> f64 {
    (1.0 + error * error).ln()
}

fn log_ratio(a: f64, b: f64) -> f64 {
    (a.max(1e-3) / b.max(1e-3)).ln()
}
