//! Errors of predictions.

use serde::Serialize;

use super::Row;

/// Error of a column over some rows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnError {
    /// Column.
    pub column: &'static str,
    /// Unit: percent of the published figure, or points for a column in percent.
    pub unit: &'static str,
    /// Number of rows with the figure.
    pub rows: usize,
    /// Median of the absolute errors.
    pub median: f64,
    /// Largest absolute error.
    pub worst: f64,
}

/// Order of modes: all pairs of modes at the same load whose published figures differ by more than a tenth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Order {
    /// Column.
    pub column: &'static str,
    /// Number of such pairs.
    pub pairs: usize,
    /// Number of pairs with the same order in the prediction.
    pub right: usize,
    /// Other pairs: load, mode with the lower published figure, other mode.
    pub wrong: Vec<(String, String, String)>,
}

/// Errors of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Errors of the rows that the profile was fitted to.
    pub fitted: Vec<ColumnError>,
    /// Errors of the predictions.
    pub predicted: Vec<ColumnError>,
    /// Error of the predicted throughput at MAX.
    pub max_qps: Option<ColumnError>,
    /// Orders of the requested columns.
    pub orders: Vec<Order>,
}

/// Compares predictions with the published figures, and the order of the modes in average latency and CPU use.
pub fn summarize(rows: &[Row]) -> Summary {
    summarize_orders(rows, &["avg_us", "cpu_percent"])
}

/// Like [`summarize`], with the order of the modes in these columns.
pub fn summarize_orders(rows: &[Row], ordered: &[&'static str]) -> Summary {
    let mut columns: Vec<&'static str> = Vec::new();
    for (name, _) in rows.iter().flat_map(|row| &row.figures.0) {
        if !columns.contains(name) {
            columns.push(name);
        }
    }
    let of = |fitted: bool| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.fitted == fitted).collect();
        columns.iter().filter_map(|column| column_error(&rows, column)).collect()
    };
    let max: Vec<&Row> = rows.iter().filter(|row| !row.fitted && row.load == "MAX").collect();
    Summary {
        fitted: of(true),
        predicted: of(false),
        max_qps: column_error(&max, "qps"),
        orders: ordered.iter().map(|column| order(rows, column)).collect(),
    }
}

fn column_error(rows: &[&Row], column: &'static str) -> Option<ColumnError> {
    let points = column.ends_with("_percent");
    let mut errors: Vec<f64> = rows
        .iter()
        .filter_map(|row| row.figures.get(column))
        .filter_map(|figure| Some((figure.published?, figure.predicted)))
        .filter(|(published, _)| points || *published > 0.0)
        .map(|(published, predicted)| {
            let error = (predicted - published).abs();
            if points { error } else { 100.0 * error / published }
        })
        .collect();
    errors.sort_by(f64::total_cmp);
    let worst = *errors.last()?;
    let (low, high) = (errors[(errors.len() - 1) / 2], errors[errors.len() / 2]);
    let unit = if points { "points" } else { "%" };
    Some(ColumnError { column, unit, rows: errors.len(), median: (low + high) / 2.0, worst })
}

fn order(rows: &[Row], column: &'static str) -> Order {
    let mut order = Order { column, pairs: 0, right: 0, wrong: Vec::new() };
    for (at, one) in rows.iter().enumerate() {
        for other in rows[at + 1..].iter().filter(|other| other.load == one.load) {
            let (Some(a), Some(b)) = (one.figures.get(column), other.figures.get(column)) else { continue };
            let (Some(published_a), Some(published_b)) = (a.published, b.published) else { continue };
            if published_a.max(published_b) <= 1.1 * published_a.min(published_b) {
                continue;
            }
            order.pairs += 1;
            if (published_a < published_b) == (a.predicted < b.predicted) {
                order.right += 1;
            } else {
                let (low, high) = if published_a < published_b { (one, other) } else { (other, one) };
                order.wrong.push((one.load.clone(), low.mode.clone(), high.mode.clone()));
            }
        }
    }
    order
}
