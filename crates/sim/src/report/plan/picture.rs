//! The frontier as a picture: an SVG file, and a plot in characters.

use abey_chart::{FrontierChart, FrontierGoal, FrontierMark};

use super::PlanReport;
use crate::plan::{Candidate, Goal, describe};

/// Columns and rows of the plot in characters.
const SIZE: (usize, usize) = (64, 14);

impl PlanReport<'_> {
    /// Renders the frontier as an SVG file.
    pub fn svg(&self) -> String {
        let goal = self.requirements.goal;
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
        let mut shown: Vec<&Candidate> = self.shown().collect();
        shown.sort_by_key(|one| (one.family, one.confirmed));
        FrontierChart {
            title: format!("abey plan {}: {}", self.question(), self.profile),
            marks: shown.into_iter().map(mark).collect(),
            frontier: self.plan.frontier.iter().filter(|one| one.p99_us() <= self.top_us()).map(xy).collect(),
            goal: (line, format!("goal: {}", self.goal())),
            recommended: self.plan.recommended.as_ref().map(|best| {
                let (cpu, p99) = xy(best);
                (cpu, p99, describe(&best.settings))
            }),
        }
        .render()
    }

    /// Returns the candidates that the picture shows.
    fn shown(&self) -> impl Iterator<Item = &Candidate> {
        let top = self.top_us();
        self.plan.candidates.iter().filter(move |one| one.carries() && one.p99_us() <= top)
    }

    /// Returns the highest latency shown, in microseconds. Candidates far above the goal would compress the rest of the picture.
    fn top_us(&self) -> f64 {
        let chosen = self.plan.nearest.p99_us();
        match self.requirements.goal {
            Goal::P99AtMost(p99) => (p99.as_nanos() as f64 / 1e3).max(chosen) * 3.0,
            Goal::CpuAtMost(_) => chosen * 4.0,
        }
    }

    /// Plots the frontier in characters: `o` on the frontier, `*` the recommended settings, `.` other candidates, and the goal's line.
    /// The latency axis is logarithmic.
    pub(super) fn plot(&self) -> String {
        let goal = self.requirements.goal;
        let xy = |one: &Candidate| (one.cpu_percent(goal), libm::log(one.p99_us().max(1.0)));
        let all: Vec<(f64, f64)> = self.shown().map(xy).collect();
        let limit = match goal {
            Goal::P99AtMost(p99) => (0.0, libm::log((p99.as_nanos() as f64 / 1e3).max(1.0))),
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
        let frontier = self.plan.frontier.iter().filter(|one| one.p99_us() <= self.top_us()).map(xy);
        let best = self.plan.recommended.iter().map(xy);
        let marks = all.iter().map(|at| (*at, '.')).chain(frontier.map(|at| (at, 'o'))).chain(best.map(|at| (at, '*')));
        for ((cpu, p99), mark) in marks {
            grid[row(p99)][column(cpu)] = mark;
        }
        let mut out = String::from("   p99 us\n");
        for (at, line) in grid.iter().enumerate() {
            let tick = at % 4 == 0 || at + 1 == SIZE.1;
            let value = libm::exp(most - (most - least) * at as f64 / (SIZE.1 - 1) as f64);
            let label = if tick { format!("{value:8.0}") } else { " ".repeat(8) };
            let line: String = line.iter().collect();
            out += &format!("{label} |{}\n", line.trim_end());
        }
        let right = format!("{widest:.0} % CPU");
        out + &format!("{:8} +{}\n{:8}  0{right:>width$}", "", "-".repeat(SIZE.0), "", width = SIZE.0 - 1)
    }
}
