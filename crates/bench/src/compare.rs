//! Comparison of measured rows with a published table.
//!
//! Absolute figures come from other hardware. The order of the modes and each mode's ratio to `base` can agree, at loads with
//! about the same CPU use. Therefore a measured rate is paired with the published rate at which the CPU use of `base` is nearest.
//! Without a measurement of `base`, the lowest rate is paired with the lowest published one and every other with the
//! highest. `max` is paired with `max`.

use abey_delivery::Mode;

use crate::reference::{ReferenceRow, ReferenceTable};
use crate::row::mode_order;
use crate::{BenchRow, Figure, Figures, Load, World, stats};

/// Figures to compare, as far as both sides have them.
const COMPARED: [Figure; 5] = [Figure::Avg, Figure::P99, Figure::CpuPercent, Figure::Cycles, Figure::Instructions];

/// Figures to compare at `max`.
const COMPARED_AT_MAX: [Figure; 5] = [Figure::Qps, Figure::Avg, Figure::P99, Figure::Cycles, Figure::Instructions];

/// Two modes that differ by less than this share have no order.
const TIE: f64 = 0.05;

/// A comparison of measured rows with a published table.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The published table's title.
    pub title: &'static str,
    /// Notes on the published table.
    pub about: &'static str,
    /// One entry for each measured world and load.
    pub pairs: Vec<LoadPair>,
    /// One entry for each measured mode, in the order of the table.
    pub modes: Vec<ModeRows>,
}

/// A measured load and the published load that it is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPair {
    /// The measured world.
    pub world: World,
    /// The measured load.
    pub measured: Load,
    /// The published load.
    pub published: Load,
    /// CPU use of `base` in percent, measured and published. `None` at `max`.
    pub base_cpu: Option<(f64, f64)>,
    /// The figures that both sides have.
    pub figures: Vec<Figure>,
    /// One entry for each measured mode.
    pub modes: Vec<ModePair>,
    /// The agreement of the order of modes, for each of `figures`.
    pub orders: Vec<Agreement>,
}

/// A mode's figures on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct ModePair {
    /// The mode.
    pub mode: Mode,
    /// The measured figures.
    pub measured: Figures,
    /// The published figures; `None` for a mode that is not in the table.
    pub published: Option<Figures>,
    /// Measured ratio to `base` of each of [`LoadPair::figures`].
    pub measured_ratios: Vec<Option<f64>>,
    /// Published ratio to `base` of each of [`LoadPair::figures`].
    pub published_ratios: Vec<Option<f64>>,
}

/// The number of pairs of modes with the same order on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Pairs of modes in the same order.
    pub same: usize,
    /// Pairs of modes that differ by more than 5 % on both sides.
    pub of: usize,
}

/// A measured mode and its published rows.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeRows {
    /// The mode.
    pub mode: Mode,
    /// The measured rows, ascending by load.
    pub measured: Vec<BenchRow>,
    /// The published rows, ascending by load; empty for a mode that is not in the table.
    pub published: Vec<ReferenceRow>,
}

impl Comparison {
    /// Compares measured rows with a published table.
    pub fn new(rows: &[BenchRow], table: &ReferenceTable) -> Self {
        let mut keys: Vec<(World, Load)> = rows.iter().map(|row| (row.world, row.load)).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut modes: Vec<Mode> = Vec::new();
        for row in rows {
            if !modes.contains(&row.mode) {
                modes.push(row.mode);
            }
        }
        modes.sort_by_key(|mode| mode_order(*mode));
        let pairs = keys.iter().filter_map(|key| load_pair(rows, table, *key)).collect();
        let modes = modes.into_iter().map(|mode| mode_rows(rows, table, mode)).collect();
        Self { title: table.title, about: table.about, pairs, modes }
    }
}

