//! Lays measured rows beside published ones, so that a reader sees: the same ordering? the same ratios?
//!
//! Absolute figures come from other hardware. What can agree is the order of the modes and each mode's ratio to `base`,
//! at a load where the server is about as busy. So a measured rate is paired with the published rate at which `base`
//! used the CPU most nearly as much; where `base` was not measured, the lowest rate is paired with the lowest published
//! one and every other with the highest. `max` is paired with `max`.

use abey_delivery::Mode;

use crate::reference::{ReferenceRow, ReferenceTable};
use crate::row::mode_order;
use crate::{Figure, Figures, Load, Row, World, stats};

/// Figures that are compared, where both sides have them.
const COMPARED: [Figure; 5] = [Figure::Avg, Figure::P99, Figure::CpuPercent, Figure::Cycles, Figure::Instructions];

/// The same at `max`.
const COMPARED_AT_MAX: [Figure; 5] = [Figure::Qps, Figure::Avg, Figure::P99, Figure::Cycles, Figure::Instructions];

/// Two modes closer than this in either table have no order there.
const TIE: f64 = 0.05;

/// Measured rows beside a published table.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The published table's title.
    pub title: &'static str,
    /// What to know about it.
    pub about: &'static str,
    /// One entry for each world and load that was measured.
    pub pairs: Vec<LoadPair>,
    /// Measured modes with their published rows at every published load, in the order of the table.
    pub modes: Vec<ModeRows>,
}

/// A measured load and the published load it is compared with.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPair {
    /// The world that was measured.
    pub world: World,
    /// The measured load.
    pub measured: Load,
    /// The published load.
    pub published: Load,
    /// CPU of `base` in percent, measured and published: how alike the two loads are. `None` at `max`.
    pub base_cpu: Option<(f64, f64)>,
    /// The figures both sides have.
    pub figures: Vec<Figure>,
    /// One entry for each measured mode.
    pub modes: Vec<ModePair>,
    /// How far the two sides order the modes alike, for each of `figures`.
    pub orders: Vec<Agreement>,
}

/// A mode's figures on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct ModePair {
    /// The mode.
    pub mode: Mode,
    /// What was measured.
    pub measured: Figures,
    /// What was published; `None` for a mode the study did not have.
    pub published: Option<Figures>,
    /// Ratio to `base` of each of [`LoadPair::figures`], measured.
    pub measured_ratios: Vec<Option<f64>>,
    /// Ratio to `base` of each of [`LoadPair::figures`], published.
    pub published_ratios: Vec<Option<f64>>,
}

/// How many pairs of modes stand in the same order on both sides.
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
    pub measured: Vec<Row>,
    /// The published rows, ascending by load; empty for a mode the study did not have.
    pub published: Vec<ReferenceRow>,
}

impl Comparison {
    /// Compares rows with a published table.
    pub fn new(rows: &[Row], table: &ReferenceTable) -> Self {
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

fn mode_rows(rows: &[Row], table: &ReferenceTable, mode: Mode) -> ModeRows {
    let mut measured: Vec<Row> = rows.iter().filter(|row| row.mode == mode).cloned().collect();
    measured.sort_by_key(|row| (row.world, row.load));
    let mut published: Vec<ReferenceRow> = table.rows.iter().filter(|row| row.mode == mode).copied().collect();
    published.sort_by_key(|row| row.load);
    ModeRows { mode, measured, published }
}

fn load_pair(rows: &[Row], table: &ReferenceTable, (world, load): (World, Load)) -> Option<LoadPair> {
    let mut here: Vec<&Row> = rows.iter().filter(|row| (row.world, row.load) == (world, load)).collect();
    here.sort_by_key(|row| mode_order(row.mode));
    let base = here.iter().find(|row| row.mode == Mode::Base).map(|row| row.figures);
    let lowest = rows.iter().filter(|row| row.world == world).map(|row| row.load).min() == Some(load);
    let published = published_load(table, load, base.and_then(|base| base.cpu_percent), lowest)?;
    let published_base = table.find(Mode::Base, published).map(|row| row.figures);
    let both = |figure: &Figure| {
        here.iter().any(|row| row.figures.get(*figure).is_some())
            && table.rows.iter().any(|row| row.figures.get(*figure).is_some())
    };
    // Without a fixed rate the throughput is a result and the server's CPU is not; with one it is the other way round.
    let compared = if load == Load::Max { COMPARED_AT_MAX } else { COMPARED };
    let figures: Vec<Figure> = compared.into_iter().filter(both).collect();
    let ratios = |of: Option<&Figures>, base: Option<&Figures>| -> Vec<Option<f64>> {
        figures.iter().map(|figure| stats::ratio(of?, base?, *figure)).collect()
    };
    let modes: Vec<ModePair> = here
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
