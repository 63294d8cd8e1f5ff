//! What the runs say: who held the goal, how soon after a step, and what it cost.

use serde::Serialize;

use super::{Slice, StepRun, Steps};
use crate::World;
use crate::stats::median;

/// The share of later slices that a contender must keep to have held the goal: the rest is left to whatever else a machine
/// does, which meets all contenders alike.
pub(crate) const HELD_PERCENT: f64 = 90.0;

/// A contender over one step, the median of its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepFigures {
    /// Requests per second.
    pub load: u64,
    /// CPU of the server.
    pub cpu_percent: f64,
    /// The goal's percentile, the median of all slices.
    pub latency_us: f64,
    /// The share of slices that kept the goal, those before [`Steps::settle`] left out.
    pub held_percent: f64,
    /// How long after the step's beginning the goal held again, in seconds: from then on a second long in every slice;
    /// `null` if never.
    pub settled_s: Option<f64>,
}

/// A contender over all the steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepRow {
    /// Its world.
    pub world: World,
    /// Who.
    pub contender: String,
    /// CPU of the server over the whole run.
    pub cpu_percent: f64,
    /// The lowest and the highest of its runs.
    pub cpu_percent_range: (f64, f64),
    /// CPU of the tuner.
    pub tuner_cpu_percent: Option<f64>,
    /// Each step.
    pub steps: Vec<StepFigures>,
    /// Whether it held the goal in every step.
    pub held: bool,
    /// Runs.
    pub runs: usize,
    /// What has to be known.
    pub notes: Vec<String>,
}

/// All contenders, the cheapest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The contenders.
    pub rows: Vec<StepRow>,
    /// One sentence.
    pub verdict: String,
}

/// What a contender's runs say together, and who won.
pub fn judge(runs: &[StepRun], steps: &Steps) -> Judged {
    let mut names: Vec<&str> = Vec::new();
    runs.iter().for_each(|run| {
        if !names.contains(&run.contender.as_str()) {
            names.push(&run.contender);
        }
    });
    let mut rows: Vec<StepRow> = names.iter().filter_map(|name| row(runs, name, steps)).collect();
    rows.sort_by(|one, other| one.cpu_percent.total_cmp(&other.cpu_percent));
    let verdict = verdict(&rows, steps.goal);
    Judged { rows, verdict }
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
    let (goal, settle_s) = (plan.goal, plan.settle().as_secs_f64());
    let limit = goal.limit.as_nanos() as f64 / 1e3;
    let kept = |slice: &Slice| slice.count > 0 && slice.at(goal.percentile) <= limit;
    let of = |run: &StepRun| run.slices.iter().filter(|slice| slice.step == step).copied().collect::<Vec<Slice>>();
    let held = |slices: &[Slice]| {
        let later: Vec<&Slice> = slices.iter().filter(|slice| slice.at_s >= settle_s).collect();
        100.0 * later.iter().filter(|slice| kept(slice)).count() as f64 / later.len().max(1) as f64
    };
    let slices: Vec<Vec<Slice>> = own.iter().map(|run| of(run)).collect();
    let latency: Vec<f64> = slices.iter().flatten().map(|slice| slice.at(goal.percentile)).collect();
    let settled: Vec<Option<f64>> = slices.iter().map(|slices| settled(slices, kept)).collect();
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

/// When the first second began in which every slice kept the goal.
fn settled(slices: &[Slice], kept: impl Fn(&Slice) -> bool) -> Option<f64> {
    let begins = slices.iter().filter(|slice| kept(slice)).find(|first| {
        let second = |slice: &&Slice| slice.at_s >= first.at_s && slice.at_s < first.at_s + 1.0;
        slices.iter().filter(second).all(&kept)
    });
    begins.map(|slice| slice.at_s)
}

fn verdict(rows: &[StepRow], goal: super::StepGoal) -> String {
    let fixed = rows.iter().find(|row| row.held && row.contender != "tuned");
    let Some(tuned) = rows.iter().find(|row| row.contender == "tuned") else {
        return format!("{goal}: the tuner was not among the contenders");
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

    fn judged(runs: &[StepRun]) -> Judged {
        let each = std::time::Duration::from_secs(5);
        judge(
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
    fn the_cheapest_that_holds_is_what_the_tuner_is_held_against() {
        let runs = [
            run("base", [10.0, 70.0], |_, _| false),
            run("defer200", [12.0, 40.0], |step, _| step == 1),
            run("tuned", [10.0, 50.0], |step, at| step == 1 && at < 1.0),
        ];
        let judged = judged(&runs);
        let names: Vec<&str> = judged.rows.iter().map(|row| row.contender.as_str()).collect();
        assert_eq!(names, ["defer200", "tuned", "base"]);
        let held: Vec<bool> = judged.rows.iter().map(|row| row.held).collect();
        assert_eq!(held, [false, true, true]);
        assert_eq!((judged.rows[1].steps[0].settled_s, judged.rows[1].steps[1].settled_s), (Some(0.0), Some(1.0)));
        assert_eq!(judged.rows[0].steps[1].settled_s, None);
        assert!(judged.verdict.contains("(base)") && judged.verdict.contains("0.75 x"), "{}", judged.verdict);
    }

    #[test]
    fn a_tuner_that_does_not_hold_the_goal_has_not_won() {
        let runs = [run("base", [10.0, 70.0], |_, _| false), run("tuned", [1.0, 1.0], |_, at| at > 2.5)];
        let judged = judged(&runs);
        assert!(!judged.rows[0].held && judged.verdict.contains("did not hold"), "{}", judged.verdict);
        let alone = judged_alone();
        assert!(alone.verdict.contains("no fixed mode did"), "{}", alone.verdict);
    }

    fn judged_alone() -> Judged {
        judged(&[run("tuned", [1.0, 1.0], |_, _| false), run("base", [1.0, 1.0], |_, _| true)])
    }
}
