//! A plan as text.

use std::fmt::Write as _;

use abey_chart::table::{aligned, new_table};
use abey_delivery::Nanos;

use super::PlanReport;
use crate::SettingsFile;
use crate::plan::{AtLoad, Candidate, Family, Goal, Other, Reason, describe};

/// Maximum number of frontier rows in the text. The JSON document has all of them.
const MAX_FRONTIER_ROWS: usize = 12;

impl PlanReport<'_> {
    /// Returns the report as text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        write(&mut out, self).expect("writing to a string cannot fail");
        out
    }
}

fn write(out: &mut String, report: &PlanReport<'_>) -> std::fmt::Result {
    let best = &report.plan.nearest;
    let name = describe(&best.settings);
    match report.plan.recommended {
        Some(_) => writeln!(out, "{name}\n\n{}", indented(&SettingsFile::text(&best.settings, "")))?,
        None => writeln!(out, "No settings meet the goal. The nearest: {name}\n")?,
    }
    writeln!(
        out,
        "expected ({} queues, {} connections):",
        report.requirements.queues, report.requirements.connections
    )?;
    writeln!(out, "{}\n", expected_table(best))?;
    writeln!(out, "{}\n", goal_text(report))?;
    writeln!(out, "{}\n", bound_text(report))?;
    writeln!(out, "the best of every other family:\n{}\n", others_table(report))?;
    writeln!(out, "the frontier, no other settings being better in both:\n{}\n", frontier_table(report))?;
    writeln!(out, "{}\n", report.plot())?;
    writeln!(out, "{}", next_command(report))
}

fn indented(text: &str) -> String {
    text.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect()
}

/// Formats the expectation at one load in one line.
pub(super) fn expectation(at: &AtLoad) -> String {
    format!(
        "{:.0} requests/s: avg {:.0} us, p99 {:.0} us, p99.9 {:.0} us, CPU {:.1} %",
        at.load, at.avg_us, at.p99_us, at.p999_us, at.cpu_percent
    )
}

fn expected_table(best: &Candidate) -> String {
    let mut table = new_table(["load", "qps", "avg us", "p99 us", "p99.9 us", "CPU %"]);
    for at in &best.at {
        let whole = [at.load, at.qps, at.avg_us, at.p99_us, at.p999_us].map(|figure| format!("{figure:.0}"));
        table.add_row(whole.into_iter().chain([format!("{:.1}", at.cpu_percent)]));
    }
    aligned(table, ..)
}

fn goal_text(report: &PlanReport<'_>) -> String {
    let runs = report.requirements.effort.confirming_runs;
    let error = match report.requirements.goal {
        Goal::P99AtMost(_) => "median error of its p99",
        Goal::CpuAtMost(_) => "median error of its CPU use",
    };
    let margin = format!(
        "{} of margin for the simulator's own error (the {error} against the published table)",
        report.margin()
    );
    match (&report.plan.recommended, report.requirements.goal) {
        (Some(best), Goal::P99AtMost(_)) => {
            let worst = best.p99_us();
            format!(
                "goal: {}, met in all of {runs} runs at each load, the worst {worst:.0} us, with {margin}",
                report.goal()
            )
        }
        (Some(best), goal @ Goal::CpuAtMost(_)) => {
            let worst = best.cpu_percent(goal);
            format!(
                "goal: {}, met in all of {runs} runs at each load, the worst {worst:.1} %, with {margin}",
                report.goal()
            )
        }
        (None, _) => format!("goal: {}, missed, with {margin}", report.goal()),
    }
}

fn bound_text(report: &PlanReport<'_>) -> String {
    let bound = &report.bound;
    let napi = &report.plan.nearest.settings.napi;
    let why = match bound.timeout {
        Some(_) if bound.postponed => "irq-suspend-timeout, from the last delivery of events",
        Some(timeout) if timeout == napi.irq_suspend_timeout => "irq-suspend-timeout, from the last poll",
        Some(_) if napi.hold.is_some() => "the hold time",
        Some(_) => "gro-flush-timeout, while the interrupt is masked",
        None if bound.scheduler.is_some() => "a slice of the thread that shares the CPU",
        None => "the interrupt is never masked unless a poll follows",
    };
    let added = Some(bound.added()).filter(|span| !span.is_zero());
    let added = added.map_or("none".to_owned(), |span| format!("at most {span}"));
    let dispatch = rounded(bound.dispatch);
    let mut text = format!("wait added for other flows on the same queue: {added} ({why})");
    text += &format!("; then at most {dispatch} until the poll, as with any settings");
    if let Some(more) = bound.handed_over {
        text += &format!(", and {more} more when a softirq has used up its budget");
    }
    let simulated = report.plan.nearest.at.iter().map(|at| at.ring_wait_max_us).fold(0.0, f64::max);
    text + &format!("\nlongest wait of a packet in the simulations, the NIC's moderation included: {simulated:.0} us")
}

