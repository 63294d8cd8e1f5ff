//! Predictions beside a published table, as text.

use abey_chart::table::{aligned, new_table};

use crate::reference::{ColumnError, Figure, Order, Row, Summary};

/// The columns of the text and their headings. The other columns are in the JSON document and in the summary.
const SHOWN: [(&str, &str); 14] = [
    ("qps", "qps"),
    ("avg_us", "avg us"),
    ("p50_us", "p50 us"),
    ("p90_us", "p90 us"),
    ("p95_us", "p95 us"),
    ("p99_us", "p99 us"),
    ("p999_us", "p99.9 us"),
    ("tcp_rr_per_s", "TCP/s"),
    ("udp_rr_per_s", "UDP/s"),
    ("packets_sent_and_received", "packets"),
    ("cpu_percent", "cpu %"),
    ("interrupts", "interrupts"),
    ("cycles_per_query", "cycles/q"),
    ("instructions_per_query", "instr/q"),
];

/// Formats the rows, each figure as `published > predicted`, and the summary of errors.
pub fn text(rows: &[Row], summary: &Summary) -> String {
    format!("{}\n{}", rows_text(rows), summary_text(summary))
}

fn rows_text(rows: &[Row]) -> String {
    let has = |column: &str| rows.iter().any(|row| row.figures.get(column).is_some());
    let shown: Vec<_> = SHOWN.into_iter().filter(|(column, _)| has(column)).collect();
    let mut table = new_table(["mode", "load", ""].into_iter().chain(shown.iter().map(|(_, title)| *title)));
    for row in rows {
        let fitted = if row.fitted { "fitted" } else { "" };
        let mut cells = vec![row.mode.clone(), row.load.clone(), fitted.to_owned()];
        cells.extend(shown.iter().map(|(column, _)| row.figures.get(column).map_or(String::new(), figure_text)));
        table.add_row(cells);
    }
    format!("published > predicted\n{}\n", aligned(table, 3..))
}

fn figure_text(figure: Figure) -> String {
    let published = figure.published.map_or("-".to_owned(), |published| format!("{published:.0}"));
    format!("{published} > {:.0}", figure.predicted)
}

fn summary_text(summary: &Summary) -> String {
    let mut table = new_table(["column", "rows", "median error", "largest", "fitted rows", "median error", "largest"]);
    for error in &summary.predicted {
        let fitted = summary.fitted.iter().find(|fitted| fitted.column == error.column);
        let size = |error: &ColumnError| {
            [error.rows.to_string(), with_unit(error.median, error.unit), with_unit(error.worst, error.unit)]
        };
        let fitted = fitted.map_or_else(|| [const { String::new() }; 3], size);
        table.add_row([error.column.to_owned()].into_iter().chain(size(error)).chain(fitted));
    }
    let mut text = format!("errors of the predicted rows, and of the fitted ones:\n{}\n", aligned(table, 1..));
    if let Some(error) = &summary.max_qps {
        text += &format!(
            "throughput at MAX, predicted rows: median error {:.1} %, largest {:.1} %\n",
            error.median, error.worst
        );
    }
    for order in summary.orders.iter().filter(|order| order.pairs > 0) {
        text += &order_text(order);
    }
    text
}

fn order_text(order: &Order) -> String {
    let share = 100.0 * order.right as f64 / order.pairs.max(1) as f64;
    let mut text = format!(
        "order by {} of two modes that differ by more than 10 % at one load: right in {} of {} pairs ({share:.1} %)\n",
        order.column, order.right, order.pairs
    );
    for (load, low, high) in &order.wrong {
        text += &format!("  wrong at {load}: published has {low} below {high}\n");
    }
    text
}

fn with_unit(value: f64, unit: &str) -> String {
    format!("{value:.1} {unit}")
}
