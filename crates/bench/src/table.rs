//! The table of results, for a terminal and as Markdown.

mod published;

use comfy_table::{CellAlignment, LineStyle, Table, presets};
pub(crate) use published::{LISTED, listed};
pub use published::{comparison, order_text, pair_title};

use crate::pairs::{self, Pair};
use crate::{BedSetup, Document, Figure, Figures, Load, Row, World};

/// Figures whose spread is shown in the terminal; with all of them the table would be too wide for one.
const SPREAD_SHOWN: [Figure; 4] = [Figure::Qps, Figure::Avg, Figure::P99, Figure::CpuPercent];

/// Columns of text in the table of results, before its figures: load and mode.
const TEXT_COLUMNS: usize = 2;

/// A table for each world, for a terminal, at most 140 columns wide, with notes below; ends in a line feed. What is known
/// of a world's bed stands above its table.
pub fn terminal(rows: &[Row], beds: &[BedSetup]) -> String {
    let mut out = String::new();
    for (world, rows) in by_world(rows) {
        out += &heading_line(beds, world);
        let mut table = new_table(&headings(), TEXT_COLUMNS);
        let mut before: Option<Load> = None;
        for row in &rows {
            // A blank line between loads: rows within one load are what is compared.
            if before.is_some_and(|before| before != row.load) {
                table.add_row([""]);
            }
            table.add_row(cells(row, |figure| padded_spread(&rows, row, figure)));
            before = Some(row.load);
        }
        out += &finish(&table);
        out.push('\n');
    }
    with_notes(out, &notes(rows), "")
}

/// One table for worlds that can be compared, the rows of one mode at one load beside each other; and the ratios of their
/// figures to the kernel's. For a terminal, with notes below; ends in a line feed.
pub fn side_by_side(document: &Document) -> String {
    let Document { rows, pairs, setup, .. } = document;
    let mut out = String::new();
    for bed in &setup.beds {
        out += &format!("{}: {}\n{}; load {}\n\n", bed.world, bed.server, bed.wire, bed.client);
    }
    let measured = |figure: &Figure| rows.iter().any(|row| row.figures.get(*figure).is_some());
    let figures: Vec<Figure> = BESIDE.into_iter().filter(measured).collect();
    let mut headings = vec!["load".to_owned(), "mode".to_owned(), "world".to_owned()];
    headings.extend(figures.iter().map(|figure| two_lines(*figure)));
    let mut table = new_table(&headings, 3);
    let ordered = beside(rows);
    for (at, row) in ordered.iter().enumerate() {
        if at > 0 && (ordered[at - 1].load, ordered[at - 1].mode) != (row.load, row.mode) {
            table.add_row([""]);
        }
        let mut cells = vec![row.load.to_string(), format!("{} {}", row.mode, marks(row)).trim_end().to_owned()];
        cells.push(row.world.to_string());
        cells.extend(figures.iter().map(|figure| {
            let spread = padded_spread(&ordered, row, *figure);
            format!("{} {spread}", value_text(Some(&row.figures), *figure)).trim_end_matches(' ').to_owned()
        }));
        table.add_row(cells);
    }
    out += &finish(&table);
    if !pairs.is_empty() {
        out += "\nTimes the linux world's figure, in the same mode and in its best one\n\n";
        out += &pair_ratios(pairs);
    }
    out.push('\n');
    with_notes(out, &notes(rows), "")
}

/// Columns where worlds stand beside each other.
const BESIDE: [Figure; 12] = [
    Figure::Qps,
    Figure::Avg,
    Figure::P50,
    Figure::P95,
    Figure::P99,
    Figure::P999,
    Figure::CpuPercent,
    Figure::CpuPerQuery,
    Figure::Cycles,
    Figure::Instructions,
    Figure::Wakeups,
    Figure::SystemCalls,
];

/// The rows by load, then mode, then world: for worlds that can be compared.
pub fn beside(rows: &[Row]) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| (row.load, row.order().2, row.world));
    rows
}

