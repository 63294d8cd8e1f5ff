//! The results of load steps as text and as a JSON document.

use abey_chart::table::{aligned, new_table};
use serde::Serialize;

use super::{StepGoal, StepResults, StepRun};

/// The JSON document of load steps.
#[derive(Debug, Serialize)]
pub struct StepDocument<'a> {
    /// The results.
    #[serde(flatten)]
    pub results: &'a StepResults,
    /// The goal.
    pub goal: StepGoal,
    /// The command line.
    pub command: String,
    /// The seed of the order of runs.
    pub seed: u64,
    /// The build profile of `abey`.
    pub profile: &'static str,
    /// All runs.
    pub runs: &'a [StepRun],
}

/// Formats the results as a table with notes below. Ends with a line feed.
pub fn table(results: &StepResults) -> String {
    let titles = ["contender", "CPU %", "range", "tuner %", "load", "CPU %", "latency us", "held %", "settled s"];
    let mut table = new_table(titles);
    for row in &results.rows {
        for (at, step) in row.steps.iter().enumerate() {
            let first = |text: String| if at == 0 { text } else { String::new() };
            let (low, high) = row.cpu_percent_range;
            let tuner = row.tuner_cpu_percent.map_or_else(String::new, |cpu| format!("{cpu:.1}"));
            table.add_row([
                first(row.contender.clone()),
                first(format!("{:.1}", row.cpu_percent)),
                first(format!("{low:.1}-{high:.1}")),
                first(tuner),
                step.load.to_string(),
                format!("{:.1}", step.cpu_percent),
                format!("{:.0}", step.latency_us),
                format!("{:.0}", step.held_percent),
                step.settled_s.map_or_else(|| "never".to_owned(), |time| format!("{time:.1}")),
            ]);
        }
    }
    let mut text = aligned(table, 1..) + "\n";
    for row in &results.rows {
        for note in &row.notes {
            text += &format!("note: {}: {note}\n", row.contender);
        }
    }
    text
}
