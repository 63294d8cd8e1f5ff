//! Puts the results of a bench into a Markdown file, between the markers of its worlds:
//!
//! ```text
//! abey bench --json | cargo run -p abey-bench --example readme_table README.md
//! ```
//!
//! A table goes from `<!-- bench datapath -->` to `<!-- /bench datapath -->`. A world that was not measured keeps its own.

use std::error::Error;
use std::{env, fs, io};

use abey_bench::table::{marks, ordered};
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
    for bed in &document.setup.beds {
        let world = bed.world;
        let [begin, end] = ["", "/"].map(|slash| format!("<!-- {slash}bench {world} -->\n"));
        let (before, rest) = text.split_once(&begin).ok_or_else(|| format!("{path} has no line {begin:?}"))?;
        let (_, after) = rest.split_once(&end).ok_or_else(|| format!("{path} has no line {end:?}"))?;
        text = format!("{before}{begin}{}{end}{after}", table(&document, world));
    }
    fs::write(&path, text)?;
    Ok(())
}

fn table(document: &Document, world: World) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let words = |words: [&str; 2]| words.map(str::to_owned).to_vec();
    let mut headings = words(["load", "mode"]);
    headings.extend(SHOWN.map(|(_, name)| name.to_owned()));
    let mut rule = words(["---", "---"]);
    rule.extend(SHOWN.map(|_| "---:".to_owned()));
    let rows: Vec<&Row> = ordered(&document.rows).into_iter().filter(|row| row.world == world).collect();
    let rows_text = rows.iter().map(|row| {
        let value = |figure| row.figures.get(figure).map(|value| figure.text(value)).unwrap_or_default();
        let mut cells = vec![row.load.to_string(), format!("`{}`{}", row.mode, marks(row).replace('*', " \\*"))];
        cells.extend(SHOWN.map(|(figure, _)| value(figure)));
        line(cells)
    });
    let mut text = line(headings) + &line(rule) + &rows_text.collect::<String>();
    if rows.iter().any(|row| row.client_bound) {
        text += "\n\\* client-bound: the load generator may be the limit.\n";
    }
    text
}