fn pair_ratios(pairs: &[Pair]) -> String {
    let mut headings = ["load", "mode", "world"].map(str::to_owned).to_vec();
    headings.extend(pairs::COMPARED.map(two_lines));
    headings.extend(pairs::COMPARED.map(|figure| format!("best\n{}", figure.title())));
    let mut table = new_table(&headings, 3);
    for (at, pair) in pairs.iter().enumerate() {
        if at > 0 && pairs[at - 1].load != pair.load {
            table.add_row([""]);
        }
        let mut cells = vec![pair.load.to_string(), pair.mode.to_string(), pair.world.to_string()];
        cells.extend(pair.to_same_mode.all().map(ratio_text));
        cells.extend(
            pair.to_best_mode
                .all()
                .into_iter()
                .zip(pair.best_mode.all())
                .map(|(ratio, mode)| format!("{} {}", ratio_text(ratio), mode.unwrap_or_default()).trim().to_owned()),
        );
        table.add_row(cells);
    }
    finish(&table)
}

/// The tables as Markdown, with notes as a list below them; ends in a line feed.
pub fn markdown(rows: &[Row], beds: &[BedSetup]) -> String {
    let mut out = String::new();
    for (world, rows) in by_world(rows) {
        out += &heading_line(beds, world);
        let headings: Vec<String> = headings().iter().map(|heading| escape(&heading.replace('\n', " "))).collect();
        out += &markdown_line(&headings);
        let rule = |at| if at < TEXT_COLUMNS { "---" } else { "---:" }.to_owned();
        out += &markdown_line(&(0..headings.len()).map(rule).collect::<Vec<String>>());
        for row in rows {
            let cells = cells(row, |figure| spread_text(row, figure));
            out += &markdown_line(&cells.iter().map(|cell| escape(cell.trim_end())).collect::<Vec<String>>());
        }
        out.push('\n');
    }
    with_notes(out, &notes(rows), "- ")
}

/// The rows of each world that there are rows of, in the order of the table.
pub(crate) fn by_world(rows: &[Row]) -> Vec<(World, Vec<&Row>)> {
    let ordered = ordered(rows);
    ordered.chunk_by(|one, next| one.world == next.world).map(|rows| (rows[0].world, rows.to_vec())).collect()
}

/// What stands above a world's table.
fn heading_line(beds: &[BedSetup], world: World) -> String {
    let bed = beds.iter().find(|bed| bed.world == world);
    let about = bed.map(|BedSetup { server, client, wire, .. }| format!(": {server}\n{wire}; load {client}"));
    format!("{world}{}\n\n", about.unwrap_or_default())
}

/// The rows in the order of the table: world, load, mode.
pub fn ordered(rows: &[Row]) -> Vec<&Row> {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| row.order());
    rows
}

/// Rows that are named when the same has to be said of several.
const FEW: usize = 2;

/// What has to be said below the table: columns that are blank, rows that are marked, notes of runs.
pub fn notes(rows: &[Row]) -> Vec<String> {
    let none =
        |figures: &[Figure]| rows.iter().all(|row| figures.iter().all(|figure| row.figures.get(*figure).is_none()));
    let mut notes = Vec::new();
    if rows.is_empty() {
        return vec!["nothing was measured".to_owned()];
    }
    if none(&[Figure::Cycles, Figure::Instructions]) {
        notes.push("cycles and instructions: this machine has no hardware counters, or not for this user".to_owned());
    }
    let blank: Vec<&str> = Figure::ALL
        .into_iter()
        .filter(|figure| !matches!(figure, Figure::Cycles | Figure::Instructions) && none(&[*figure]))
        .map(Figure::describe)
        .collect();
    if !blank.is_empty() {
        notes.push(format!("not measured: {}", blank.join(", ")));
    }
    if rows.iter().any(|row| row.client_bound) {
        notes.push("* client-bound: the load generator used more than 95 % of its CPU or sent too little, and may be the limit".to_owned());
    }
    if rows.iter().any(|row| !row.active) {
        notes.push("! not proved active: the counters do not show that this mode was at work".to_owned());
    }
    if rows.iter().any(|row| Figure::WITH_SPREAD.iter().any(|figure| row.spreads.get(*figure).is_some())) {
        notes.push("medians of runs; ± is half the range between runs, in percent of the median".to_owned());
    }
    let mut said: Vec<(&String, Vec<&Row>)> = Vec::new();
    for row in ordered(rows) {
        for note in &row.notes {
            match said.iter_mut().find(|(said, _)| *said == note) {
                Some((_, rows)) => rows.push(row),
                None => said.push((note, vec![row])),
            }
        }
    }
    for (note, of) in said {
        match &of[..] {
            many if many.len() > FEW => notes.push(format!("{} of {} rows: {note}", many.len(), rows.len())),
            few => notes.extend(few.iter().map(|row| format!("{} {} at {}: {note}", row.world, row.mode, row.load))),
        }
    }
    notes
}

