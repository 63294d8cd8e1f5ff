//! Tables of results, for a terminal and as Markdown.

mod published;

use comfy_table::{CellAlignment, LineStyle, Table, presets};
pub(crate) use published::{LISTED, listed};
pub use published::{comparison, order_text, pair_title};

use crate::ratios::{self, RatioRow};
use crate::{BenchRow, Document, Figure, Figures, Load, TestBedSetup, World};

/// Figures whose spread is shown on the terminal. With all spreads the table would be too wide.
const SPREAD_SHOWN: [Figure; 4] = [Figure::Qps, Figure::Avg, Figure::P99, Figure::CpuPercent];

/// Number of text columns before the figures: load and mode.
const TEXT_COLUMNS: usize = 2;

/// Formats a table for each world, at most 140 columns wide, with its test bed above and notes below. Ends with a line feed.
pub fn terminal(rows: &[BenchRow], test_beds: &[TestBedSetup]) -> String {
    let mut out = String::new();
    for (world, rows) in by_world(rows) {
        out += &heading_line(test_beds, world);
        let mut table = new_table(&headings(), TEXT_COLUMNS);
        let mut previous: Option<Load> = None;
        for row in &rows {
            // A blank line between loads: rows of one load are compared.
            if previous.is_some_and(|load| load != row.load) {
                table.add_row([""]);
            }
            table.add_row(cells(row, |figure| padded_spread(&rows, row, figure)));
            previous = Some(row.load);
        }
        out += &finish(&table);
        out.push('\n');
    }
    with_notes(out, &notes(rows), "")
}

/// Formats one table of worlds that can be compared, with the rows of one mode at one load next to each other, and a table of ratios
/// to the kernel's figures, with notes below. Ends with a line feed.
pub fn side_by_side(document: &Document) -> String {
    let Document { rows, ratios, setup, .. } = document;
    let mut out = String::new();
    for TestBedSetup { world, server, client, wire } in &setup.test_beds {
        out += &format!("{world}: {server}\n{wire}; load {client}\n\n");
    }
    let measured = |figure: &Figure| rows.iter().any(|row| row.figures.get(*figure).is_some());
    let figures: Vec<Figure> = SIDE_BY_SIDE.into_iter().filter(measured).collect();
    let mut headings = vec!["load".to_owned(), "mode".to_owned(), "world".to_owned()];
    headings.extend(figures.iter().map(|figure| two_lines(*figure)));
    let mut table = new_table(&headings, 3);
    let ordered = rows_by_load(rows);
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
    if !ratios.is_empty() {
        out += "\nRatios to the linux world, in the same mode and in its best mode\n\n";
        out += &ratio_table(ratios);
    }
    out.push('\n');
    with_notes(out, &notes(rows), "")
}

