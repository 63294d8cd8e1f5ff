//! The frontier as a picture: an SVG file, and a small plot of characters.

use abey_bench::report::{FrontierChart, FrontierGoal, FrontierMark};
use abey_sim::plan::{Candidate, Goal, describe};

use super::Told;

/// Characters of the plot.
const SIZE: (usize, usize) = (64, 14);

pub(super) fn of(told: &Told<'_>) -> String {
    let goal = told.wanted.goal;
    let xy = |one: &Candidate| (one.cpu_percent(goal), one.p99_us());
    let mark = |one: &Candidate| {
        let (cpu_percent, p99_us) = xy(one);
        FrontierMark {
            family: one.family.example(),
            name: one.family.to_string(),
            cpu_percent,
            p99_us,
            tried: !one.confirmed,
            hover: format!("{}: CPU {cpu_percent:.1} %, p99 {p99_us:.0} us", describe(&one.settings)),
        }
    };
    let line = match goal {
        Goal::P99AtMost(p99) => FrontierGoal::Latency(p99.as_nanos() as f64 / 1e3),
        Goal::CpuAtMost(percent) => FrontierGoal::Cpu(percent),
    };
    let mut shown: Vec<&Candidate> = shown(told).collect();
    shown.sort_by_key(|one| (one.family, one.confirmed));
    FrontierChart {
        title: format!("abey plan {}: {}", told.question(), told.args.profile),
        marks: shown.into_iter().map(mark).collect(),
        frontier: told.plan.frontier.iter().filter(|one| one.p99_us() <= top(told)).map(xy).collect(),
        goal: (line, format!("goal: {}", told.goal())),
        recommended: told.plan.recommended.as_ref().map(|best| {
            let (cpu, p99) = xy(best);
            (cpu, p99, describe(&best.settings))
        }),
    }
    .render()
}

/// The candidates that are shown.
fn shown<'a>(told: &'a Told<'_>) -> impl Iterator<Item = &'a Candidate> {
    let top = top(told);
    told.plan.candidates.iter().filter(move |one| one.carries() && one.p99_us() <= top)
}

/// The largest latency that is shown: what lies far above the goal would make everything else small.
fn top(told: &Told<'_>) -> f64 {
    let chosen = told.plan.nearest.p99_us();
    match told.wanted.goal {
        Goal::P99AtMost(p99) => (p99.as_nanos() as f64 / 1e3).max(chosen) * 3.0,
        Goal::CpuAtMost(_) => chosen * 4.0,
    }
}

/// The frontier in characters: `o` on it, `*` the recommended settings, `.` beaten ones, and the goal's line. Latency is
/// logarithmic.
pub(super) fn text(told: &Told<'_>) -> String {
    let goal = told.wanted.goal;
    let xy = |one: &Candidate| (one.cpu_percent(goal), one.p99_us().max(1.0).ln());
    let all: Vec<(f64, f64)> = shown(told).map(xy).collect();
    let limit = match goal {
        Goal::P99AtMost(p99) => (0.0, (p99.as_nanos() as f64 / 1e3).max(1.0).ln()),
        Goal::CpuAtMost(percent) => (percent, f64::NAN),
    };
    let least = all.iter().map(|at| at.1).fold(limit.1, f64::min);
    let most = all.iter().map(|at| at.1).fold(limit.1, f64::max).max(least + 0.1);
    let widest = all.iter().map(|at| at.0).fold(limit.0, f64::max).max(1.0);
    let column = |cpu: f64| ((cpu / widest * (SIZE.0 - 1) as f64).round() as usize).min(SIZE.0 - 1);
    let row = |p99: f64| (((most - p99) / (most - least) * (SIZE.1 - 1) as f64).round() as usize).min(SIZE.1 - 1);
    let mut grid = [[' '; SIZE.0]; SIZE.1];
    match goal {
        Goal::P99AtMost(_) => grid[row(limit.1)] = ['-'; SIZE.0],
        Goal::CpuAtMost(_) => grid.iter_mut().for_each(|line| line[column(limit.0)] = '|'),
    }
    let frontier = told.plan.frontier.iter().filter(|one| one.p99_us() <= top(told)).map(xy);
    let best = told.plan.recommended.iter().map(xy);
    let marks = all.iter().map(|at| (*at, '.')).chain(frontier.map(|at| (at, 'o'))).chain(best.map(|at| (at, '*')));
    for ((cpu, p99), mark) in marks {
        grid[row(p99)][column(cpu)] = mark;
    }
    let mut out = String::from("   p99 us\n");
    for (at, line) in grid.iter().enumerate() {
        let tick = at % 4 == 0 || at + 1 == SIZE.1;
        let value = (most - (most - least) * at as f64 / (SIZE.1 - 1) as f64).exp();
        let label = if tick { format!("{value:8.0}") } else { " ".repeat(8) };
        let line: String = line.iter().collect();
        out += &format!("{label} |{}\n", line.trim_end());
    }
    let right = format!("{widest:.0} % CPU");
    out + &format!("{:8} +{}\n{:8}  0{right:>width$}", "", "-".repeat(SIZE.0), "", width = SIZE.0 - 1)
}
