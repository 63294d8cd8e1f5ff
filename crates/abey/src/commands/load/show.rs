//! The result of a load, for a person.

use abey_load::Report;
use comfy_table::{CellAlignment, Table, presets};

/// Its figures.
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

/// What the figures alone do not say.
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
            "{} of {} gets missed: the server forgets keys (too little memory?)",
            report.misses, report.gets
        ));
    }
    if report.errors > 0 {
        notes.push(format!("{} requests were lost: nothing answered within 1 s", report.errors));
    }
    if report.queued * 100 > report.count {
        notes.push(format!("{} requests waited for a connection: use more, or a greater --depth", report.queued));
    }
    if report.unsent > 0 {
        notes.push(format!(
            "{} requests were due but not sent before the end: above what {} can do",
            report.unsent,
            if report.client_bound { "the generator" } else { "the server" }
        ));
    }
    if report.client_bound {
        notes.push("client-bound: the generator limited this run; use more --threads or a lower --rate".to_owned());
    }
    notes
}