/// Rounds up to two significant digits.
fn rounded(span: Nanos) -> Nanos {
    let mut unit = 1;
    while span.as_nanos() / unit >= 100 {
        unit *= 10;
    }
    Nanos::from_nanos(span.as_nanos().div_ceil(unit) * unit)
}

fn others_table(report: &PlanReport<'_>) -> String {
    let mut table = new_table(["family", "settings", "CPU %", "p99 us", "not chosen, because it"]);
    for Other { best, reason } in &report.plan.others {
        table.add_row([
            best.family.name().to_owned(),
            describe(&best.settings),
            format!("{:.1}", best.cpu_percent(report.requirements.goal)),
            format!("{:.0}", best.p99_us()),
            why_not(report.requirements.goal, *reason),
        ]);
    }
    aligned(table, 2..4)
}

/// Explains why settings are not recommended.
pub(super) fn why_not(goal: Goal, reason: Reason) -> String {
    match (reason, goal) {
        (Reason::Overloaded, _) => "does not answer this load".to_owned(),
        (Reason::Misses(by), Goal::P99AtMost(_)) => format!("misses the goal by {by:.0} us, margin included"),
        (Reason::Misses(by), Goal::CpuAtMost(_)) => format!("misses the goal by {by:.1} points, margin included"),
        (Reason::Costs(times), _) if times < 1.005 => "is no better, within chance".to_owned(),
        (Reason::Costs(times), Goal::P99AtMost(_)) => format!("costs {times:.2} x the CPU"),
        (Reason::Costs(times), Goal::CpuAtMost(_)) => format!("has {times:.2} x the p99"),
    }
}

fn frontier_table(report: &PlanReport<'_>) -> String {
    let frontier = &report.plan.frontier;
    let best = report.plan.recommended.as_ref().map(|best| best.settings);
    let mut table = new_table(["", "CPU %", "p99 us", "settings"]);
    for (at, one) in frontier.iter().enumerate() {
        let chosen = Some(one.settings) == best;
        // An even selection that includes both ends; the recommended settings are always shown.
        let is_shown = frontier.len() <= MAX_FRONTIER_ROWS
            || at * (MAX_FRONTIER_ROWS - 1) % (frontier.len() - 1) < MAX_FRONTIER_ROWS - 1;
        if is_shown || chosen {
            let mark = if chosen { "*" } else { "" };
            let cpu = format!("{:.1}", one.cpu_percent(report.requirements.goal));
            table.add_row([mark.to_owned(), cpu, format!("{:.0}", one.p99_us()), describe(&one.settings)]);
        }
    }
    aligned(table, 1..3)
}

fn next_command(report: &PlanReport<'_>) -> String {
    let Some(best) = &report.plan.recommended else {
        return "next: a laxer goal, a lower load, or more queues".to_owned();
    };
    let datapath_only = matches!(best.family, Family::Hold | Family::HoldTimer | Family::Workqueue);
    match (&report.output, best.mode) {
        (Some(file), _) if datapath_only => {
            format!("next: a scenario with settings = \"{}\" for abey sim", file.display())
        }
        (Some(file), _) => {
            let file = file.display();
            format!("next: abey run --settings {file} -- CMD, or abey set DEV --settings {file}")
        }
        (None, Some(mode)) if datapath_only => format!("next: a scenario with modes = [\"{mode}\"] for abey sim"),
        (None, Some(mode)) => format!("next: abey run --mode {mode} -- CMD, or abey set DEV --mode {mode}"),
        (None, None) => "next: the same with --output FILE.toml, then abey run --settings FILE.toml -- CMD".to_owned(),
    }
}
