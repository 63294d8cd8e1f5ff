//! The IRQ suspension study: memcached under 11 modes and 6 loads.

use std::collections::BTreeMap;

use abey_delivery::{Mode, Nanos};
use serde::Deserialize;

use super::{Figure, Figures, Row, read, run_all};
use crate::input::InputError;
use crate::outcome::Outcome;
use crate::profile::Profile;
use crate::scenario::{Load, Scenario};

const TABLE: &str = include_str!("../../../../data/reference/irq-suspension-memcached.csv");
const COUNTERS: &str = include_str!("../../../../data/reference/irq-suspension-counters.csv");

/// Connections of the study: 7 load machines with 32 threads of 20 connections each.
const CONNECTIONS: u32 = 4_480;
/// Queues of the study, each pinned to one CPU.
const QUEUES: u32 = 8;
/// Factor of the table's cycles and instructions per query, which are divided by three times the number
/// (`reference/README.md`).
const PER_QUERY_DIVISOR: f64 = 3.0;
/// Modes that the shipped profile is fitted to.
const FITTED: [&str; 3] = ["base", "defer20", "fullbusy"];

#[derive(Clone, Debug, Deserialize)]
struct TableRow {
    mode: String,
    load: String,
    qps: f64,
    avg_us: f64,
    p95_us: f64,
    p99_us: f64,
    cpu_percent: f64,
    cycles_per_query: f64,
    instructions_per_query: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct CounterRow {
    mode: String,
    load: String,
    softirq_percent: f64,
    hardirq_percent: f64,
    interrupts_per_query: f64,
    packets_per_poll: Option<f64>,
    empty_polls_percent: Option<f64>,
    epoll_waits_per_query: Option<f64>,
    events_per_epoll_wait: Option<f64>,
}

impl CounterRow {
    /// Packets per poll that found any.
    ///
    /// Empty polls are left out because the study's trace has some that cannot be of the measured instances: in every mode
    /// with a gro-flush-timeout about one per timeout and CPU, even while interrupts are suspended and the ring is full.
    fn packets_per_nonempty_poll(&self) -> Option<f64> {
        Some(self.packets_per_poll? / (1.0 - self.empty_polls_percent? / 100.0))
    }
}

/// The study: its rows and their scenarios.
pub struct IrqSuspension {
    rows: Vec<(TableRow, Option<CounterRow>)>,
}

impl Default for IrqSuspension {
    fn default() -> Self {
        Self::new()
    }
}

impl IrqSuspension {
    /// Name on the command line.
    pub const NAME: &str = "irq-suspension";

    /// Returns all 66 rows.
    pub fn new() -> Self {
        let table: Vec<TableRow> = read(TABLE);
        let counters: BTreeMap<(String, String), CounterRow> =
            read::<CounterRow>(COUNTERS).into_iter().map(|row| ((row.mode.clone(), row.load.clone()), row)).collect();
        let rows = table
            .into_iter()
            .map(|row| {
                let load = row.load.replace('K', "000");
                let counters = counters.get(&(row.mode.clone(), load)).cloned();
                (row, counters)
            })
            .collect();
        Self { rows }
    }

    /// Keeps only the rows that the shipped profile is fitted to.
    pub fn fitted_rows(mut self) -> Self {
        self.rows.retain(|(row, _)| FITTED.contains(&row.mode.as_str()));
        self
    }

    /// Returns a scenario for each row, with `queues` of the study's eight queues, their share of load and
    /// connections, and about `requests` answers each.
    pub fn scenarios(&self, queues: u32, requests: f64, seed: u64) -> Vec<Scenario> {
        self.rows.iter().map(|(row, _)| scenario(row, queues, requests, seed)).collect()
    }

    /// Predicts every row.
    ///
    /// # Errors
    /// If the profile cannot be used.
    pub fn predict(&self, profile: &Profile, requests: f64, seed: u64) -> Result<Vec<Row>, InputError> {
        let outcomes = run_all(profile, &self.scenarios(QUEUES, requests, seed))?;
        Ok(self.rows_of(&outcomes, QUEUES))
    }

    /// Returns the rows with an outcome for each.
    pub(crate) fn rows_of(&self, outcomes: &[Outcome], queues: u32) -> Vec<Row> {
        let scale = f64::from(QUEUES) / f64::from(queues);
        self.rows
            .iter()
            .zip(outcomes)
            .map(|((row, counters), outcome)| to_row(row, counters.as_ref(), outcome, scale))
            .collect()
    }
}

fn scenario(row: &TableRow, queues: u32, requests: f64, seed: u64) -> Scenario {
    let share = f64::from(queues) / f64::from(QUEUES);
    let load = match row.load.strip_suffix('K') {
        Some(thousands) => Load::Open(thousands.parse::<f64>().expect("a number") * 1e3 * share),
        None => Load::Closed,
    };
    let rate = match load {
        Load::Open(rate) => rate,
        Load::Closed => 1.1e6 * share,
    };
    // Overload takes time to fill the connections.
    let filling = row.load == "1000K" || row.load == "MAX";
    Scenario {
        queues,
        connections: CONNECTIONS * queues / QUEUES,
        warmup: Nanos::from_millis(if filling { 100 } else { 30 }),
        duration: Nanos::from_nanos((requests / rate * 1e9) as u64),
        seed,
        linux: true,
        ..Scenario::new(row.mode.parse::<Mode>().expect("the table has our modes"), load)
    }
}

fn packets_per_nonempty_poll(outcome: &Outcome) -> f64 {
    outcome.packets_per_poll / (1.0 - outcome.empty_polls_percent / 100.0).max(1e-9)
}

fn to_row(row: &TableRow, counters: Option<&CounterRow>, outcome: &Outcome, scale: f64) -> Row {
    let main = |published, predicted| Figure { published: Some(published), predicted };
    let extra = |published: Option<f64>, predicted| Figure { published, predicted };
    let counter = |get: fn(&CounterRow) -> Option<f64>| counters.and_then(get);
    let figures = Figures(vec![
        ("qps", main(row.qps, outcome.qps * scale)),
        ("avg_us", main(row.avg_us, outcome.avg_us)),
        ("p95_us", main(row.p95_us, outcome.p95_us)),
        ("p99_us", main(row.p99_us, outcome.p99_us)),
        ("cpu_percent", main(row.cpu_percent, outcome.cpu_percent)),
        ("cycles_per_query", main(row.cycles_per_query, outcome.cycles_per_query / PER_QUERY_DIVISOR)),
        (
            "instructions_per_query",
            main(row.instructions_per_query, outcome.instructions_per_query / PER_QUERY_DIVISOR),
        ),
        ("softirq_percent", extra(counter(|row| Some(row.softirq_percent)), outcome.softirq_percent)),
        ("hardirq_percent", extra(counter(|row| Some(row.hardirq_percent)), outcome.hardirq_percent)),
        ("interrupts_per_query", extra(counter(|row| Some(row.interrupts_per_query)), outcome.interrupts_per_query)),
        (
            "packets_per_nonempty_poll",
            extra(counter(CounterRow::packets_per_nonempty_poll), packets_per_nonempty_poll(outcome)),
        ),
        ("epoll_waits_per_query", extra(counter(|row| row.epoll_waits_per_query), outcome.waits_per_query)),
        ("events_per_epoll_wait", extra(counter(|row| row.events_per_epoll_wait), outcome.events_per_wait)),
    ]);
    Row { mode: row.mode.clone(), load: row.load.clone(), fitted: FITTED.contains(&row.mode.as_str()), figures }
}
