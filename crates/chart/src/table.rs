//! Tables for a terminal, without lines: names aligned to the left, numbers to the right.

use std::ops::RangeBounds;

use comfy_table::{CellAlignment, presets};

pub use comfy_table::Table;

/// Creates an empty table with these headings.
pub fn new_table<'a>(headings: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(headings);
    table
}

/// Formats the table, with the columns in `numbers` aligned to the right.
pub fn aligned(mut table: Table, numbers: impl RangeBounds<usize>) -> String {
    for (at, column) in table.column_iter_mut().enumerate() {
        if numbers.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}
