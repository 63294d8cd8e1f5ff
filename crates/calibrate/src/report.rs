//! Calibrations as text and as a JSON document.

use std::fmt::Write as _;

use abey_chart::number::short;
use abey_chart::table::{aligned, new_table};
use abey_sim::profile::Delivery;
use serde::Serialize;

use crate::prediction::{CPU_LIMIT, LATENCY_LIMIT};
use crate::{Accuracy, Calibration, Cost, Prediction};

/// The JSON document of calibrations.
#[derive(Debug, Serialize)]
pub struct CalibrationDocument<'a> {
    rows: Vec<&'a Prediction>,
    accuracy: Vec<&'a Accuracy>,
    profiles: Vec<ProfileRecord<'a>>,
}

#[derive(Debug, Serialize)]
struct ProfileRecord<'a> {
    world: Delivery,
    path: String,
    /// Measured costs in nanoseconds.
    costs: Vec<CostRow<'a>>,
    /// Misfit of the fitted rows before and after the search; no unit.
    misfit_before: f64,
    misfit: f64,
}

#[derive(Debug, Serialize)]
struct CostRow<'a> {
    #[serde(flatten)]
    cost: &'a Cost,
    how: &'static str,
}

/// Returns the document of these calibrations.
pub fn document(done: &[Calibration]) -> CalibrationDocument<'_> {
    CalibrationDocument {
        rows: done.iter().flat_map(|one| &one.predictions).collect(),
        accuracy: done.iter().map(|one| &one.accuracy).collect(),
        profiles: done.iter().map(record).collect(),
    }
}

fn record(one: &Calibration) -> ProfileRecord<'_> {
    ProfileRecord {
        world: one.world,
        path: one.path.display().to_string(),
        costs: one.costs.0.iter().map(|cost| CostRow { cost, how: cost.operation.how() }).collect(),
        misfit_before: one.misfit.0,
        misfit: one.misfit.1,
    }
}

/// Formats the calibrations as text.
pub fn text(done: &[Calibration]) -> String {
    let mut out = String::new();
    for one in done {
        write_world(&mut out, one).expect("writing to a string cannot fail");
    }
    out
}

fn write_world(out: &mut String, one: &Calibration) -> std::fmt::Result {
    writeln!(out, "{}: measured costs\n{}\n", one.world, costs_table(one))?;
    writeln!(out, "{}: measured and predicted\n{}\n", one.world, predictions_table(one))?;
    writeln!(out, "{}\n", summary(&one.accuracy))?;
    let path = one.path.display();
    writeln!(out, "written: {path}\nnext: abey plan --profile {path} --load 30k --p99 300us\n")
}

fn costs_table(one: &Calibration) -> String {
    let mut table = new_table(["operation", "us", "+", "measured by"]);
    for cost in &one.costs.0 {
        let (operation, us) = (cost.operation, cost.ns / 1e3);
        let digits = if us < 10.0 { format!("{us:.3}") } else { format!("{us:.1}") };
        table.add_row([operation.name(), &digits, &format!("{:.0} %", 100.0 * cost.spread), operation.how()]);
    }
    aligned(table, 1..3)
}

fn predictions_table(one: &Calibration) -> String {
    let titles =
        ["mode", "load", "avg us", "predicted", "error", "p99 us", "predicted", "CPU %", "predicted", "points", ""];
    let mut table = new_table(titles);
    for row in &one.predictions {
        let benched = &row.benched;
        let verdict = match (benched.fitted, row.unsteady, row.holds()) {
            (true, ..) => "fitted",
            (_, true, _) => "unsteady, not judged",
            (_, _, true) => "ok",
            _ => "off",
        };
        table.add_row([
            benched.mode.to_string(),
            benched.rate.to_string(),
            format!("{} ±{}", short(benched.avg_us.median), short(benched.avg_us.uncertain)),
            short(row.predicted_avg_us),
            format!("{:+.0} %", 100.0 * row.avg_error),
            short(benched.p99_us.median),
            short(row.predicted_p99_us),
            format!("{:.1}", benched.cpu_percent.median),
            format!("{:.1}", row.predicted_cpu_percent),
            format!("{:+.1}", row.cpu_error),
            verdict.to_owned(),
        ]);
    }
    aligned(table, 1..10)
}

fn summary(accuracy: &Accuracy) -> String {
    let Accuracy { judged, within, unsteady, .. } = accuracy;
    let limits = format!("{:.0} % of the average and {CPU_LIMIT:.0} points of CPU", 100.0 * LATENCY_LIMIT);
    let mut text = format!("{within} of {judged} held-out rows are predicted within {limits}");
    if *judged > 0 {
        let _ = write!(
            text,
            "; errors: average {:.0} % in the median and {:.0} % at worst, CPU {:.1} and {:.1} points",
            100.0 * accuracy.median_avg_error,
            100.0 * accuracy.worst_avg_error,
            accuracy.median_cpu_error,
            accuracy.worst_cpu_error
        );
    }
    if *unsteady > 0 {
        let _ = write!(text, "; the runs of {unsteady} more rows differ too much to be judged");
    }
    text
}

/// Explains in one sentence why a calibration failed.
pub fn failure(bad: &Calibration) -> String {
    let Accuracy { judged, within, unsteady, .. } = bad.accuracy;
    let path = bad.path.display();
    if judged <= unsteady {
        return format!(
            "the {} profile cannot be judged, because the runs of {unsteady} of {} rows differ too much: calibrate again when \
             the machine is idle, or with more --reps ({path} was written)",
            bad.world,
            judged + unsteady
        );
    }
    format!(
        "the {} profile predicts only {within} of {judged} rows within {:.0} % of the average and {CPU_LIMIT:.0} points of CPU: \
         calibrate again when the machine is idle, with more --reps or other --loads ({path} was written)",
        bad.world,
        100.0 * LATENCY_LIMIT
    )
}