fn mode_rows(rows: &[BenchRow], table: &ReferenceTable, mode: Mode) -> ModeRows {
    let mut measured: Vec<BenchRow> = rows.iter().filter(|row| row.mode == mode).cloned().collect();
    measured.sort_by_key(|row| (row.world, row.load));
    let mut published: Vec<ReferenceRow> = table.rows.iter().filter(|row| row.mode == mode).copied().collect();
    published.sort_by_key(|row| row.load);
    ModeRows { mode, measured, published }
}

fn load_pair(rows: &[BenchRow], table: &ReferenceTable, (world, load): (World, Load)) -> Option<LoadPair> {
    let mut measured: Vec<&BenchRow> = rows.iter().filter(|row| (row.world, row.load) == (world, load)).collect();
    measured.sort_by_key(|row| mode_order(row.mode));
    let base = measured.iter().find(|row| row.mode == Mode::Base).map(|row| row.figures);
    let lowest = rows.iter().filter(|row| row.world == world).map(|row| row.load).min() == Some(load);
    let published = published_load(table, load, base.and_then(|base| base.cpu_percent), lowest)?;
    let published_base = table.find(Mode::Base, published).map(|row| row.figures);
    let both = |figure: &Figure| {
        measured.iter().any(|row| row.figures.get(*figure).is_some())
            && table.rows.iter().any(|row| row.figures.get(*figure).is_some())
    };
    // At `max` the throughput is a result and the CPU use is not; at a fixed rate the CPU use is a result.
    let compared = if load == Load::Max { COMPARED_AT_MAX } else { COMPARED };
    let figures: Vec<Figure> = compared.into_iter().filter(both).collect();
    let ratios = |of: Option<&Figures>, base: Option<&Figures>| -> Vec<Option<f64>> {
        figures.iter().map(|figure| stats::ratio(of?, base?, *figure)).collect()
    };
    let modes: Vec<ModePair> = measured
        .iter()
        .map(|row| {
            let published = table.find(row.mode, published).map(|row| row.figures);
            ModePair {
                mode: row.mode,
                measured: row.figures,
                published,
                measured_ratios: ratios(Some(&row.figures), base.as_ref()),
                published_ratios: ratios(published.as_ref(), published_base.as_ref()),
            }
        })
        .collect();
    let orders = figures.iter().map(|figure| agreement(&modes, *figure)).collect();
    let base_cpu = base.and_then(|base| base.cpu_percent).zip(published_base.and_then(|base| base.cpu_percent));
    let base_cpu = base_cpu.filter(|_| load != Load::Max);
    Some(LoadPair { world, measured: load, published, base_cpu, figures, modes, orders })
}

fn published_load(table: &ReferenceTable, measured: Load, base_cpu: Option<f64>, lowest: bool) -> Option<Load> {
    let loads = table.loads();
    if measured == Load::Max {
        return loads.into_iter().find(|load| *load == Load::Max);
    }
    let mut rates = loads.into_iter().filter(|load| *load != Load::Max);
    let Some(base_cpu) = base_cpu else { return if lowest { rates.next() } else { rates.next_back() } };
    rates
        .filter_map(|load| Some((load, table.find(Mode::Base, load)?.figures.cpu_percent?)))
        .min_by(|(_, a), (_, b)| (a - base_cpu).abs().total_cmp(&(b - base_cpu).abs()))
        .map(|(load, _)| load)
}

fn agreement(modes: &[ModePair], figure: Figure) -> Agreement {
    let values: Vec<(f64, f64)> = modes
        .iter()
        .filter_map(|pair| Some((pair.measured.get(figure)?, pair.published.as_ref()?.get(figure)?)))
        .collect();
    let order = |a: f64, b: f64| ((a - b).abs() > TIE * a.abs().max(b.abs())).then(|| a.total_cmp(&b));
    let pairs =
        values.iter().enumerate().flat_map(|(at, first)| values[at + 1..].iter().map(move |second| (first, second)));
    let mut agreement = Agreement { same: 0, of: 0 };
    for (first, second) in pairs {
        if let (Some(measured), Some(published)) = (order(first.0, second.0), order(first.1, second.1)) {
            agreement.of += 1;
            agreement.same += usize::from(measured == published);
        }
    }
    agreement
}
