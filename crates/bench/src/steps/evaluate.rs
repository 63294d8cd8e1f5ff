//! Evaluation of step runs: which contenders held the goal, how soon after a step, and with how much CPU.

use serde::Serialize;

use super::{Slice, StepRun, Steps};
use crate::World;
use crate::stats::median;

/// The share of slices after the settling time in which a contender must meet the goal to have held it. The rest allows for
/// disturbances of the machine.
pub(crate) const HELD_PERCENT: f64 = 90.0;

/// A contender's figures in one step: medians over its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepFigures {
    /// Requests per second.
    pub load: u64,
    /// CPU use of the server.
    pub cpu_percent: f64,
    /// The goal's percentile: the median over all slices.
    pub latency_us: f64,
    /// The share of slices after [`Steps::settle_time`] that met the goal.
    pub held_percent: f64,
    /// Time from the beginning of the step, in seconds, after which every slice of one second met the goal; `null` if
    /// never.
    pub settled_s: Option<f64>,
}

/// A contender over all steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepRow {
    /// The world.
    pub world: World,
    /// The contender.
    pub contender: String,
    /// CPU use of the server over the whole run.
    pub cpu_percent: f64,
    /// The lowest and the highest CPU use of its runs.
    pub cpu_percent_range: (f64, f64),
    /// CPU use of the tuner.
    pub tuner_cpu_percent: Option<f64>,
    /// The steps.
    pub steps: Vec<StepFigures>,
    /// Whether it held the goal in every step.
    pub held: bool,
    /// Number of runs.
    pub runs: usize,
    /// Notes.
    pub notes: Vec<String>,
}

/// The results of all contenders, in ascending order of CPU use.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepResults {
    /// One row for each contender.
    pub rows: Vec<StepRow>,
    /// The verdict in one sentence.
    pub verdict: String,
}

/// Evaluates all runs.
pub fn evaluate(runs: &[StepRun], steps: &Steps) -> StepResults {
    let mut names: Vec<&str> = Vec::new();
    runs.iter().for_each(|run| {
        if !names.contains(&run.contender.as_str()) {
            names.push(&run.contender);
        }
    });
    let mut rows: Vec<StepRow> = names.iter().filter_map(|name| row(runs, name, steps)).collect();
    rows.sort_by(|one, other| one.cpu_percent.total_cmp(&other.cpu_percent));
    let verdict = verdict(&rows, steps.goal);
    StepResults { rows, verdict }
}

fn row(runs: &[StepRun], name: &str, plan: &Steps) -> Option<StepRow> {
    let own: Vec<&StepRun> = runs.iter().filter(|run| run.contender == name).collect();
    let of_run = |run: &StepRun| run.cpu_percent.iter().sum::<f64>() / run.cpu_percent.len().max(1) as f64;
    let cpu: Vec<f64> = own.iter().map(|run| of_run(run)).collect();
    let tuner: Vec<f64> = own.iter().filter_map(|run| run.tuner_cpu_percent).collect();
    let steps = plan.loads.iter().enumerate().map(|(step, load)| figures(&own, step, *load, plan));
    let steps = steps.collect::<Option<Vec<_>>>()?;
    let mut notes: Vec<String> = own.iter().flat_map(|run| run.notes.clone()).collect();
    notes.sort_unstable();
    notes.dedup();
    Some(StepRow {
        world: own.first()?.world,
        contender: name.to_owned(),
        cpu_percent: median(&cpu)?,
        cpu_percent_range: (cpu.iter().copied().fold(f64::MAX, f64::min), cpu.iter().copied().fold(0.0, f64::max)),
        tuner_cpu_percent: median(&tuner),
        held: steps.iter().all(|step| step.held_percent >= HELD_PERCENT),
        steps,
        runs: own.len(),
        notes,
    })
}

fn figures(own: &[&StepRun], step: usize, load: u64, plan: &Steps) -> Option<StepFigures> {
    let (goal, settle_s) = (plan.goal, plan.settle_time().as_secs_f64());
    let limit = goal.limit.as_nanos() as f64 / 1e3;
    let meets_goal = |slice: &Slice| slice.count > 0 && slice.at(goal.percentile) <= limit;
    let of = |run: &StepRun| run.slices.iter().filter(|slice| slice.step == step).copied().collect::<Vec<Slice>>();
    let held = |slices: &[Slice]| {
        let later: Vec<&Slice> = slices.iter().filter(|slice| slice.at_s >= settle_s).collect();
        100.0 * later.iter().filter(|slice| meets_goal(slice)).count() as f64 / later.len().max(1) as f64
    };
    let slices: Vec<Vec<Slice>> = own.iter().map(|run| of(run)).collect();
    let latency: Vec<f64> = slices.iter().flatten().map(|slice| slice.at(goal.percentile)).collect();
    let settled: Vec<Option<f64>> = slices.iter().map(|slices| settled(slices, meets_goal)).collect();
    // The median, where "never" is later than any time.
    let times: Vec<f64> = settled.iter().map(|time| time.unwrap_or(f64::MAX)).collect();
    Some(StepFigures {
        load,
        cpu_percent: median(&own.iter().filter_map(|run| run.cpu_percent.get(step).copied()).collect::<Vec<_>>())?,
        latency_us: median(&latency)?,
        held_percent: median(&slices.iter().map(|slices| held(slices)).collect::<Vec<_>>())?,
        settled_s: median(&times).filter(|time| *time < f64::MAX / 4.0),
    })
}

