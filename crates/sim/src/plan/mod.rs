//! Planning of settings by simulation: the cheapest ones that meet a latency goal, or the fastest ones that meet a
//! CPU goal.
//!
//! ```
//! use abey_delivery::Nanos;
//! use abey_sim::Profile;
//! use abey_sim::plan::{Effort, Goal, LoadRange, Requirements, plan};
//!
//! let profile = Profile::load("epyc-7662")?;
//! let mut wanted = Requirements::new(LoadRange { low: 50e3, high: 50e3 }, Goal::P99AtMost(Nanos::from_micros(250)));
//! wanted.queues = 1;
//! wanted.connections = 560;
//! // A sketch: the default effort is for answers that count.
//! wanted.effort = Effort { screening_requests: 1_000.0, confirming_requests: 1_000.0, rounds: 0, ..Effort::default() };
//! let plan = plan(&profile, &wanted, &mut |_| {})?;
//! let best = plan.recommended.expect("half a CPU is enough");
//! assert!(best.meets(wanted.goal));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bound;
mod candidate;
mod frontier;
mod requirements;
mod search;
mod space;

use abey_delivery::{Mode, Nanos};

pub use abey_delivery::{Family, describe, mode_of, nearest_mode};
pub use bound::Bound;
pub use candidate::{AtLoad, Candidate};
pub use requirements::{CPU_MARGIN, Effort, Goal, LoadRange, P99_MARGIN, Requirements};
pub use search::Progress;

use crate::profile::{InputError, Profile};
use crate::reference::run_all;
use search::{Found, Search};

/// Plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Recommended settings; `None` if none meet the goal.
    pub recommended: Option<Candidate>,
    /// Settings closest to the goal; the recommended ones, if there are any.
    pub nearest: Candidate,
    /// Settings that no others dominate in CPU use and latency, by increasing CPU use.
    pub frontier: Vec<Candidate>,
    /// Best candidate of each other family.
    pub others: Vec<Other>,
    /// All simulated candidates.
    pub candidates: Vec<Candidate>,
    /// Number of simulations.
    pub simulations: usize,
}

/// Best candidate of a family, and the reason why it is not recommended.
#[derive(Clone, Debug)]
pub struct Other {
    /// Settings with their simulation results.
    pub best: Candidate,
    /// Reason.
    pub reason: Reason,
}

/// Reason why settings are not recommended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// They answer fewer requests per second than the load.
    Overloaded,
    /// They miss the goal by this much, including the margin, in microseconds or points of CPU.
    Misses(f64),
    /// They meet the goal at this multiple of the cost: CPU use, or latency if CPU use is limited. It can be slightly
    /// below one for settings that missed the finals by less than the deviation between runs.
    Costs(f64),
}

/// Reason why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The requirements are invalid.
    #[error(transparent)]
    Input(#[from] InputError),
    /// No settings reach the goal on this machine, even at a low load.
    #[error(
        "a 99th percentile of {goal} is below what this profile ever reaches: the least is {least:.0} us, with next to no load"
    )]
    NeverReached {
        /// Goal.
        goal: Nanos,
        /// Lowest 99th percentile that was reached, in microseconds.
        least: f64,
    },
}

/// Searches the settings by simulation on all CPUs. The plan does not depend on their number.
///
/// # Errors
/// If the requirements are invalid or unreachable.
pub fn plan(profile: &Profile, wanted: &Requirements, progress: &mut dyn FnMut(Progress)) -> Result<Plan, PlanError> {
    wanted.validate(profile)?;
    if let Goal::P99AtMost(goal) = wanted.goal {
        let least = least_p99_us(profile, wanted)?;
        if (goal.as_nanos() as f64) < least * 1e3 {
            return Err(PlanError::NeverReached { goal, least });
        }
    }
    let mut search = Search::new(profile, wanted, progress);
    let Found { finalists, screened } = search.run()?;
    let (recommended, nearest) = choose(profile, wanted, &finalists, &screened);
    let recommended = recommended.map(|best| search.with_shortest_suspend(best)).transpose()?;
    let nearest = recommended.clone().unwrap_or(nearest);
    let frontier = confirmed_frontier(wanted, &finalists);
    let mut candidates: Vec<Candidate> = finalists.into_iter().chain(screened).collect();
    let best = search.confirm_all(best_of_families(wanted.goal, nearest.family, &candidates))?;
    let others: Vec<Other> =
        best.into_iter().map(|best| Other { reason: reason(wanted.goal, recommended.as_ref(), &best), best }).collect();
    for other in &others {
        candidates.retain(|one| one.settings != other.best.settings);
        candidates.push(other.best.clone());
    }
    Ok(Plan { recommended, nearest, frontier, others, candidates, simulations: search.simulations() })
}

