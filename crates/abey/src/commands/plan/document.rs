//! A plan as the JSON document.

use abey_delivery::{Hold, ModeSettings, PollContext};
use abey_sim::plan::{AtLoad, Candidate, Goal, Reason, describe};
use serde::Serialize;

use super::Told;
use super::report::why_not;

#[derive(Serialize)]
pub(super) struct Document<'a> {
    /// What is expected of the recommended settings at each load; of the nearest ones, if none meet the goal.
    rows: Vec<Row<'a>>,
    recommended: Option<Settings>,
    goal: GoalDocument,
    /// The longest wait that the settings add for other flows on the same queue.
    wait_added_us: f64,
    /// The whole of the longest wait, the NIC's moderation and the way to the poll included.
    wait_bound_us: f64,
    frontier: Vec<Point>,
    others: Vec<OtherDocument>,
    simulations: usize,
}

#[derive(Serialize)]
struct Row<'a> {
    settings: String,
    #[serde(flatten)]
    at: &'a AtLoad,
}

#[derive(Serialize)]
struct GoalDocument {
    p99_us: Option<f64>,
    cpu_percent: Option<f64>,
    met: bool,
}

/// Settings under the names that Linux gives them, times in microseconds.
#[derive(Serialize)]
struct Settings {
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

#[derive(Serialize)]
struct Point {
    family: String,
    cpu_percent: f64,
    p99_us: f64,
    #[serde(flatten)]
    settings: Settings,
}

#[derive(Serialize)]
struct OtherDocument {
    #[serde(flatten)]
    point: Point,
    why_not: String,
    costs_times: Option<f64>,
}

pub(super) fn of<'a>(told: &'a Told<'_>) -> Document<'a> {
    let (plan, goal) = (told.plan, told.wanted.goal);
    let (p99_us, cpu_percent) = match goal {
        Goal::P99AtMost(p99) => (Some(micros(p99)), None),
        Goal::CpuAtMost(percent) => (None, Some(percent)),
    };
    let row = |at: &'a AtLoad| Row { settings: describe(&plan.nearest.settings), at };
    let other = |other: &abey_sim::plan::Other| OtherDocument {
        point: point(&other.best, goal),
        why_not: why_not(goal, other.reason),
        costs_times: match other.reason {
            Reason::Costs(times) => Some(times),
            _ => None,
        },
    };
    Document {
        rows: plan.nearest.at.iter().map(row).collect(),
        recommended: plan.recommended.as_ref().map(|best| settings(&best.settings, best)),
        goal: GoalDocument { p99_us, cpu_percent, met: plan.recommended.is_some() },
        wait_added_us: micros(told.bound.added()),
        wait_bound_us: micros(told.bound.total()),
        frontier: plan.frontier.iter().map(|one| point(one, goal)).collect(),
        others: plan.others.iter().map(other).collect(),
        simulations: plan.simulations,
    }
}

fn point(one: &Candidate, goal: Goal) -> Point {
    Point {
        family: one.family.to_string(),
        cpu_percent: one.cpu_percent(goal),
        p99_us: one.p99_us(),
        settings: settings(&one.settings, one),
    }
}

fn settings(settings: &ModeSettings, candidate: &Candidate) -> Settings {
    let ModeSettings { napi, epoll, max_wait, .. } = *settings;
    Settings {
        mode: candidate.mode.map(|mode| mode.to_string()),
        settings: describe(settings),
        defer_hard_irqs: napi.defer_hard_irqs,
        gro_flush_timeout_us: micros(napi.gro_flush_timeout),
        irq_suspend_timeout_us: micros(napi.irq_suspend_timeout),
        threaded: match napi.context {
            PollContext::Softirq => "no",
            PollContext::Thread => "yes",
            PollContext::BusyThread => "busy",
            PollContext::Workqueue => "workqueue",
        },
        hold_us: napi.hold.map(|(Hold::Spin(span) | Hold::Timer(span))| micros(span)),
        hold_by_timer: matches!(napi.hold, Some(Hold::Timer(_))),
        busy_poll_us: epoll.map(|epoll| epoll.usecs),
        busy_poll_budget: epoll.map(|epoll| epoll.budget),
        prefer_busy_poll: epoll.map(|epoll| epoll.prefer),
        max_wait_us: max_wait.map(micros),
    }
}

fn micros(span: abey_delivery::Nanos) -> f64 {
    span.as_nanos() as f64 / 1e3
}