/// Returns the beginning of the first second in which every slice met the goal.
fn settled(slices: &[Slice], meets_goal: impl Fn(&Slice) -> bool) -> Option<f64> {
    let first = slices.iter().filter(|slice| meets_goal(slice)).find(|first| {
        let second = |slice: &&Slice| slice.at_s >= first.at_s && slice.at_s < first.at_s + 1.0;
        slices.iter().filter(second).all(&meets_goal)
    });
    first.map(|slice| slice.at_s)
}

fn verdict(rows: &[StepRow], goal: super::StepGoal) -> String {
    let fixed = rows.iter().find(|row| row.held && row.contender != "tuned");
    let Some(tuned) = rows.iter().find(|row| row.contender == "tuned") else {
        return format!("{goal}: there is no run of the tuner");
    };
    if !tuned.held {
        return format!("{goal}: the tuner did not hold it in {HELD_PERCENT} % of the slices of every step");
    }
    match fixed {
        None => format!("{goal}: the tuner held it with {:.1} % CPU, and no fixed mode did", tuned.cpu_percent),
        Some(best) => format!(
            "{goal}: the tuner held it with {:.1} % CPU, the best fixed mode ({}) with {:.1} %: {:.2} x",
            tuned.cpu_percent,
            best.contender,
            best.cpu_percent,
            tuned.cpu_percent / best.cpu_percent
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(contender: &str, cpu: [f64; 2], late: impl Fn(usize, f64) -> bool) -> StepRun {
        let slices = (0..2).flat_map(|step| (0..20).map(move |at| (step, f64::from(at) * 0.25)));
        let slices = slices.map(|(step, at_s)| {
            let p99_us = if late(step, at_s) { 900.0 } else { 100.0 };
            Slice { step, at_s, count: 100, p50_us: 20.0, p90_us: 40.0, p95_us: 50.0, p99_us }
        });
        StepRun {
            world: World::Linux,
            contender: contender.to_owned(),
            slices: slices.collect(),
            cpu_percent: cpu.to_vec(),
            tuner_cpu_percent: None,
            tuner: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn results(runs: &[StepRun]) -> StepResults {
        let each = std::time::Duration::from_secs(5);
        evaluate(
            runs,
            &Steps {
                loads: vec![5_000, 60_000],
                each,
                slice: each / 20,
                goal: "p99=250us".parse().expect("a goal"),
                abey: Default::default(),
                arguments: Vec::new(),
            },
        )
    }

    #[test]
    fn the_tuner_is_compared_with_the_cheapest_mode_that_holds_the_goal() {
        let runs = [
            run("base", [10.0, 70.0], |_, _| false),
            run("defer200", [12.0, 40.0], |step, _| step == 1),
            run("tuned", [10.0, 50.0], |step, at| step == 1 && at < 1.0),
        ];
        let results = results(&runs);
        let names: Vec<&str> = results.rows.iter().map(|row| row.contender.as_str()).collect();
        assert_eq!(names, ["defer200", "tuned", "base"]);
        let held: Vec<bool> = results.rows.iter().map(|row| row.held).collect();
        assert_eq!(held, [false, true, true]);
        assert_eq!((results.rows[1].steps[0].settled_s, results.rows[1].steps[1].settled_s), (Some(0.0), Some(1.0)));
        assert_eq!(results.rows[0].steps[1].settled_s, None);
        assert!(results.verdict.contains("(base)") && results.verdict.contains("0.75 x"), "{}", results.verdict);
    }

    #[test]
    fn the_verdict_says_if_the_tuner_did_not_hold_the_goal() {
        let runs = [run("base", [10.0, 70.0], |_, _| false), run("tuned", [1.0, 1.0], |_, at| at > 2.5)];
        let results = results(&runs);
        assert!(!results.rows[0].held && results.verdict.contains("did not hold"), "{}", results.verdict);
        let alone = tuned_alone();
        assert!(alone.verdict.contains("no fixed mode did"), "{}", alone.verdict);
    }

    fn tuned_alone() -> StepResults {
        results(&[run("tuned", [1.0, 1.0], |_, _| false), run("base", [1.0, 1.0], |_, _| true)])
    }
}
