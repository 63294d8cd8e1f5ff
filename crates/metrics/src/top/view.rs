//! The view of a frame: sort order, filter, interval and scroll position, and the keys that change them.

use abey_delivery::Nanos;

use super::{Column, Frame};
use crate::rates::Rates;

/// The view of a frame.
#[derive(Clone, Debug)]
pub struct View {
    /// The column that rows are sorted by.
    pub sort: Column,
    /// Whether the sort order is reversed.
    pub reverse: bool,
    /// The text that device, NAPI ID or mode of a row must contain.
    pub filter: String,
    /// The time between two frames.
    pub interval: Nanos,
    /// Whether keys edit the filter.
    pub editing: bool,
    /// Whether the frame stays as it is.
    pub paused: bool,
    /// The number of rows above the first row shown.
    pub scrolled: usize,
}

/// A key that [`View::handle_key`] handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Enter.
    Enter,
    /// Escape.
    Escape,
    /// Backspace.
    Backspace,
    /// Left arrow.
    Left,
    /// Right arrow.
    Right,
    /// Up arrow.
    Up,
    /// Down arrow.
    Down,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// Home.
    Home,
    /// Ctrl-C.
    Interrupt,
}

/// Intervals that the keys + and - select.
const INTERVALS: [Nanos; 8] = [
    Nanos::from_millis(100),
    Nanos::from_millis(200),
    Nanos::from_millis(500),
    Nanos::from_millis(1_000),
    Nanos::from_millis(2_000),
    Nanos::from_millis(5_000),
    Nanos::from_millis(10_000),
    Nanos::from_millis(60_000),
];

/// Rows that a page key scrolls by.
const PAGE: usize = 10;

impl View {
    /// Creates a view that is not paused and not scrolled.
    #[must_use]
    pub fn new(sort: Column, reverse: bool, filter: String, interval: Nanos) -> Self {
        Self { sort, reverse, filter, interval, editing: false, paused: false, scrolled: 0 }
    }

    /// Handles a key. Returns whether it was the key to quit.
    pub fn handle_key(&mut self, key: Key) -> bool {
        if key == Key::Interrupt {
            return true;
        }
        if self.editing {
            self.edit(key);
            return false;
        }
        match key {
            Key::Char('q' | 'Q') => return true,
            Key::Char('/') => {
                self.editing = true;
                self.filter.clear();
            }
            Key::Escape => self.filter.clear(),
            Key::Char('<' | ',') | Key::Left => self.move_sort(Column::ALL.len() - 1),
            Key::Char('>' | '.') | Key::Right => self.move_sort(1),
            Key::Char('r' | 'R') => self.reverse = !self.reverse,
            Key::Char('p' | 'P' | ' ') => self.paused = !self.paused,
            Key::Char('+' | '=') => self.interval = longer(self.interval),
            Key::Char('-') => self.interval = shorter(self.interval),
            Key::Up => self.scrolled = self.scrolled.saturating_sub(1),
            Key::Down => self.scrolled += 1,
            Key::PageUp => self.scrolled = self.scrolled.saturating_sub(PAGE),
            Key::PageDown => self.scrolled += PAGE,
            Key::Home => self.scrolled = 0,
            _ => {}
        }
        false
    }

    fn edit(&mut self, key: Key) {
        match key {
            Key::Enter => self.editing = false,
            Key::Escape => {
                self.editing = false;
                self.filter.clear();
            }
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(typed) => self.filter.push(typed),
            _ => {}
        }
        self.scrolled = 0;
    }

    fn move_sort(&mut self, by: usize) {
        let at = Column::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = Column::ALL[(at + by) % Column::ALL.len()];
        self.reverse = false;
    }

