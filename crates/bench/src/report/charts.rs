//! Which charts a report has, made from rows.

use super::axis::Axis;
use super::chart::{Chart, Kind, Point, Series};
use super::palette::ModeStyle;
use crate::compare::{LoadPair, ModePair};
use crate::row::mode_order;
use crate::table::{marks, ratio_text};
use crate::{Figure, Load, Row, World};

/// Rows that are drawn into the same charts.
struct Drawn<'a> {
    /// By line, then by load.
    rows: Vec<&'a Row>,
    /// What their charts' identifiers begin with.
    id: String,
    style: fn(&Row) -> ModeStyle,
    /// The axis of rates: worlds may differ by a factor.
    rates: fn(&str, &[f64]) -> Axis,
}

/// One world's charts: latency by percentile for each load, then latency and CPU against load.
pub(crate) fn charts(rows: &[Row], world: World) -> Vec<Chart> {
    let mut rows: Vec<&Row> = rows.iter().filter(|row| row.world == world).collect();
    rows.sort_by_key(|row| (mode_order(row.mode), row.load));
    Drawn { rows, id: world.to_string(), style: |row| ModeStyle::of(row.mode), rates: Axis::linear_tight }.charts()
}

/// The same with every world in each chart.
pub(crate) fn overlaid(rows: &[Row]) -> Vec<Chart> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| (mode_order(row.mode), row.world, row.load));
    Drawn { rows, id: "worlds".to_owned(), style: |row| ModeStyle::in_world(row.mode, row.world), rates: Axis::log }
        .charts()
}

impl Drawn<'_> {
    fn charts(&self) -> Vec<Chart> {
        let mut loads: Vec<Load> = self.rows.iter().map(|row| row.load).collect();
        loads.sort_unstable();
        loads.dedup();
        let mut charts: Vec<Chart> = loads.into_iter().map(|load| by_percentile(self, load)).collect();
        charts.push(against_load(self, Figure::Avg, "Average latency against load"));
        charts.push(against_load(self, Figure::P99, "99th percentile of latency against load"));
        charts.push(against_load(self, Figure::CpuPercent, "CPU against load"));
        charts
    }
}

fn by_percentile(drawn: &Drawn<'_>, load: Load) -> Chart {
    let at_load = drawn.rows.iter().filter(|row| row.load == load);
    let series: Vec<Series> = at_load
        .map(|row| {
            let style = (drawn.style)(row);
            Series { points: curve(row, &style.name), style }
        })
        .collect();
    let points = || series.iter().flat_map(|series| &series.points);
    let largest = points().map(|point| point.x).fold(0.0, f64::max);
    let values: Vec<f64> = points().map(|point| point.y).collect();
    Chart {
        id: format!("{}-percentiles-{load}", drawn.id),
        title: format!("Latency by percentile at {load}"),
        caption: "Each nine to the right is ten times rarer. Logarithmic; lower is better.".to_owned(),
        x: Axis::nines("percentile of requests", largest),
        y: Axis::log("latency, us", &values),
        series,
        kind: Kind::Lines,
    }
}

/// Percentiles that get a marker.
const MARKED: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];

/// The latency curve without its end: 100 % has no place on a scale of nines.
fn curve(row: &Row, name: &str) -> Vec<Point> {
    let hover = |at: f64, us: f64| format!("{name}: {at} % within {} us", crate::figure::short(us));
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

fn against_load(drawn: &Drawn<'_>, figure: Figure, title: &str) -> Chart {
    let mut series: Vec<Series> = Vec::new();
    for row in &drawn.rows {
        let style = (drawn.style)(row);
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
    Chart {
        id: format!("{}-{}", drawn.id, figure.key().replace('_', "-")),
        title: title.to_owned(),
        caption: match figure {
            Figure::CpuPercent => "Busy share of the server's CPUs, at the rate that was answered.",
            _ => "At the rate that was answered. Logarithmic; lower is better.",
        }
        .to_owned(),
        x: (drawn.rates)("requests answered per second", &loads),
        y,
        series,
        kind: Kind::Lines,
    }
}

/// For each figure of a comparison that is more than a rate: how each mode's ratio to `base` here and in print agree.
pub(crate) fn agreement(pair: &LoadPair) -> Vec<Chart> {
    pair.figures.iter().enumerate().filter_map(|(at, figure)| agreement_of(pair, at, *figure)).collect()
}

fn agreement_of(pair: &LoadPair, at: usize, figure: Figure) -> Option<Chart> {
    let ratios = |mode: &ModePair| Some((mode.published_ratios[at]?, mode.measured_ratios[at]?));
    let modes: Vec<(&ModePair, (f64, f64))> =
        pair.modes.iter().filter_map(|mode| Some((mode, ratios(mode)?))).collect();
    // `base` is at 1x on both sides by definition: alone it says nothing.
    if modes.len() < 2 {
        return None;
    }
    let values: Vec<f64> = modes.iter().flat_map(|(_, (published, here))| [*published, *here]).collect();
    let point = |mode: &ModePair, (published, here): (f64, f64)| Point {
        x: published,
        y: here,
        hover: format!(
            "{}: {} {} of base here, {} published",
            mode.mode,
            figure.title(),
            ratio_text(Some(here)),
            ratio_text(Some(published))
        ),
        marked: true,
    };
    Some(Chart {
        id: format!("{}-agreement-{}-{}", pair.world, pair.measured, figure.key().replace('_', "-")),
        title: format!("{}: ratio to base", figure.title()),
        caption: "On the diagonal both ratios are the same.".to_owned(),
        x: Axis::log("published, times base", &values),
        y: Axis::log("here, times base", &values),
        series: modes
            .into_iter()
            .map(|(mode, ratios)| Series { style: ModeStyle::of(mode.mode), points: vec![point(mode, ratios)] })
            .collect(),
        kind: Kind::Agreement,
    })
}
