//! Puts the results of a bench into a Markdown file, between the markers of its worlds:
//!
//! ```text
//! abey bench --json | cargo run -p abey-bench --example readme_table README.md
//! ```
//!
//! A table goes from `<!-- bench datapath -->` to `<!-- /bench datapath -->`. A world that was not measured keeps its own.
//! Worlds that were measured side by side (`--world both`) have one table, between the markers of `both`.

use std::error::Error;
use std::{env, fs, io};

use abey_bench::table::{beside, marks, ordered};
use abey_bench::{Document, Figure, Row, World};

/// The columns after load and mode: few enough to be read beside each other on a page.
const SHOWN: [(Figure, &str); 8] = [
    (Figure::Qps, "qps"),
    (Figure::Avg, "avg us"),
    (Figure::P50, "p50 us"),
    (Figure::P99, "p99 us"),
    (Figure::CpuPercent, "CPU %"),
    (Figure::CpuPerQuery, "CPU us/query"),
    (Figure::Wakeups, "wake-ups/s"),
    (Figure::SystemCalls, "system calls/query"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).ok_or("name the Markdown file")?;
    let document: Document = serde_json::from_reader(io::stdin())?;
    let mut text = fs::read_to_string(&path)?;
    let tables: Vec<(String, Option<World>)> = match document.setup.side_by_side {
        true => vec![("both".to_owned(), None)],
        false => document.setup.beds.iter().map(|bed| (bed.world.to_string(), Some(bed.world))).collect(),
    };
    for (name, world) in tables {
        let [begin, end] = ["", "/"].map(|slash| format!("<!-- {slash}bench {name} -->\n"));
        let (before, rest) = text.split_once(&begin).ok_or_else(|| format!("{path} has no line {begin:?}"))?;
        let (_, after) = rest.split_once(&end).ok_or_else(|| format!("{path} has no line {end:?}"))?;
        text = format!("{before}{begin}{}{end}{after}", table(&document, world));
    }
    fs::write(&path, text)?;
    Ok(())
}

/// One world's rows; without one those of all, which then name theirs.
fn table(document: &Document, world: Option<World>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut names = vec!["load", "mode"];
    names.extend(world.is_none().then_some("world"));
    let mut headings: Vec<String> = names.iter().map(ToString::to_string).collect();
    headings.extend(SHOWN.map(|(_, name)| name.to_owned()));
    let mut rule = vec!["---".to_owned(); names.len()];
    rule.extend(SHOWN.map(|_| "---:".to_owned()));
    let rows: Vec<&Row> = match world {
        Some(world) => ordered(&document.rows).into_iter().filter(|row| row.world == world).collect(),
        None => beside(&document.rows),
    };
    let rows_text = rows.iter().map(|row| {
        let value = |figure| row.figures.get(figure).map(|value| figure.text(value)).unwrap_or_default();
        let mut cells = vec![row.load.to_string(), format!("`{}`{}", row.mode, marks(row).replace('*', " \\*"))];
        cells.extend(world.is_none().then(|| row.world.to_string()));
        cells.extend(SHOWN.map(|(figure, _)| value(figure)));
        line(cells)
    });
    let mut text = line(headings) + &line(rule) + &rows_text.collect::<String>();
    if rows.iter().any(|row| row.client_bound) {
        text += "\n\\* client-bound: the load generator may be the limit.\n";
    }
    text
}
