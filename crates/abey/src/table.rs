//! Tables on the terminal: no lines, names to the left, numbers to the right.

use std::ops::RangeBounds;

use comfy_table::{CellAlignment, Table, presets};

/// An empty table with these titles.
pub(crate) fn new_table<'a>(titles: impl IntoIterator<Item = &'a str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(titles);
    table
}

/// The table as text, with the columns in `numbers` aligned to the right.
pub(crate) fn aligned(mut table: Table, numbers: impl RangeBounds<usize>) -> String {
    for (at, column) in table.column_iter_mut().enumerate() {
        if numbers.contains(&at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}
