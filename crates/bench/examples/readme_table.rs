//! Writes the results of a bench into a Markdown file, between the markers of its worlds:
//!
//! ```text
//! abey bench --json | cargo run -p abey-bench --example readme_table docs/book/src/measurements.md
//! abey bench --json --modes base,suspend20 | cargo run -p abey-bench --example readme_table README.md brief
//! ```
//!
//! A table goes from `<!-- bench datapath -->` to `<!-- /bench datapath -->`. The table of a world that was not measured
//! stays. Worlds that were measured side by side (`--world both`) share one table, between the markers of `both`.

use std::error::Error;
use std::{env, fs, io};

use abey_bench::table::{marks, ordered, rows_by_load};
use abey_bench::{BenchRow, Document, Figure, World};

/// The columns after load and mode, as many as fit on a page.
const ALL: [(Figure, &str); 8] = [
    (Figure::Qps, "qps"),
    (Figure::Avg, "avg us"),
    (Figure::P50, "p50 us"),
    (Figure::P99, "p99 us"),
    (Figure::CpuPercent, "CPU %"),
    (Figure::CpuPerQuery, "CPU us/query"),
    (Figure::Wakeups, "wake-ups/s"),
    (Figure::SystemCalls, "system calls/query"),
];

/// The columns of a brief table.
const BRIEF: [(Figure, &str); 5] = [
    (Figure::Qps, "requests/s"),
    (Figure::P50, "median us"),
    (Figure::P99, "p99 us"),
    (Figure::CpuPercent, "CPU %"),
    (Figure::SystemCalls, "system calls/request"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).ok_or("name the Markdown file")?;
    let columns = if env::args().nth(2).as_deref() == Some("brief") { &BRIEF[..] } else { &ALL[..] };
    let document: Document = serde_json::from_reader(io::stdin())?;
    let mut text = fs::read_to_string(&path)?;
    let tables: Vec<(String, Option<World>)> = match document.setup.side_by_side {
        true => vec![("both".to_owned(), None)],
        false => document.setup.test_beds.iter().map(|bed| (bed.world.to_string(), Some(bed.world))).collect(),
    };
    for (name, world) in tables {
        let [begin, end] = ["", "/"].map(|slash| format!("<!-- {slash}bench {name} -->\n"));
        let (before, rest) = text.split_once(&begin).ok_or_else(|| format!("{path} has no line {begin:?}"))?;
        let (_, after) = rest.split_once(&end).ok_or_else(|| format!("{path} has no line {end:?}"))?;
        text = format!("{before}{begin}{}{end}{after}", table(&document, world, columns));
    }
    fs::write(&path, text)?;
    Ok(())
}

/// Formats the rows of a world; without one, the rows of all worlds with a column of worlds.
fn table(document: &Document, world: Option<World>, columns: &[(Figure, &str)]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut names = vec!["load", "mode"];
    names.extend(world.is_none().then_some("world"));
    let mut headings: Vec<String> = names.iter().map(ToString::to_string).collect();
    headings.extend(columns.iter().map(|(_, name)| (*name).to_owned()));
    let mut rule = vec!["---".to_owned(); names.len()];
    rule.extend(columns.iter().map(|_| "---:".to_owned()));
    let rows: Vec<&BenchRow> = match world {
        Some(world) => ordered(&document.rows).into_iter().filter(|row| row.world == world).collect(),
        None => rows_by_load(&document.rows),
    };
    let rows_text = rows.iter().map(|row| {
        let value = |figure| row.figures.get(figure).map(|value| figure.text(value)).unwrap_or_default();
        let mut cells = vec![row.load.to_string(), format!("`{}`{}", row.mode, marks(row).replace('*', " \\*"))];
        cells.extend(world.is_none().then(|| row.world.to_string()));
        cells.extend(columns.iter().map(|(figure, _)| value(*figure)));
        line(cells)
    });
    let mut text = line(headings) + &line(rule) + &rows_text.collect::<String>();
    if rows.iter().any(|row| row.client_bound) {
        text += "\n\\* client-bound: the load generator may be the bottleneck.\n";
    }
    text
}