    /// Returns the rows that match the filter, sorted; equal rows by device and instance.
    #[must_use]
    pub fn rows<'a>(&self, frame: &'a Frame) -> Vec<&'a Rates> {
        let mut rows: Vec<&Rates> = frame.rows.iter().filter(|row| self.matches(row)).collect();
        rows.sort_by(|one, other| {
            let order = self.sort.compare(one, other);
            let order = if self.reverse { order.reverse() } else { order };
            let name = |row: &Rates| (row.instance.device.clone(), row.instance.key);
            order.then_with(|| name(one).cmp(&name(other)))
        });
        rows
    }

    fn matches(&self, row: &Rates) -> bool {
        let filter = self.filter.to_lowercase();
        let instance = &row.instance;
        let contains = |text: &str| text.to_lowercase().contains(&filter);
        contains(&instance.device) || contains(&instance.mode) || contains(&instance.key.napi.to_string())
    }

    /// Limits the scroll position so that the last of `rows` stays at the bottom of a screen with `height` rows.
    pub fn limit_scroll(&mut self, rows: usize, height: usize) {
        self.scrolled = self.scrolled.min(rows.saturating_sub(height));
    }

    /// Returns the columns that fit the screen, with their widths. A narrow screen omits interrupts, then batches, timers and
    /// queues; spare width goes to the text columns.
    #[must_use]
    pub fn columns(width: usize) -> Vec<(Column, usize)> {
        let mut columns: Vec<(Column, usize)> = Column::ALL.map(|column| (column, column.width())).to_vec();
        let taken = |columns: &[(Column, usize)]| columns.iter().map(|(_, width)| width + 1).sum::<usize>() - 1;
        for column in [Column::Irq, Column::Batch, Column::Timer, Column::Queue] {
            if taken(&columns) > width {
                columns.retain(|(other, _)| *other != column);
            }
        }
        let spare = width.saturating_sub(taken(&columns)) / 2;
        for (column, width) in &mut columns {
            if column.is_text() {
                *width += spare.min(12);
            }
        }
        columns
    }
}

fn longer(interval: Nanos) -> Nanos {
    INTERVALS.into_iter().find(|other| *other > interval).unwrap_or(interval)
}

fn shorter(interval: Nanos) -> Nanos {
    INTERVALS.into_iter().rev().find(|other| *other < interval).unwrap_or(interval)
}

/// Pads a text to the width of its cell, or truncates it.
#[must_use]
pub fn pad_cell(column: Column, width: usize, text: &str) -> String {
    let text: String = if text.chars().count() > width {
        text.chars().take(width.saturating_sub(1)).chain(['+']).collect()
    } else {
        text.to_owned()
    };
    if column.is_text() { format!("{text:<width$}") } else { format!("{text:>width$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        View::new(Column::Packets, false, String::new(), Nanos::from_millis(1_000))
    }

    fn type_all(view: &mut View, keys: &str) {
        for key in keys.chars() {
            assert!(!view.handle_key(if key == '\n' { Key::Enter } else { Key::Char(key) }), "{key:?} quits");
        }
    }

    #[test]
    fn keys_change_the_view() {
        let mut view = view();
        type_all(&mut view, "<r");
        assert_eq!((view.sort, view.reverse), (Column::Thread, true));
        type_all(&mut view, ">>p-");
        assert_eq!((view.sort, view.reverse, view.paused), (Column::Batch, false, true));
        assert_eq!(view.interval, Nanos::from_millis(500));
        type_all(&mut view, "++++++++++");
        assert_eq!(view.interval, Nanos::from_millis(60_000));
        for _ in 0..Column::ALL.len() {
            view.handle_key(Key::Right);
        }
        assert_eq!(view.sort, Column::Batch);
    }

    #[test]
    fn letters_edit_the_filter_while_it_is_edited() {
        let mut view = view();
        type_all(&mut view, "/eqp");
        assert!(view.editing && !view.paused);
        view.handle_key(Key::Backspace);
        type_all(&mut view, "0\n");
        assert_eq!((view.editing, view.filter.as_str()), (false, "eq0"));
        view.handle_key(Key::Escape);
        assert_eq!(view.filter, "");
        assert!(view.handle_key(Key::Char('q')));
        assert!(view.handle_key(Key::Interrupt));
    }

    #[test]
    fn columns_fit_the_screen() {
        for width in [80, 100, 132, 200] {
            let columns = View::columns(width);
            let taken = columns.iter().map(|(_, width)| width + 1).sum::<usize>() - 1;
            assert!(taken <= width, "{width}: {columns:?}");
        }
        assert!(!View::columns(80).iter().any(|(column, _)| *column == Column::Irq));
        assert_eq!(View::columns(132).len(), Column::ALL.len());
    }

    #[test]
    fn cells_are_truncated_and_padded() {
        assert_eq!(pad_cell(Column::Device, 6, "eth0"), "eth0  ");
        assert_eq!(pad_cell(Column::Device, 6, "af_xdp:veth0"), "af_xd+");
        assert_eq!(pad_cell(Column::Packets, 6, "12"), "    12");
    }
}
