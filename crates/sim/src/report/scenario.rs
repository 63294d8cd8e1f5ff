//! Outcomes of a scenario file, as rows and as text.

use abey_chart::table::{aligned, new_table};
use serde::Serialize;

use crate::{Outcome, Scenario, ScenarioFile};

/// The outcome of one scenario of a file.
#[derive(Clone, Debug, Serialize)]
pub struct ScenarioRow {
    mode: String,
    load: String,
    #[serde(flatten)]
    outcome: Outcome,
}

impl ScenarioRow {
    /// Creates the row of a scenario. Settings that are not those of a mode have the name of their file.
    pub fn new(file: &ScenarioFile, scenario: &Scenario, outcome: Outcome) -> Self {
        let mode = match &file.settings {
            Some(name) if scenario.settings != scenario.mode.settings() => name.clone(),
            _ => scenario.mode.to_string(),
        };
        Self { mode, load: scenario.load.to_string(), outcome }
    }
}

/// Formats the rows as a table.
pub fn text(rows: &[ScenarioRow]) -> String {
    let titles = [
        "mode", "load", "qps", "avg us", "p50 us", "p95 us", "p99 us", "p99.9 us", "cpu %", "cycles/q", "instr/q",
        "irq/q", "polls/q",
    ];
    let mut table = new_table(titles);
    for row in rows {
        let outcome = &row.outcome;
        let mut cells = vec![row.mode.clone(), row.load.clone()];
        let whole = [
            outcome.qps,
            outcome.avg_us,
            outcome.p50_us,
            outcome.p95_us,
            outcome.p99_us,
            outcome.p999_us,
            outcome.cpu_percent,
            outcome.cycles_per_query,
            outcome.instructions_per_query,
        ];
        cells.extend(whole.map(|value| format!("{value:.0}")));
        cells.extend([outcome.interrupts_per_query, outcome.polls_per_query].map(|value| format!("{value:.3}")));
        table.add_row(cells);
    }
    aligned(table, 2..)
}
