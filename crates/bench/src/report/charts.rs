//! The charts of a report, created from rows.

use abey_chart::number::short;
use abey_chart::{Axis, Layout, LineChart, ModeStyle, Point, Series};

use crate::compare::{LoadPair, ModePair};
use crate::row::mode_order;
use crate::table::{marks, ratio_text};
use crate::{BenchRow, Figure, Load, World};

/// Rows of the same charts.
struct ChartRows<'a> {
    /// Sorted by line, then by load.
    rows: Vec<&'a BenchRow>,
    /// Prefix of the charts' IDs.
    id: String,
    style: fn(&BenchRow) -> ModeStyle,
    /// The axis of rates: logarithmic for several worlds, whose rates may differ by a factor.
    rate_axis: fn(&str, &[f64]) -> Axis,
}

/// Returns the charts of a world: latency by percentile for each load, then latency and CPU use against load.
pub(crate) fn charts(rows: &[BenchRow], world: World) -> Vec<LineChart> {
    let mut rows: Vec<&BenchRow> = rows.iter().filter(|row| row.world == world).collect();
    rows.sort_by_key(|row| (mode_order(row.mode), row.load));
    ChartRows { rows, id: world.to_string(), style: |row| ModeStyle::of(row.mode), rate_axis: Axis::linear_tight }
        .charts()
}

/// Returns the same charts with every world in each.
pub(crate) fn overlaid(rows: &[BenchRow]) -> Vec<LineChart> {
    let mut rows: Vec<&BenchRow> = rows.iter().collect();
    rows.sort_by_key(|row| (mode_order(row.mode), row.world, row.load));
    ChartRows {
        rows,
        id: "worlds".to_owned(),
        style: |row| ModeStyle::in_world(row.mode, row.world.name()),
        rate_axis: Axis::log,
    }
    .charts()
}

impl ChartRows<'_> {
    fn charts(&self) -> Vec<LineChart> {
        let mut loads: Vec<Load> = self.rows.iter().map(|row| row.load).collect();
        loads.sort_unstable();
        loads.dedup();
        let mut charts: Vec<LineChart> = loads.into_iter().map(|load| by_percentile(self, load)).collect();
        charts.push(against_load(self, Figure::Avg, "Average latency against load"));
        charts.push(against_load(self, Figure::P99, "99th percentile of latency against load"));
        charts.push(against_load(self, Figure::CpuPercent, "CPU against load"));
        charts
    }
}

fn by_percentile(rows: &ChartRows<'_>, load: Load) -> LineChart {
    let at_load = rows.rows.iter().filter(|row| row.load == load);
    let series: Vec<Series> = at_load
        .map(|row| {
            let style = (rows.style)(row);
            Series { points: curve(row, &style.name), style }
        })
        .collect();
    let points = || series.iter().flat_map(|series| &series.points);
    let largest = points().map(|point| point.x).fold(0.0, f64::max);
    let values: Vec<f64> = points().map(|point| point.y).collect();
    LineChart {
        id: format!("{}-percentiles-{load}", rows.id),
        title: format!("Latency by percentile at {load}"),
        caption: "Each additional nine is ten times rarer. Logarithmic; lower is better.".to_owned(),
        x: Axis::nines("percentile of requests", largest),
        y: Axis::log("latency, us", &values),
        series,
        layout: Layout::Lines,
    }
}

/// Returns the chart of CPU use against median latency of one world: a line for each mode, a point for each load.
pub(crate) fn cpu_against_latency(rows: &[BenchRow], world: World) -> LineChart {
    let mut rows: Vec<&BenchRow> = rows.iter().filter(|row| row.world == world).collect();
    rows.sort_by_key(|row| (mode_order(row.mode), row.load));
    let mut series: Vec<Series> = Vec::new();
    let mut loads: Vec<Load> = Vec::new();
    for row in rows {
        let (Some(cpu), Some(p50)) = (row.figures.cpu_percent, row.figures.p50_us) else { continue };
        let style = ModeStyle::of(row.mode);
        let hover = format!("{} at {}: {} % CPU, median {} us", style.name, row.load, short(cpu), short(p50));
        let point = Point { x: cpu, y: p50, hover, marked: true };
        loads.push(row.load);
        match series.last_mut() {
            Some(last) if last.style == style => last.points.push(point),
            _ => series.push(Series { style, points: vec![point] }),
        }
    }
    loads.sort_unstable();
    loads.dedup();
    let loads: Vec<String> = loads.iter().map(ToString::to_string).collect();
    let values =
        |value: fn(&Point) -> f64| -> Vec<f64> { series.iter().flat_map(|series| &series.points).map(value).collect() };
    let (cpu, latency) = (values(|point| point.x), values(|point| point.y));
    LineChart {
        id: format!("{world}-cpu-latency"),
        title: "Median latency and CPU use by delivery mode".to_owned(),
        caption: format!("One point per load: {} requests/s. Lower left is better.", loads.join(", ")),
        x: Axis::linear("CPU use of the server, %", &cpu, 100.0),
        y: Axis::log("median latency, us", &latency),
        series,
        layout: Layout::Lines,
    }
}

