//! Published tables, and the simulator's predictions of their rows.

mod irq_suspension;
mod low_latency_sockets;
mod poll_hold;
mod remote_ssd;
mod report;
mod threaded_napi;

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

pub use irq_suspension::IrqSuspension;
pub use low_latency_sockets::LowLatencySockets;
pub use poll_hold::PollHold;
pub use report::{ColumnError, Order, Summary, summarize, summarize_orders};
pub use threaded_napi::ThreadedNapi;

use crate::input::InputError;
use crate::outcome::Outcome;
use crate::profile::Profile;
use crate::scenario::Scenario;

/// Published and simulated value of a figure, in the published unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Published value, if the table has one.
    pub published: Option<f64>,
    /// Simulated value.
    pub predicted: f64,
}

/// Row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Delivery mode, as named in the table.
    pub mode: String,
    /// Load, as named in the table.
    pub load: String,
    /// Whether the profile was fitted to this row; otherwise the row is a prediction.
    pub fitted: bool,
    /// Figures by column, in the table's order.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Figures by column, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(pub Vec<(&'static str, Figure)>);

impl Figures {
    /// Returns the figure of a column.
    pub fn get(&self, column: &str) -> Option<Figure> {
        self.0.iter().find(|(name, _)| *name == column).map(|(_, figure)| *figure)
    }
}

impl Serialize for Figures {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, figure)| (*name, figure)))
    }
}

/// Simulates scenarios on all CPUs. The outcomes are in the order of the scenarios and do not depend on the number of
/// threads.
///
/// # Errors
/// The first invalid scenario.
pub fn run_all(profile: &Profile, scenarios: &[Scenario]) -> Result<Vec<Outcome>, InputError> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(scenarios.len().max(1));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(scenario) = scenarios.get(index) else { return done };
            done.push((index, crate::run(profile, scenario)));
        }
    };
    let mut outcomes: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a simulation panicked")).collect()
    });
    outcomes.sort_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

fn read<T: for<'a> serde::Deserialize<'a>>(text: &str) -> Vec<T> {
    csv::Reader::from_reader(text.as_bytes()).deserialize().map(|row| row.expect("the table is well-formed")).collect()
}
