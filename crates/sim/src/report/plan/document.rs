//! A plan as the JSON document.

use abey_delivery::{Hold, ModeSettings, Nanos};
use serde::Serialize;

use super::PlanReport;
use super::text::why_not;
use crate::plan::{AtLoad, Candidate, Goal, Other, Reason, describe};

/// The JSON document of a plan.
#[derive(Debug, Serialize)]
pub struct PlanDocument<'a> {
    /// The expectation of the recommended settings at each load; of the nearest settings if none meet the goal.
    rows: Vec<ExpectationRow<'a>>,
    recommended: Option<SettingsRecord>,
    goal: GoalRecord,
    /// The longest wait that the settings add for other flows of the same queue.
    wait_added_us: f64,
    /// The longest wait in total, including the NIC's moderation and the time until the poll.
    wait_bound_us: f64,
    frontier: Vec<FrontierPoint>,
    others: Vec<RejectedFamily>,
    simulations: usize,
}

#[derive(Debug, Serialize)]
struct ExpectationRow<'a> {
    settings: String,
    #[serde(flatten)]
    at: &'a AtLoad,
}

#[derive(Debug, Serialize)]
struct GoalRecord {
    p99_us: Option<f64>,
    cpu_percent: Option<f64>,
    met: bool,
}

/// Settings under their Linux names, with times in microseconds.
#[derive(Debug, Serialize)]
struct SettingsRecord {
    mode: Option<String>,
    settings: String,
    defer_hard_irqs: u32,
    gro_flush_timeout_us: f64,
    irq_suspend_timeout_us: f64,
    threaded: &'static str,
    hold_us: Option<f64>,
    hold_by_timer: bool,
    busy_poll_us: Option<u32>,
    busy_poll_budget: Option<u16>,
    prefer_busy_poll: Option<bool>,
    max_wait_us: Option<f64>,
}

#[derive(Debug, Serialize)]
struct FrontierPoint {
    family: String,
    cpu_percent: f64,
    p99_us: f64,
    #[serde(flatten)]
    settings: SettingsRecord,
}

#[derive(Debug, Serialize)]
struct RejectedFamily {
    #[serde(flatten)]
    point: FrontierPoint,
    why_not: String,
    costs_times: Option<f64>,
}

impl PlanReport<'_> {
    /// Returns the JSON document.
    pub fn document(&self) -> PlanDocument<'_> {
        let (plan, goal) = (self.plan, self.requirements.goal);
        let (p99_us, cpu_percent) = match goal {
            Goal::P99AtMost(p99) => (Some(micros(p99)), None),
            Goal::CpuAtMost(percent) => (None, Some(percent)),
        };
        let row = |at| ExpectationRow { settings: describe(&plan.nearest.settings), at };
        let other = |other: &Other| RejectedFamily {
            point: point(&other.best, goal),
            why_not: why_not(goal, other.reason),
            costs_times: match other.reason {
                Reason::Costs(times) => Some(times),
                _ => None,
            },
        };
        PlanDocument {
            rows: plan.nearest.at.iter().map(row).collect(),
            recommended: plan.recommended.as_ref().map(|best| settings(&best.settings, best)),
            goal: GoalRecord { p99_us, cpu_percent, met: plan.recommended.is_some() },
            wait_added_us: micros(self.bound.added()),
            wait_bound_us: micros(self.bound.total()),
            frontier: plan.frontier.iter().map(|one| point(one, goal)).collect(),
            others: plan.others.iter().map(other).collect(),
            simulations: plan.simulations,
        }
    }
}

fn point(one: &Candidate, goal: Goal) -> FrontierPoint {
    FrontierPoint {
        family: one.family.to_string(),
        cpu_percent: one.cpu_percent(goal),
        p99_us: one.p99_us(),
        settings: settings(&one.settings, one),
    }
}

fn settings(settings: &ModeSettings, candidate: &Candidate) -> SettingsRecord {
    let ModeSettings { napi, epoll, max_wait, .. } = *settings;
    SettingsRecord {
        mode: candidate.mode.map(|mode| mode.to_string()),
        settings: describe(settings),
        defer_hard_irqs: napi.defer_hard_irqs,
        gro_flush_timeout_us: micros(napi.gro_flush_timeout),
        irq_suspend_timeout_us: micros(napi.irq_suspend_timeout),
        threaded: napi.context.name(),
        hold_us: napi.hold.map(|hold| micros(hold.span())),
        hold_by_timer: matches!(napi.hold, Some(Hold::Timer(_))),
        busy_poll_us: epoll.map(|epoll| epoll.usecs),
        busy_poll_budget: epoll.map(|epoll| epoll.budget),
        prefer_busy_poll: epoll.map(|epoll| epoll.prefer),
        max_wait_us: max_wait.map(micros),
    }
}

fn micros(span: Nanos) -> f64 {
    span.as_nanos() as f64 / 1e3
}