/// Percentiles with a marker.
const MARKED: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];

/// Returns the latency curve without 100 %, which is not on a scale of nines.
fn curve(row: &BenchRow, name: &str) -> Vec<Point> {
    let hover = |at: f64, us: f64| format!("{name}: {at} % within {} us", short(us));
    row.latency_curve
        .iter()
        .filter(|point| point.percentile < 100.0 && point.us > 0.0)
        .map(|point| Point {
            x: point.percentile,
            y: point.us,
            hover: hover(point.percentile, point.us),
            marked: MARKED.contains(&point.percentile),
        })
        .collect()
}

fn against_load(rows: &ChartRows<'_>, figure: Figure, title: &str) -> LineChart {
    let mut series: Vec<Series> = Vec::new();
    for row in &rows.rows {
        let style = (rows.style)(row);
        let (Some(qps), Some(value)) = (row.figures.qps, row.figures.get(figure)) else { continue };
        let mark = marks(row);
        let hover = format!(
            "{}{mark} at {}: {} {}, {} requests/s",
            style.name,
            row.load,
            figure.title(),
            figure.text(value),
            Figure::Qps.text(qps)
        );
        let point = Point { x: qps, y: value, hover, marked: true };
        match series.last_mut() {
            Some(last) if last.style == style => last.points.push(point),
            _ => series.push(Series { style, points: vec![point] }),
        }
    }
    let of =
        |value: fn(&Point) -> f64| series.iter().flat_map(|series| &series.points).map(value).collect::<Vec<f64>>();
    let (loads, values) = (of(|point| point.x), of(|point| point.y));
    let y = match figure {
        Figure::CpuPercent => Axis::linear("server CPU, %", &values, 100.0),
        Figure::P99 => Axis::log("p99 latency, us", &values),
        _ => Axis::log("average latency, us", &values),
    };
    LineChart {
        id: format!("{}-{}", rows.id, figure.key().replace('_', "-")),
        title: title.to_owned(),
        caption: match figure {
            Figure::CpuPercent => "CPU use of the server, at the rate of responses.",
            _ => "At the rate of responses. Logarithmic; lower is better.",
        }
        .to_owned(),
        x: (rows.rate_axis)("responses per second", &loads),
        y,
        series,
        layout: Layout::Lines,
    }
}

/// Returns a chart for each figure of a comparison, of the modes' measured and published ratios to `base`.
pub(crate) fn agreement(pair: &LoadPair) -> Vec<LineChart> {
    pair.figures.iter().enumerate().filter_map(|(at, figure)| agreement_of(pair, at, *figure)).collect()
}

fn agreement_of(pair: &LoadPair, at: usize, figure: Figure) -> Option<LineChart> {
    let ratios = |mode: &ModePair| Some((mode.published_ratios[at]?, mode.measured_ratios[at]?));
    let modes: Vec<(&ModePair, (f64, f64))> =
        pair.modes.iter().filter_map(|mode| Some((mode, ratios(mode)?))).collect();
    // `base` has ratio 1 on both sides by definition.
    if modes.len() < 2 {
        return None;
    }
    let values: Vec<f64> = modes.iter().flat_map(|(_, (published, measured))| [*published, *measured]).collect();
    let point = |mode: &ModePair, (published, measured): (f64, f64)| Point {
        x: published,
        y: measured,
        hover: format!(
            "{}: {} {} of base measured, {} published",
            mode.mode,
            figure.title(),
            ratio_text(Some(measured)),
            ratio_text(Some(published))
        ),
        marked: true,
    };
    Some(LineChart {
        id: format!("{}-agreement-{}-{}", pair.world, pair.measured, figure.key().replace('_', "-")),
        title: format!("{}: ratio to base", figure.title()),
        caption: "On the diagonal both ratios are equal.".to_owned(),
        x: Axis::log("published, times base", &values),
        y: Axis::log("measured, times base", &values),
        series: modes
            .into_iter()
            .map(|(mode, ratios)| Series { style: ModeStyle::of(mode.mode), points: vec![point(mode, ratios)] })
            .collect(),
        layout: Layout::Agreement,
    })
}
