//! Runs, and rows that aggregate the runs of one world, mode and load.

use std::fmt;

use abey_delivery::Mode;
use serde::{Deserialize, Serialize};

use crate::{Figures, Load, Spreads};

/// The owner of the NIC queue: what `--world` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum World {
    /// The kernel's own NAPI.
    Linux,
    /// Abey's datapath, in user space.
    Datapath,
    /// Abey's datapath over shared memory instead of a network device, so without the costs of device and driver.
    Memory,
}

impl World {
    /// Returns the world's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Datapath => "datapath",
            Self::Memory => "memory",
        }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
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

/// The percentiles of a latency curve, dense enough for a smooth line on a scale of nines.
///
/// A percentile with fewer than about ten responses beyond it should be left out: it is not significant.
pub const CURVE_PERCENTILES: [f64; 23] = [
    0.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 85.0, 90.0, 93.0, 95.0, 97.0, 98.0, 99.0, 99.5, 99.7,
    99.9, 99.95, 99.99, 99.999,
];

/// One run of one mode at one load.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The world.
    pub world: World,
    /// The delivery mode.
    pub mode: Mode,
    /// The load.
    pub load: Load,
    /// The measured figures. Figures that are not finite count as not measured.
    pub figures: Figures,
    /// Latency by percentile, usually at [`CURVE_PERCENTILES`]; may be empty.
    pub curve: Vec<CurvePoint>,
    /// Whether counters proved the mode active.
    pub active: bool,
    /// The proof, such as "152,301 packets by busy poll, 9,120 suspensions".
    pub proof: Option<String>,
    /// Whether the load generator used more than 95 % of its own CPU.
    pub client_bound: bool,
    /// Notes on the run.
    pub notes: Vec<String>,
}

/// The aggregate of all runs of one world, mode and load.
///
/// The JSON object is flat: it has the keys of [`Figures`] and of [`Spreads`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchRow {
    /// The world.
    pub world: World,
    /// The delivery mode.
    #[serde(with = "as_text")]
    pub mode: Mode,
    /// The load.
    pub load: Load,
    /// The median of each figure, over the runs that measured it.
    #[serde(flatten)]
    pub figures: Figures,
    /// Whether the mode was proved active in every run.
    pub active: bool,
    /// Whether the load generator was the bottleneck in any run.
    pub client_bound: bool,
    /// Number of runs.
    pub runs: u32,
    /// The spread between runs.
    #[serde(flatten)]
    pub spreads: Spreads,
    /// The proof of the first run.
    #[serde(default)]
    pub proof: Option<String>,
    /// Latency by percentile: the median over the runs, at percentiles that all runs have.
    #[serde(default)]
    pub latency_curve: Vec<CurvePoint>,
    /// The distinct notes of all runs.
    #[serde(default)]
    pub notes: Vec<String>,
}

impl BenchRow {
    /// Returns the sort key of the table: world, load, mode.
    pub(crate) fn sort_key(&self) -> (World, Load, (u8, u64)) {
        (self.world, self.load, mode_order(self.mode))
    }
}

/// Returns the sort key of a mode in tables, legends and charts: its place in the published tables, then its number.
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

/// Serializes a mode as its name.
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
