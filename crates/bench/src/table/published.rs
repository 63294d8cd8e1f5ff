//! Comparison of measured with published figures, as text.

use super::{finish, new_table, ratio_text, value_text};
use crate::compare::{Comparison, LoadPair, ModeRows};
use crate::{Figure, Figures, Load};

/// Formats a comparison for a terminal. Ends with a line feed.
pub fn comparison(comparison: &Comparison) -> String {
    let mut out = format!("Comparison with the published table: {}\n{}\n", comparison.title, comparison.about);
    for pair in &comparison.pairs {
        out += &format!("\n{}\n", pair_title(pair));
        out += &pair_table(pair);
        out += &format!("{}\n", order_text(pair));
    }
    out += "\nAll published loads of the measured modes\n";
    out + &published_table(&comparison.modes)
}

/// Formats the title of a pair of loads: "linux 20k beside published 200k (base uses 19 % and 25 % of the CPU)".
pub fn pair_title(pair: &LoadPair) -> String {
    let base_cpu = match pair.base_cpu {
        Some((measured, published)) => format!(" (base uses {measured:.0} % and {published:.0} % of the CPU)"),
        None => String::new(),
    };
    format!("{} {} beside published {}{base_cpu}", pair.world, pair.measured, pair.published)
}

/// Formats the agreement of orders: "pairs of modes in the same order: avg 9 of 10, ...".
pub fn order_text(pair: &LoadPair) -> String {
    let suites: Vec<String> = pair
        .figures
        .iter()
        .zip(&pair.orders)
        .filter(|(_, order)| order.of > 0)
        .map(|(figure, order)| format!("{} {} of {}", figure.title(), order.same, order.of))
        .collect();
    if suites.is_empty() {
        return "no two modes differ by more than 5 % on both sides, so there is no order to compare".to_owned();
    }
    format!("pairs of modes in the same order: {} (pairs closer than 5 % left out)", suites.join(", "))
}

/// Maximum number of figures in one table, limited by the width of a terminal.
const MAX_FIGURES: usize = 3;

fn pair_table(pair: &LoadPair) -> String {
    let mut out = String::new();
    for (chunk, figures) in pair.figures.chunks(MAX_FIGURES).enumerate() {
        let mut headings = vec!["mode\n".to_owned()];
        for figure in figures {
            headings.extend([format!("{}\nhere", figure.title()), "\npubl.".to_owned()]);
            headings.extend(["to base\nhere".to_owned(), "\npubl.".to_owned()]);
        }
        let mut table = new_table(&headings, 1);
        for mode in &pair.modes {
            let mut cells = vec![mode.mode.to_string()];
            for (at, figure) in figures.iter().enumerate() {
                cells.push(value_text(Some(&mode.measured), *figure));
                cells.push(value_text(mode.published.as_ref(), *figure));
                cells.push(ratio_text(mode.measured_ratios[chunk * MAX_FIGURES + at]));
                cells.push(ratio_text(mode.published_ratios[chunk * MAX_FIGURES + at]));
            }
            table.add_row(cells);
        }
        out += &finish(&table);
    }
    out
}

/// Figures of the list of rows.
pub(crate) const LISTED: [Figure; 7] =
    [Figure::Qps, Figure::Avg, Figure::P95, Figure::P99, Figure::CpuPercent, Figure::Cycles, Figure::Instructions];

fn published_table(modes: &[ModeRows]) -> String {
    let mut headings = vec!["mode".to_owned(), "source".to_owned(), "load".to_owned()];
    headings.extend(LISTED.map(Figure::title));
    let mut table = new_table(&headings, 3);
    for (at, mode) in modes.iter().enumerate() {
        if at > 0 {
            table.add_row([""]);
        }
        for (source, load, figures) in listed(mode) {
            let mut cells = vec![mode.mode.to_string(), source, load.to_string()];
            cells.extend(LISTED.map(|figure| value_text(Some(&figures), figure)));
            table.add_row(cells);
        }
        if mode.published.is_empty() {
            table.add_row([mode.mode.to_string(), "not published".to_owned()]);
        }
    }
    finish(&table)
}

/// Returns the rows of one mode: source, load, figures.
pub(crate) fn listed(mode: &ModeRows) -> Vec<(String, Load, Figures)> {
    let measured = mode.measured.iter().map(|row| (format!("here, {}", row.world), row.load, row.figures));
    let published = mode.published.iter().map(|row| ("published".to_owned(), row.load, row.figures));
    measured.chain(published).collect()
}