/// Columns of the table of several worlds.
const SIDE_BY_SIDE: [Figure; 12] = [
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

/// Returns the rows sorted by load, mode and world, for worlds that can be compared.
pub fn rows_by_load(rows: &[BenchRow]) -> Vec<&BenchRow> {
    let mut rows: Vec<&BenchRow> = rows.iter().collect();
    rows.sort_by_key(|row| (row.load, row.sort_key().2, row.world));
    rows
}

fn ratio_table(rows: &[RatioRow]) -> String {
    let mut headings = ["load", "mode", "world"].map(str::to_owned).to_vec();
    headings.extend(ratios::COMPARED.map(two_lines));
    headings.extend(ratios::COMPARED.map(|figure| format!("best\n{}", figure.title())));
    let mut table = new_table(&headings, 3);
    for (at, row) in rows.iter().enumerate() {
        if at > 0 && rows[at - 1].load != row.load {
            table.add_row([""]);
        }
        let mut cells = vec![row.load.to_string(), row.mode.to_string(), row.world.to_string()];
        cells.extend(row.to_same_mode.all().map(ratio_text));
        cells.extend(
            row.to_best_mode
                .all()
                .into_iter()
                .zip(row.best_mode.all())
                .map(|(ratio, mode)| format!("{} {}", ratio_text(ratio), mode.unwrap_or_default()).trim().to_owned()),
        );
        table.add_row(cells);
    }
    finish(&table)
}

/// Formats the tables as Markdown, with a list of notes below. Ends with a line feed.
pub fn markdown(rows: &[BenchRow], test_beds: &[TestBedSetup]) -> String {
    let mut out = String::new();
    for (world, rows) in by_world(rows) {
        out += &heading_line(test_beds, world);
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

/// Groups the rows by world, in the order of the table.
pub(crate) fn by_world(rows: &[BenchRow]) -> Vec<(World, Vec<&BenchRow>)> {
    let ordered = ordered(rows);
    ordered.chunk_by(|one, next| one.world == next.world).map(|rows| (rows[0].world, rows.to_vec())).collect()
}

/// Formats the heading of a world's table.
fn heading_line(test_beds: &[TestBedSetup], world: World) -> String {
    let test_bed = test_beds.iter().find(|test_bed| test_bed.world == world);
    let about = test_bed.map(|TestBedSetup { server, client, wire, .. }| format!(": {server}\n{wire}; load {client}"));
    format!("{world}{}\n\n", about.unwrap_or_default())
}

/// Returns the rows in the order of the table: world, load, mode.
pub fn ordered(rows: &[BenchRow]) -> Vec<&BenchRow> {
    let mut rows: Vec<&BenchRow> = rows.iter().collect();
    rows.sort_by_key(|row| row.sort_key());
    rows
}

/// Maximum number of rows with the same note that are named separately.
const MAX_NAMED_ROWS: usize = 2;

/// Returns the notes below the table: on blank columns, on marks, and the notes of runs.
pub fn notes(rows: &[BenchRow]) -> Vec<String> {
    let none =
        |figures: &[Figure]| rows.iter().all(|row| figures.iter().all(|figure| row.figures.get(*figure).is_none()));
    let mut notes = Vec::new();
    if rows.is_empty() {
        return vec!["nothing was measured".to_owned()];
    }
    if none(&[Figure::Cycles, Figure::Instructions]) {
        notes.push(
            "cycles and instructions: this machine has no hardware counters, or this user may not read them".to_owned(),
        );
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
        notes.push("* client-bound: the load generator used more than 95 % of its CPU or sent too few requests, and may be the bottleneck".to_owned());
    }
    if rows.iter().any(|row| !row.active) {
        notes.push("! not proved active: the counters do not prove that this mode was active".to_owned());
    }
    if rows.iter().any(|row| Figure::WITH_SPREAD.iter().any(|figure| row.spreads.get(*figure).is_some())) {
        notes.push("medians of runs; ± is half the range between runs, in percent of the median".to_owned());
    }
    let mut by_note: Vec<(&String, Vec<&BenchRow>)> = Vec::new();
    for row in ordered(rows) {
        for note in &row.notes {
            match by_note.iter_mut().find(|(other, _)| *other == note) {
                Some((_, rows)) => rows.push(row),
                None => by_note.push((note, vec![row])),
            }
        }
    }
    for (note, of) in by_note {
        match &of[..] {
            many if many.len() > MAX_NAMED_ROWS => notes.push(format!("{} of {} rows: {note}", many.len(), rows.len())),
            few => notes.extend(few.iter().map(|row| format!("{} {} at {}: {note}", row.world, row.mode, row.load))),
        }
    }
    notes
}

/// Returns the marks of a row, which [`notes`] explain: `*` client-bound, `!` not proved active.
pub fn marks(row: &BenchRow) -> &'static str {
    match (row.active, row.client_bound) {
        (true, false) => "",
        (true, true) => "*",
        (false, false) => "!",
        (false, true) => "!*",
    }
}

/// Formats the spread of a figure as `±4%`; empty without a spread or if it rounds to zero. The largest text is `±>999%`.
pub fn spread_text(row: &BenchRow, figure: Figure) -> String {
    match row.figures.get(figure).and(row.spreads.get(figure)) {
        Some(spread) if spread >= 9.995 => "±>999%".to_owned(),
        Some(spread) if spread >= 0.005 => format!("±{:.0}%", spread * 100.0),
        _ => String::new(),
    }
}

/// Formats a figure; empty if not measured.
pub(crate) fn value_text(figures: Option<&Figures>, figure: Figure) -> String {
    figures.and_then(|figures| figures.get(figure)).map(|value| figure.text(value)).unwrap_or_default()
}

/// Formats a ratio as `0.73x`; empty without a value.
pub(crate) fn ratio_text(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{}x", abey_chart::number::short(ratio))).unwrap_or_default()
}

pub(crate) fn several_worlds(rows: &[BenchRow]) -> bool {
    rows.iter().any(|row| row.world != rows[0].world)
}

fn headings() -> Vec<String> {
    let mut headings = vec!["load".to_owned(), "mode".to_owned()];
    headings.extend(Figure::ALL.map(two_lines));
    headings
}

/// Formats a figure's name and unit in two lines.
fn two_lines(figure: Figure) -> String {
    let (name, unit) = figure.heading();
    format!("{name}\n{unit}").trim_end().to_owned()
}

fn cells(row: &BenchRow, spread: impl Fn(Figure) -> String) -> Vec<String> {
    let mut cells = vec![row.load.to_string(), format!("{} {}", row.mode, marks(row)).trim_end().to_owned()];
    cells.extend(Figure::ALL.map(|figure| match spread(figure) {
        spread if spread.is_empty() => value_text(Some(&row.figures), figure),
        spread => format!("{} {spread}", value_text(Some(&row.figures), figure)),
    }));
    cells
}

/// Pads the spread to the widest of its column, so that the figures stay aligned.
fn padded_spread(rows: &[&BenchRow], row: &BenchRow, figure: Figure) -> String {
    if !SPREAD_SHOWN.contains(&figure) {
        return String::new();
    }
    let width = rows.iter().map(|row| spread_text(row, figure).chars().count()).max().unwrap_or(0);
    format!("{:width$}", spread_text(row, figure))
}

/// Creates a table without vertical lines. The first `text` columns are aligned to the left, all others to the right.
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

/// Escapes pipes and stars, which are Markdown markup.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*")
}
