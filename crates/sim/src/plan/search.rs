//! Search: simulates a coarse set of settings, then the neighbours of the best ones, and then the finalists
//! thoroughly.
//!
//! The simulated settings depend on the kind of the goal but not on its value, so a weaker goal selects from the same
//! candidates and never costs more.

use std::collections::HashSet;

use abey_delivery::ModeSettings;

use super::candidate::Candidate;
use super::frontier::{Point, worthwhile};
use super::requirements::Requirements;
use super::space;
use crate::profile::{InputError, Profile};
use crate::reference::run_all;

/// Number of loads during the search, and for finalists.
const LOADS: (u32, u32) = (3, 5);
/// Distance from the frontier up to which neighbours are examined, and up to which a candidate becomes a finalist.
const SLACK: (f64, f64) = (0.04, 0.01);
/// Relative differences in CPU use and in latency below which candidates are equivalent.
const SAME: (f64, f64) = (0.003, 0.005);
/// Simulations per progress report.
const BATCH: usize = 24;

/// Progress of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Completed simulations.
    pub done: usize,
    /// Simulations scheduled so far.
    pub known: usize,
}

pub(super) struct Search<'a> {
    profile: &'a Profile,
    wanted: &'a Requirements,
    progress: &'a mut dyn FnMut(Progress),
    at: Progress,
}

/// State of the search.
pub(super) struct Found {
    /// Thoroughly simulated candidates.
    pub(super) finalists: Vec<Candidate>,
    /// Other candidates.
    pub(super) screened: Vec<Candidate>,
}

impl<'a> Search<'a> {
    pub(super) fn new(profile: &'a Profile, wanted: &'a Requirements, progress: &'a mut dyn FnMut(Progress)) -> Self {
        Self { profile, wanted, progress, at: Progress { done: 0, known: 0 } }
    }

    pub(super) fn run(&mut self) -> Result<Found, InputError> {
        let mut screened = self.screen(&space::coarse(self.wanted.linux))?;
        let mut seen: HashSet<ModeSettings> = screened.iter().map(|one| one.settings).collect();
        for _ in 0..self.wanted.effort.rounds {
            let around = near(&screened, self.wanted, SLACK.0).into_iter();
            let around = around.flat_map(|at| space::neighbours(&screened[at].settings));
            let new: Vec<ModeSettings> = around.filter(|settings| seen.insert(*settings)).collect();
            if new.is_empty() {
                break;
            }
            screened.extend(self.screen(&new)?);
        }
        let finalists = near(&screened, self.wanted, SLACK.1);
        let settings: Vec<ModeSettings> = finalists.iter().map(|at| screened[*at].settings).collect();
        let confirmed = self.confirm(&settings)?;
        screened.retain(|one| !settings.contains(&one.settings));
        Ok(Found { finalists: confirmed, screened })
    }

    /// Returns the settings with the shortest irq-suspend-timeout that costs nothing, if they have one. A shorter
    /// timeout shortens the waits of other flows on the queue.
    pub(super) fn with_shortest_suspend(&mut self, best: Candidate) -> Result<Candidate, InputError> {
        let goal = self.wanted.goal;
        let shorter = self.confirm(&space::shorter_suspends(&best.settings))?;
        let as_good = |one: &Candidate| one.meets(goal) && one.cost(goal) <= best.cost(goal);
        Ok(shorter.into_iter().find(as_good).unwrap_or(best))
    }

    /// Simulates these candidates thoroughly.
    pub(super) fn confirm_all(&mut self, candidates: Vec<Candidate>) -> Result<Vec<Candidate>, InputError> {
        let open = candidates.iter().filter(|one| !one.confirmed).map(|one| one.settings);
        let confirmed = self.confirm(&open.collect::<Vec<_>>())?;
        let thorough =
            |one: Candidate| confirmed.iter().find(|new| new.settings == one.settings).cloned().unwrap_or(one);
        Ok(candidates.into_iter().map(thorough).collect())
    }

    /// Returns the number of completed simulations.
    pub(super) fn simulations(&self) -> usize {
        self.at.done
    }

    /// Simulates one short run at each load, with the same seed and so the same arrivals for all candidates.
    fn screen(&mut self, settings: &[ModeSettings]) -> Result<Vec<Candidate>, InputError> {
        let loads = self.wanted.load.spread(LOADS.0);
        let requests = self.wanted.effort.screening_requests / (loads.len() as f64).sqrt();
        self.simulate(settings, &loads, requests, self.wanted.seed..=self.wanted.seed, false)
    }

    /// Simulates longer runs with other seeds.
    fn confirm(&mut self, settings: &[ModeSettings]) -> Result<Vec<Candidate>, InputError> {
        let loads = self.wanted.load.spread(LOADS.1);
        let requests = self.wanted.effort.confirming_requests / (loads.len() as f64).sqrt();
        let first = self.wanted.seed.wrapping_add(1);
        let last = self.wanted.seed.wrapping_add(u64::from(self.wanted.effort.confirming_runs.max(1)));
        self.simulate(settings, &loads, requests, first..=last, true)
    }

    fn simulate(
        &mut self,
        settings: &[ModeSettings],
        loads: &[f64],
        requests: f64,
        seeds: std::ops::RangeInclusive<u64>,
        confirmed: bool,
    ) -> Result<Vec<Candidate>, InputError> {
        let mut scenarios = Vec::new();
        for settings in settings {
            for load in loads {
                let run = |seed| self.wanted.scenario(settings, *load, requests, seed);
                scenarios.extend(seeds.clone().map(run));
            }
        }
        self.at.known += scenarios.len();
        let mut outcomes = Vec::with_capacity(scenarios.len());
        for batch in scenarios.chunks(BATCH) {
            outcomes.extend(run_all(self.profile, batch)?);
            self.at.done += batch.len();
            (self.progress)(self.at);
        }
        let all: Vec<_> = scenarios.iter().zip(&outcomes).collect();
        let each = (all.len() / settings.len().max(1)).max(1);
        Ok(settings.iter().zip(all.chunks(each)).map(|(one, runs)| Candidate::new(*one, runs, confirmed)).collect())
    }
}

/// Returns the candidates near the frontier, without equivalent ones and without those that do not answer their load.
fn near(candidates: &[Candidate], wanted: &Requirements, share: f64) -> Vec<usize> {
    let carrying: Vec<(usize, Point)> =
        candidates.iter().enumerate().filter_map(|(at, one)| Some((at, one.point(wanted.goal)?))).collect();
    let points: Vec<Point> = carrying.iter().map(|(_, point)| *point).collect();
    let mut kept: Vec<(usize, Point)> = Vec::new();
    for (at, point) in worthwhile(&points, share).into_iter().map(|near| carrying[near]) {
        let close = |a: f64, b: f64, share: f64| (a - b).abs() < b * share;
        let same = |(_, of): &(usize, Point)| close(point.0, of.0, SAME.0) && close(point.1, of.1, SAME.1);
        if !kept.iter().any(same) {
            kept.push((at, point));
        }
    }
    kept.into_iter().map(|(at, _)| at).collect()
}
