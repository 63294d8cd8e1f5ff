//! Candidate settings with their simulation results.

use abey_delivery::{Family, Mode, ModeSettings, mode_of};
use serde::Serialize;

use super::requirements::{CPU_MARGIN, Goal, P99_MARGIN};
use crate::outcome::Outcome;
use crate::scenario::{Load, Scenario};

/// Results at one load: means over the runs, and their worst values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AtLoad {
    /// Requests per second.
    pub load: f64,
    /// Answers per second.
    pub qps: f64,
    /// Mean latency, in microseconds.
    pub avg_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, in microseconds.
    pub p999_us: f64,
    /// CPU use in percent of the server's CPUs.
    pub cpu_percent: f64,
    /// The largest 99th percentile of the runs.
    pub worst_p99_us: f64,
    /// The largest CPU use of the runs.
    pub worst_cpu_percent: f64,
    /// Longest time that a packet waited in a ring for a poll, in microseconds, including the NIC's moderation.
    pub ring_wait_max_us: f64,
    /// Whether every run answered the requested load, within statistical deviation.
    pub carried: bool,
}

impl AtLoad {
    fn new(runs: &[(&Scenario, &Outcome)]) -> Self {
        let count = runs.len().max(1) as f64;
        let mean = |figure: fn(&Outcome) -> f64| runs.iter().map(|(_, run)| figure(run)).sum::<f64>() / count;
        let worst = |figure: fn(&Outcome) -> f64| runs.iter().map(|(_, run)| figure(run)).fold(0.0, f64::max);
        Self {
            load: runs.first().map_or(0.0, |(scenario, _)| rate(scenario)),
            qps: mean(|run| run.qps),
            avg_us: mean(|run| run.avg_us),
            p99_us: mean(|run| run.p99_us),
            p999_us: mean(|run| run.p999_us),
            cpu_percent: mean(|run| run.cpu_percent),
            worst_p99_us: worst(|run| run.p99_us),
            worst_cpu_percent: worst(|run| run.cpu_percent),
            ring_wait_max_us: worst(|run| run.ring_wait_max_us),
            carried: runs.iter().all(|(scenario, run)| carries(scenario, run)),
        }
    }
}

fn rate(scenario: &Scenario) -> f64 {
    match scenario.load {
        Load::Open(rate) => rate,
        Load::Closed => 0.0,
    }
}

/// Returns whether a run answered its load. Arrivals are a Poisson process; a shortfall of five standard deviations
/// is not chance.
fn carries(scenario: &Scenario, run: &Outcome) -> bool {
    let asked = rate(scenario) * scenario.duration.as_nanos() as f64 / 1e9;
    let answered = run.qps * scenario.duration.as_nanos() as f64 / 1e9;
    answered >= asked * 0.995 - 5.0 * asked.sqrt()
}

/// Candidate settings with their simulation results.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Settings.
    pub settings: ModeSettings,
    /// Mechanism of the settings.
    pub family: Family,
    /// Mode with exactly these settings, if there is one.
    pub mode: Option<Mode>,
    /// Results by load.
    pub at: Vec<AtLoad>,
    /// Whether it was simulated as a finalist: longer, with several seeds and at all loads.
    pub confirmed: bool,
}

impl Candidate {
    /// Creates a candidate from runs in the order of their loads.
    pub(super) fn new(settings: ModeSettings, runs: &[(&Scenario, &Outcome)], confirmed: bool) -> Self {
        let at = runs.chunk_by(|(a, _), (b, _)| a.load == b.load).map(AtLoad::new).collect();
        Self { settings, family: Family::of(&settings), mode: mode_of(&settings), at, confirmed }
    }

    /// Returns the largest 99th percentile of all runs at all loads, in microseconds.
    pub fn p99_us(&self) -> f64 {
        self.at.iter().map(|at| at.worst_p99_us).fold(0.0, f64::max)
    }

    /// Returns the CPU use that counts for a goal, in percent: the mean over the loads if it is minimized, the
    /// maximum of all runs if it is limited.
    pub fn cpu_percent(&self, goal: Goal) -> f64 {
        match goal {
            Goal::P99AtMost(_) => self.at.iter().map(|at| at.cpu_percent).sum::<f64>() / self.at.len().max(1) as f64,
            Goal::CpuAtMost(_) => self.at.iter().map(|at| at.worst_cpu_percent).fold(0.0, f64::max),
        }
    }

    /// Returns whether every load was answered.
    pub fn carries(&self) -> bool {
        self.at.iter().all(|at| at.carried)
    }

    /// Returns the answers per second at the highest load.
    pub fn most_qps(&self) -> f64 {
        self.at.last().map_or(0.0, |at| at.qps)
    }

    /// Returns whether every run met the goal, with the margin for the simulator's error.
    pub fn meets(&self, goal: Goal) -> bool {
        self.carries() && self.excess(goal) <= 0.0
    }

    /// Returns how far the goal is missed, including the margin, in microseconds or points of CPU; zero or less if it
    /// is met.
    pub fn excess(&self, goal: Goal) -> f64 {
        match goal {
            Goal::P99AtMost(limit) => self.p99_us() * (1.0 + P99_MARGIN) - limit.as_nanos() as f64 / 1e3,
            // CPU use cannot exceed 100 %.
            Goal::CpuAtMost(limit) => (self.cpu_percent(goal) + CPU_MARGIN).min(100.0) - limit,
        }
    }

    /// Returns the figure to be minimized once the goal is met: CPU use in percent, or latency in microseconds.
    pub fn cost(&self, goal: Goal) -> f64 {
        match goal {
            Goal::P99AtMost(_) => self.cpu_percent(goal),
            Goal::CpuAtMost(_) => self.p99_us(),
        }
    }

    /// Returns CPU use and latency, both to be minimized, or `None` if the candidate does not answer its load.
    pub(super) fn point(&self, goal: Goal) -> Option<(f64, f64)> {
        self.carries().then(|| (self.cpu_percent(goal), self.p99_us()))
    }
}
