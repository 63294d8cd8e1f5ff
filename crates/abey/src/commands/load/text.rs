//! The result of a load as text.

use abey_loadgen::Report;
use comfy_table::{CellAlignment, Table, presets};

/// Returns the table of figures.
pub(super) fn table(report: &Report) -> Table {
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), |us| format!("{us:.1}"));
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "load",
        "qps",
        "avg",
        "p50",
        "p90",
        "p95",
        "p99",
        "p99.9",
        "max",
        "send lag p50",
        "p99",
        "client %",
    ]);
    let lag = report.send_lag_us;
    let mut cells = vec![report.load.clone(), format!("{:.0}", report.qps)];
    cells.extend(
        [
            report.avg_us,
            report.p50_us,
            report.p90_us,
            report.p95_us,
            report.p99_us,
            report.p999_us,
            report.max_us,
            lag.map(|lag| lag.p50),
            lag.map(|lag| lag.p99),
            Some(report.client_cpu_percent),
        ]
        .map(figure),
    );
    table.add_row(cells);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Returns notes on the run.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let mut notes = vec![format!(
        "latency in us from {} send times, {} samples in {:.1} s; {} to {}, {} connections, depth {}, seed {}",
        if report.requested_qps.is_some() { "intended" } else { "actual" },
        report.count,
        report.duration_s,
        report.protocol,
        report.target,
        report.connections,
        report.depth,
        report.seed
    )];
    if report.misses > 0 {
        notes.push(format!(
            "{} of {} gets missed: the server evicts keys; give it more memory or use fewer --keys",
            report.misses, report.gets
        ));
    }
    if report.errors > 0 {
        notes.push(format!("{} requests were lost: no response within 1 s", report.errors));
    }
    if report.queued * 100 > report.count {
        notes.push(format!(
            "{} requests waited for a connection: use more connections or a greater --depth",
            report.queued
        ));
    }
    if report.unsent > 0 {
        notes.push(format!(
            "{} requests were due but not sent before the end: the rate is too high for {}",
            report.unsent,
            if report.client_bound { "the generator" } else { "the server" }
        ));
    }
    if report.client_bound {
        notes.push("client-bound: the generator was the bottleneck; use more --threads or a lower --rate".to_owned());
    }
    notes
}
