//! What one run measured, and what all runs of one world, mode and load come to.

use std::fmt;

use abey_delivery::Mode;
use serde::{Deserialize, Serialize};

use crate::{Figures, Load, Spreads};

/// Who owns the NIC queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum World {
    /// The kernel's own NAPI.
    Linux,
    /// Abey, in user space.
    Datapath,
    /// Abey, in user space, with shared memory in place of a network device: what the device and the kernel's driver cost
    /// is not in.
    Memory,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Linux => "linux",
            Self::Datapath => "datapath",
            Self::Memory => "memory",
        })
    }
}

/// One point of a latency distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Percentile, from 0 to 100.
    pub percentile: f64,
    /// Latency at this percentile in microseconds.
    pub us: f64,
}

/// The percentiles at which a run should give its latency curve: dense enough for a smooth line on a scale of nines.
///
/// Leave out those that fewer than about ten answers lie beyond: they are single accidents, not a distribution.
pub const CURVE_PERCENTILES: [f64; 23] = [
    0.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 85.0, 90.0, 93.0, 95.0, 97.0, 98.0, 99.0, 99.5, 99.7,
    99.9, 99.95, 99.99, 99.999,
];

/// One measured run of one mode at one load.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Who owned the NIC queue.
    pub world: World,
    /// The delivery mode that was set.
    pub mode: Mode,
    /// How hard the server was driven.
    pub load: Load,
    /// What was measured; figures that are not finite count as not measured.
    pub figures: Figures,
    /// Latency by percentile, best at [`CURVE_PERCENTILES`]; may be empty.
    pub curve: Vec<CurvePoint>,
    /// Whether counters proved the mode active during this run.
    pub active: bool,
    /// The counters that proved it, as a short sentence: "152,301 packets by busy poll, 9,120 suspensions".
    pub proof: Option<String>,
    /// Whether the load generator used more than 95 % of its own CPU.
    pub client_bound: bool,
    /// Anything a reader has to know about this run.
    pub notes: Vec<String>,
}

/// All runs of one world, mode and load: the median of each figure, and its spread.
///
/// The JSON object is flat: the keys of [`Figures`] and of [`Spreads`] stand beside `world`, `mode` and `load`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Who owned the NIC queue.
    pub world: World,
    /// The delivery mode.
    #[serde(with = "as_text")]
    pub mode: Mode,
    /// How hard the server was driven.
    pub load: Load,
    /// The median of each figure over the runs that measured it.
    #[serde(flatten)]
    pub figures: Figures,
    /// Whether the mode was proved active in every run.
    pub active: bool,
    /// Whether the load generator was the limit in any run.
    pub client_bound: bool,
    /// How many runs the medians are taken over.
    pub runs: u32,
    /// The spread between runs.
    #[serde(flatten)]
    pub spreads: Spreads,
    /// The counters of the first run that proved the mode active.
    #[serde(default)]
    pub proof: Option<String>,
    /// Latency by percentile: the median over the runs at each percentile that all of them gave.
    #[serde(default)]
    pub latency_curve: Vec<CurvePoint>,
    /// The notes of all runs, each once.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl Row {
    /// The key of the order of the table: world, then load, then mode.
    pub(crate) fn order(&self) -> (World, Load, (u8, u64)) {
        (self.world, self.load, mode_order(self.mode))
    }
}

/// Where a mode stands in tables, legends and charts: in the order of the published tables, then by its figure.
pub fn mode_order(mode: Mode) -> (u8, u64) {
    match mode {
        Mode::Base => (0, 0),
        Mode::Defer(span) => (1, span.as_nanos()),
        Mode::NapiBusy => (2, 0),
        Mode::FullBusy => (3, 0),
        Mode::Suspend(span) => (4, span.as_nanos()),
        Mode::Threaded => (5, 0),
        Mode::ThreadedBusy => (6, 0),
        Mode::Workqueue => (7, 0),
        Mode::Hold(abey_delivery::Hold::Spin(span)) => (8, span.as_nanos()),
        Mode::Hold(abey_delivery::Hold::Timer(span)) => (9, span.as_nanos()),
        Mode::SockBusy(span) => (10, span.as_nanos()),
        _ => (u8::MAX, 0),
    }
}

/// A mode as its name.
pub(crate) mod as_text {
    use super::Mode;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(mode)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
