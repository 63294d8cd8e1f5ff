//! Ratios of a world's figures to the kernel's, in the same mode and in the kernel's best mode.
//!
//! Meaningful only for test beds with the same server and the same wire.

use abey_delivery::Mode;
use serde::{Deserialize, Serialize};

use crate::row::as_text;
use crate::{BenchRow, Figure, Load, World, stats};

/// A world's row at a load, as ratios to the kernel's rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatioRow {
    /// The world.
    pub world: World,
    /// The delivery mode.
    #[serde(with = "as_text")]
    pub mode: Mode,
    /// The load.
    pub load: Load,
    /// Ratios to the kernel's row of the same mode.
    pub to_same_mode: Ratios,
    /// Ratios to the kernel's best mode for each figure: lowest latency and CPU time, highest throughput.
    pub to_best_mode: Ratios,
    /// The kernel's best mode for each figure.
    pub best_mode: BestModes,
}

/// Ratios of figures; `None` if one of the two was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// CPU time per query.
    pub cpu_per_query: Option<f64>,
    /// Average latency.
    pub avg: Option<f64>,
    /// 99th percentile of latency.
    pub p99: Option<f64>,
    /// Responses per second.
    pub qps: Option<f64>,
}

/// The kernel's best mode for each figure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestModes {
    /// The mode with the least CPU time per query.
    pub cpu_per_query: Option<String>,
    /// The mode with the lowest average latency.
    pub avg: Option<String>,
    /// The mode with the lowest 99th percentile.
    pub p99: Option<String>,
    /// The mode with the most responses per second.
    pub qps: Option<String>,
}

/// The compared figures, in the order of the table.
pub const COMPARED: [Figure; 4] = [Figure::CpuPerQuery, Figure::Avg, Figure::P99, Figure::Qps];

impl Ratios {
    fn of(ratio: impl Fn(Figure) -> Option<f64>) -> Self {
        let [cpu_per_query, avg, p99, qps] = COMPARED.map(ratio);
        Self { cpu_per_query, avg, p99, qps }
    }

    /// Returns the ratios in the order of [`COMPARED`].
    pub const fn all(&self) -> [Option<f64>; 4] {
        [self.cpu_per_query, self.avg, self.p99, self.qps]
    }
}

impl BestModes {
    /// Returns the modes in the order of [`COMPARED`].
    pub fn all(&self) -> [Option<&str>; 4] {
        [&self.cpu_per_query, &self.avg, &self.p99, &self.qps].map(|mode| mode.as_deref())
    }
}

/// Returns the ratios of every row of another world, at loads at which the kernel was measured too.
pub fn ratio_rows(rows: &[BenchRow]) -> Vec<RatioRow> {
    let mut others: Vec<&BenchRow> = rows.iter().filter(|row| row.world != World::Linux).collect();
    others.sort_by_key(|row| (row.load, row.sort_key().2, row.world));
    others.into_iter().filter_map(|row| ratio_row(rows, row)).collect()
}

fn ratio_row(rows: &[BenchRow], row: &BenchRow) -> Option<RatioRow> {
    let kernel: Vec<&BenchRow> =
        rows.iter().filter(|other| (other.world, other.load) == (World::Linux, row.load)).collect();
    if kernel.is_empty() {
        return None;
    }
    let same = kernel.iter().find(|other| other.mode == row.mode);
    let best = COMPARED.map(|figure| best(&kernel, figure));
    let [cpu_per_query, avg, p99, qps] = best.map(|best| best.map(|best| best.mode.to_string()));
    let to = |other: Option<&BenchRow>, figure| stats::ratio(&row.figures, &other?.figures, figure);
    Some(RatioRow {
        world: row.world,
        mode: row.mode,
        load: row.load,
        to_same_mode: Ratios::of(|figure| to(same.copied(), figure)),
        to_best_mode: Ratios::of(|figure| {
            let at = COMPARED.iter().position(|compared| *compared == figure)?;
            to(best[at], figure)
        }),
        best_mode: BestModes { cpu_per_query, avg, p99, qps },
    })
}

fn best<'a>(kernel: &[&'a BenchRow], figure: Figure) -> Option<&'a BenchRow> {
    let mut measured: Vec<(&BenchRow, f64)> =
        kernel.iter().filter_map(|row| Some((*row, row.figures.get(figure)?))).collect();
    measured.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let best = if figure == Figure::Qps { measured.last() } else { measured.first() };
    best.map(|(row, _)| *row)
}