/// The marks of a row, explained by [`notes`]: `*` client-bound, `!` not proved active.
pub fn marks(row: &Row) -> &'static str {
    match (row.active, row.client_bound) {
        (true, false) => "",
        (true, true) => "*",
        (false, false) => "!",
        (false, true) => "!*",
    }
}

/// The spread of a figure as `±4%`; empty where there is none or it rounds to zero. Beyond `±>999%` its size says nothing
/// but that the runs have nothing in common.
pub fn spread_text(row: &Row, figure: Figure) -> String {
    match row.figures.get(figure).and(row.spreads.get(figure)) {
        Some(spread) if spread >= 9.995 => "±>999%".to_owned(),
        Some(spread) if spread >= 0.005 => format!("±{:.0}%", spread * 100.0),
        _ => String::new(),
    }
}

/// A figure, or nothing.
pub(crate) fn value_text(figures: Option<&Figures>, figure: Figure) -> String {
    figures.and_then(|figures| figures.get(figure)).map(|value| figure.text(value)).unwrap_or_default()
}

/// A ratio as `0.73x`, or nothing.
pub(crate) fn ratio_text(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{}x", crate::figure::short(ratio))).unwrap_or_default()
}

pub(crate) fn several_worlds(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.world != rows[0].world)
}

fn headings() -> Vec<String> {
    let mut headings = vec!["load".to_owned(), "mode".to_owned()];
    headings.extend(Figure::ALL.map(two_lines));
    headings
}

/// A figure's name and unit, one above the other.
fn two_lines(figure: Figure) -> String {
    let (name, unit) = figure.heading();
    format!("{name}\n{unit}").trim_end().to_owned()
}

fn cells(row: &Row, spread: impl Fn(Figure) -> String) -> Vec<String> {
    let mut cells = vec![row.load.to_string(), format!("{} {}", row.mode, marks(row)).trim_end().to_owned()];
    cells.extend(Figure::ALL.map(|figure| match spread(figure) {
        spread if spread.is_empty() => value_text(Some(&row.figures), figure),
        spread => format!("{} {spread}", value_text(Some(&row.figures), figure)),
    }));
    cells
}

/// The spread as wide as the widest of its column, so that the figures before it stay aligned.
fn padded_spread(rows: &[&Row], row: &Row, figure: Figure) -> String {
    if !SPREAD_SHOWN.contains(&figure) {
        return String::new();
    }
    let width = rows.iter().map(|row| spread_text(row, figure).chars().count()).max().unwrap_or(0);
    format!("{:width$}", spread_text(row, figure))
}

/// A table without vertical lines whose first `text` columns are flush left and all others flush right.
fn new_table(headings: &[String], text: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('─').junction('─')));
    table.set_header(headings);
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        column.set_cell_alignment(if at < text { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}

fn finish(table: &Table) -> String {
    format!("{}\n", table.trim_fmt())
}

fn with_notes(mut out: String, notes: &[String], bullet: &str) -> String {
    for note in notes {
        out += &format!("{bullet}{note}\n");
    }
    out
}

fn markdown_line(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// A cell's text where a pipe or a star of its own must not read as markup.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*")
}
