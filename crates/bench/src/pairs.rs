//! Worlds beside each other: what a world's figures are to the kernel's, in the same mode and to the kernel's best one.
//!
//! For beds that have one server and one wire; for others such ratios say nothing.

use abey_delivery::Mode;
use serde::{Deserialize, Serialize};

use crate::row::as_text;
use crate::{Figure, Load, Row, World, stats};

/// A world's row at a load, as ratios to the kernel's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The world that is compared with the kernel.
    pub world: World,
    /// Its delivery mode.
    #[serde(with = "as_text")]
    pub mode: Mode,
    /// The load of both.
    pub load: Load,
    /// To the kernel's row of the same mode.
    pub to_same_mode: Ratios,
    /// To the kernel's best mode for each figure: the lowest latency and CPU time, the most requests.
    pub to_best_mode: Ratios,
    /// Which mode that is.
    pub best_mode: BestModes,
}

/// Figures as ratios, below 1 where the world has less; `None` where one of both was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// CPU time per query.
    pub cpu_per_query: Option<f64>,
    /// Average latency.
    pub avg: Option<f64>,
    /// 99th percentile of latency.
    pub p99: Option<f64>,
    /// Requests answered per second.
    pub qps: Option<f64>,
}

/// The kernel's best mode for each figure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestModes {
    /// With the least CPU time per query.
    pub cpu_per_query: Option<String>,
    /// With the lowest average.
    pub avg: Option<String>,
    /// With the lowest 99th percentile.
    pub p99: Option<String>,
    /// With the most requests answered.
    pub qps: Option<String>,
}

/// The figures that are compared, in the order of the table.
pub const COMPARED: [Figure; 4] = [Figure::CpuPerQuery, Figure::Avg, Figure::P99, Figure::Qps];

impl Ratios {
    fn of(ratio: impl Fn(Figure) -> Option<f64>) -> Self {
        let [cpu_per_query, avg, p99, qps] = COMPARED.map(ratio);
        Self { cpu_per_query, avg, p99, qps }
    }

    /// In the order of [`COMPARED`].
    pub const fn all(&self) -> [Option<f64>; 4] {
        [self.cpu_per_query, self.avg, self.p99, self.qps]
    }
}

impl BestModes {
    /// In the order of [`COMPARED`].
    pub fn all(&self) -> [Option<&str>; 4] {
        [&self.cpu_per_query, &self.avg, &self.p99, &self.qps].map(|mode| mode.as_deref())
    }
}

/// Every row of another world than the kernel's, at loads that the kernel was measured at as well.
pub fn pairs(rows: &[Row]) -> Vec<Pair> {
    let mut others: Vec<&Row> = rows.iter().filter(|row| row.world != World::Linux).collect();
    others.sort_by_key(|row| (row.load, row.order().2, row.world));
    others.into_iter().filter_map(|row| pair(rows, row)).collect()
}

fn pair(rows: &[Row], row: &Row) -> Option<Pair> {
    let kernel: Vec<&Row> = rows.iter().filter(|other| (other.world, other.load) == (World::Linux, row.load)).collect();
    if kernel.is_empty() {
        return None;
    }
    let same = kernel.iter().find(|other| other.mode == row.mode);
    let best = COMPARED.map(|figure| best(&kernel, figure));
    let [cpu_per_query, avg, p99, qps] = best.map(|best| best.map(|best| best.mode.to_string()));
    let to = |other: Option<&Row>, figure| stats::ratio(&row.figures, &other?.figures, figure);
    Some(Pair {
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

fn best<'a>(kernel: &[&'a Row], figure: Figure) -> Option<&'a Row> {
    let mut measured: Vec<(&Row, f64)> =
        kernel.iter().filter_map(|row| Some((*row, row.figures.get(figure)?))).collect();
    measured.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let best = if figure == Figure::Qps { measured.last() } else { measured.first() };
    best.map(|(row, _)| *row)
}