/// Returns the lowest 99th percentile of a nearly idle server, in microseconds.
fn least_p99_us(profile: &Profile, wanted: &Requirements) -> Result<f64, InputError> {
    let idle = Requirements { queues: 1, connections: 560, ..wanted.clone() };
    let fast = [Mode::Base, Mode::Suspend(Nanos::from_micros(5)), Mode::FullBusy, Mode::ThreadedBusy];
    let run = |rate| fast.map(|mode| idle.scenario(&mode.settings(), rate, 4_000.0, wanted.seed));
    let outcomes = run_all(profile, &[run(10_000.0), run(40_000.0)].concat())?;
    Ok(outcomes.iter().map(|outcome| outcome.p99_us).fold(f64::INFINITY, f64::min))
}

/// Returns the cheapest finalist that meets the goal, and the one closest to the goal. Among equal ones it prefers
/// that with the shortest waits of other flows.
fn choose(
    profile: &Profile,
    wanted: &Requirements,
    finalists: &[Candidate],
    screened: &[Candidate],
) -> (Option<Candidate>, Candidate) {
    let goal = wanted.goal;
    let wait = |one: &Candidate| Bound::of(profile, &one.settings, wanted.linux).added();
    let order = |a: &&Candidate, b: &&Candidate| a.cost(goal).total_cmp(&b.cost(goal)).then(wait(a).cmp(&wait(b)));
    let best = finalists.iter().filter(|one| one.meets(goal)).min_by(order);
    let nearest = || {
        let carrying = finalists.iter().filter(|one| one.carries());
        let nearest = carrying.min_by(|a, b| a.excess(goal).total_cmp(&b.excess(goal)));
        let all = || finalists.iter().chain(screened);
        nearest.or_else(|| all().max_by(|a, b| a.most_qps().total_cmp(&b.most_qps()))).expect("there are candidates")
    };
    (best.cloned(), best.unwrap_or_else(nearest).clone())
}

fn confirmed_frontier(wanted: &Requirements, finalists: &[Candidate]) -> Vec<Candidate> {
    let carrying: Vec<(&Candidate, frontier::Point)> =
        finalists.iter().filter_map(|one| Some((one, one.point(wanted.goal)?))).collect();
    let points: Vec<frontier::Point> = carrying.iter().map(|(_, point)| *point).collect();
    frontier::frontier(&points).into_iter().map(|at| carrying[at].0.clone()).collect()
}

/// Returns the best candidate of every family except `but`.
fn best_of_families(goal: Goal, but: Family, candidates: &[Candidate]) -> Vec<Candidate> {
    let mut families: Vec<Family> = candidates.iter().map(|one| one.family).collect();
    families.sort_unstable();
    families.dedup();
    families.retain(|family| *family != but);
    let best_of = |family: Family| {
        let of_family = || candidates.iter().filter(|one| one.family == family);
        let meeting = of_family().filter(|one| one.meets(goal));
        let cheapest = meeting.min_by(|a, b| a.cost(goal).total_cmp(&b.cost(goal)));
        let carrying = || of_family().filter(|one| one.carries());
        let nearest = || carrying().min_by(|a, b| a.excess(goal).total_cmp(&b.excess(goal)));
        let most = || of_family().max_by(|a, b| a.most_qps().total_cmp(&b.most_qps()));
        cheapest.or_else(nearest).or_else(most).cloned()
    };
    families.into_iter().filter_map(best_of).collect()
}

fn reason(goal: Goal, chosen: Option<&Candidate>, one: &Candidate) -> Reason {
    match chosen {
        _ if !one.carries() => Reason::Overloaded,
        Some(chosen) if one.meets(goal) => Reason::Costs(one.cost(goal) / chosen.cost(goal)),
        _ => Reason::Misses(one.excess(goal)),
    }
}
