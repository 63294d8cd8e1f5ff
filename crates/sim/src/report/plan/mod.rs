//! A plan as text, as a JSON document, as a picture and as a settings file.

mod document;
mod picture;
mod text;

use std::path::Path;

pub use document::PlanDocument;

use crate::SettingsFile;
use crate::plan::{Bound, CPU_MARGIN, Goal, LoadRange, P99_MARGIN, Plan, Requirements, describe};

/// A plan with what its report needs.
#[derive(Clone, Debug)]
pub struct PlanReport<'a> {
    /// Name or path of the host profile.
    pub profile: &'a str,
    /// The requirements of the plan.
    pub requirements: &'a Requirements,
    /// The plan.
    pub plan: &'a Plan,
    /// The bound on waiting times of the recommended settings, or of the nearest.
    pub bound: Bound,
    /// The settings file that the caller writes, if any.
    pub output: Option<&'a Path>,
}

impl PlanReport<'_> {
    /// Returns the text of the recommended settings' file; `None` without a recommendation.
    pub fn settings_file(&self) -> Option<String> {
        let best = self.plan.recommended.as_ref()?;
        let expected: String = best.at.iter().map(|at| format!("{}\n", text::expectation(at))).collect();
        let header = format!(
            "{}: abey plan --profile {} {}\nExpected, by simulation with {} queues and {} connections:\n{expected}",
            describe(&best.settings),
            self.profile,
            self.question(),
            self.requirements.queues,
            self.requirements.connections
        );
        Some(SettingsFile::text(&best.settings, &header))
    }

    /// Explains in one sentence why no settings are recommended.
    pub fn why_none(&self) -> String {
        let nearest = &self.plan.nearest;
        let name = describe(&nearest.settings);
        let load = self.load();
        if !nearest.carries() {
            let most = nearest.most_qps();
            return format!("no settings answer {load} requests per second: {name} answers the most, {most:.0}");
        }
        let reached = match self.requirements.goal {
            Goal::P99AtMost(_) => format!("a p99 of {:.0} us", nearest.p99_us()),
            goal @ Goal::CpuAtMost(_) => format!("{:.1} % of the CPUs", nearest.cpu_percent(goal)),
        };
        let (goal, margin) = (self.goal(), self.margin());
        format!(
            "no settings meet the goal of {goal} at {load}, less {margin} of margin: {name} comes nearest, with {reached}"
        )
    }

    /// Returns load and goal as command-line arguments.
    fn question(&self) -> String {
        let load = self.load();
        let service = self.requirements.service.map(|span| format!(" --service {span}")).unwrap_or_default();
        match self.requirements.goal {
            Goal::P99AtMost(p99) => format!("--load {load}{service} --p99 {p99}"),
            Goal::CpuAtMost(percent) => format!("--load {load}{service} --cpu {percent}%"),
        }
    }

    fn load(&self) -> String {
        let LoadRange { low, high } = self.requirements.load;
        if low == high { rate_text(low) } else { format!("{}..{}", rate_text(low), rate_text(high)) }
    }

    fn goal(&self) -> String {
        match self.requirements.goal {
            Goal::P99AtMost(p99) => format!("p99 at most {p99}"),
            Goal::CpuAtMost(percent) => format!("CPU at most {percent} %"),
        }
    }

    /// Returns the distance that a plan keeps from its goal, for the simulator's error.
    fn margin(&self) -> String {
        match self.requirements.goal {
            Goal::P99AtMost(_) => format!("{:.0} %", 100.0 * P99_MARGIN),
            Goal::CpuAtMost(_) => format!("{CPU_MARGIN} points"),
        }
    }
}

/// Formats a rate as `400k` or `1500`.
fn rate_text(rate: f64) -> String {
    let rate = rate as u64;
    if rate.is_multiple_of(1_000) { format!("{}k", rate / 1_000) } else { rate.to_string() }
}
