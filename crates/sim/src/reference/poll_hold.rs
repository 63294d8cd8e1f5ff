//! The poll-hold proposal of 2007: flood ping with an interrupt a packet, and with poll mode held for 1 to 2 jiffies.

use abey_delivery::{Hold, Mode, Nanos};
use serde::Deserialize;

use super::{Figure, Figures, Row, run_all};
use crate::input::InputError;
use crate::outcome::Outcome;
use crate::profile::Profile;
use crate::scenario::{Load, Responder, Scenario};

const TABLE: &str = include_str!("../../../../data/reference/poll-hold-flood-ping.csv");

/// Mean of one to two jiffies of 4 ms.
const HOLD: Nanos = Nanos::from_millis(6);

#[derive(Clone, Debug, Deserialize)]
struct TableRow {
    mode: String,
    packets_sent_and_received: f64,
    cpu_percent: f64,
    interrupts: f64,
}

/// The study: two rows.
#[derive(Debug, Default)]
pub struct PollHold;

impl PollHold {
    /// Name on the command line.
    pub const NAME: &str = "poll-hold";

    /// Profile of the study.
    pub const PROFILE: &str = "e100-2007";

    /// Predicts both rows; the table's time, which it does not give, is taken to be a second.
    ///
    /// # Errors
    /// If the profile cannot be used.
    pub fn predict(&self, profile: &Profile, seed: u64) -> Result<Vec<Row>, InputError> {
        let table: Vec<TableRow> = super::read(TABLE);
        let scenarios: Vec<Scenario> = table.iter().map(|row| scenario(&row.mode, seed)).collect();
        let outcomes = run_all(profile, &scenarios)?;
        Ok(table.iter().zip(&outcomes).map(|(row, outcome)| to_row(row, outcome)).collect())
    }
}

fn scenario(mode: &str, seed: u64) -> Scenario {
    let mode = if mode == "hold" { Mode::Hold(Hold::Spin(HOLD)) } else { Mode::Base };
    Scenario {
        responder: Responder::Stack,
        connections: 1,
        warmup: Nanos::ZERO,
        duration: Nanos::from_millis(1_000),
        seed,
        ..Scenario::new(mode, Load::Closed)
    }
}

fn to_row(row: &TableRow, outcome: &Outcome) -> Row {
    let figure = |published, predicted| Figure { published: Some(published), predicted };
    let answers = outcome.answers as f64;
    let figures = Figures(vec![
        ("packets_sent_and_received", figure(row.packets_sent_and_received, answers)),
        ("cpu_percent", figure(row.cpu_percent, outcome.cpu_percent)),
        ("interrupts", figure(row.interrupts, (outcome.interrupts_per_query * answers).round())),
    ]);
    Row { mode: row.mode.clone(), load: "flood".to_owned(), fitted: row.mode == "interrupt", figures }
}
