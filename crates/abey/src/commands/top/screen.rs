//! The terminal: draws frames, reads keys and restores the terminal at the end.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abey_metrics::top::{Frame, Key, Monitor, View, headline, pad_cell};
use abey_supervise::signals::Signal;
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Attributes, Print, ResetColor, SetAttribute, SetAttributes};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};

use crate::failure::Failure;
use crate::signals;

/// Maximum time until a signal is handled.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Time until the first frame.
const FIRST_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of lines for datapaths and notes.
const MAX_REMARKS: usize = 4;

const HELP: &str = "q quit  <> sort  r reverse  / filter  p pause  +- interval  arrows scroll";

/// The terminal in raw mode with its alternate screen, restored on drop and before a panic is reported.
struct Screen(io::BufWriter<io::Stdout>);

impl Screen {
    fn open() -> io::Result<Self> {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        enable_raw_mode()?;
        let mut screen = Self(io::BufWriter::new(io::stdout()));
        execute!(screen.0, EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        queue!(self.0, BeginSynchronizedUpdate)?;
        for (row, line) in (0..).zip(lines) {
            queue!(self.0, MoveTo(0, row), Clear(ClearType::CurrentLine))?;
            for (attributes, text) in line {
                queue!(self.0, SetAttributes(*attributes), Print(text), SetAttribute(Attribute::Reset))?;
            }
        }
        queue!(self.0, EndSynchronizedUpdate)?;
        self.0.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Errors are ignored: there is no other terminal to report them on.
fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show, ResetColor);
    let _ = disable_raw_mode();
}

/// The parts of a line, each with its attributes.
type Line = Vec<(Attributes, String)>;

/// Returns a line with the same attributes throughout, cut to the width of the screen.
fn line(attributes: Attributes, text: &str, width: usize) -> Line {
    vec![(attributes, text.chars().take(width).collect())]
}

/// Runs until q, Ctrl-C, SIGINT, SIGTERM or SIGHUP, or for `count` frames.
pub(super) fn run(mut monitor: Monitor, mut view: View, count: Option<u32>) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::lacks(format!("cannot use the terminal: {error}; use --batch"));
    let stop = signals::stop_flag(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let mut screen = Screen::open().map_err(failed)?;
    let mut frame = Frame::default();
    let mut last = Instant::now();
    let mut frames = 0;
    let mut redraw = true;
    while !stop.load(Ordering::Relaxed) {
        let span = if frames == 0 { FIRST_INTERVAL } else { Duration::from(view.interval) };
        if !view.paused && last.elapsed() >= span {
            if count.is_some_and(|count| frames >= count) {
                break;
            }
            frame = monitor.next_frame();
            last = Instant::now();
            frames += 1;
            redraw = true;
        }
        if redraw {
            let (columns, rows) = size().map_err(failed)?;
            screen.draw(&lines(&frame, &mut view, columns.into(), rows.into())).map_err(failed)?;
            redraw = false;
        }
        let left = if view.paused {
            SIGNAL_CHECK_INTERVAL
        } else {
            span.saturating_sub(last.elapsed()).min(SIGNAL_CHECK_INTERVAL)
        };
        if event::poll(left).map_err(failed)? {
            redraw = true;
            if let Event::Key(key) = event::read().map_err(failed)?
                && let Some(key) = translate(key)
                && view.handle_key(key)
            {
                break;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn translate(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    Some(match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Interrupt,
        KeyCode::Char(_) if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => return None,
        KeyCode::Char(typed) => Key::Char(typed),
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        _ => return None,
    })
}

/// Lays out a screen of `height` lines with at most `width` columns.
fn lines(frame: &Frame, view: &mut View, width: usize, height: usize) -> Vec<Line> {
    let columns = View::columns(width);

    let mut lines = vec![line(Attribute::Bold.into(), &headline(frame, view), width)];
    let notes = frame.notes.iter().map(|note| format!("note: {note}"));
    let remarks = frame.datapaths.iter().cloned().chain(notes).take(MAX_REMARKS);
    lines.extend(remarks.map(|remark| line(Attributes::none(), &remark, width)));
    let title = |(column, width): &(_, usize)| {
        let reversed = Attributes::from(Attribute::Reverse);
        let sorted = Attributes::from(Attribute::Bold) | Attribute::Underlined;
        let attributes = if *column == view.sort { sorted } else { reversed };
        [(reversed, " ".to_owned()), (attributes, pad_cell(*column, *width, column.title()))]
    };
    // A space between the titles, none before the first.
    lines.push(columns.iter().flat_map(title).skip(1).collect());

    let rows = view.rows(frame);
    let visible = height.saturating_sub(lines.len() + 1);
    view.limit_scroll(rows.len(), visible);
    for row in rows.iter().skip(view.scrolled).take(visible) {
        let cells: Vec<String> =
            columns.iter().map(|(column, width)| pad_cell(*column, *width, &column.text(row))).collect();
        lines.push(line(Attributes::none(), &cells.join(" "), width));
    }
    let hidden = rows.len().saturating_sub(view.scrolled + visible);
    lines.resize(height.saturating_sub(1), Line::new());
    lines.push(line(Attribute::Bold.into(), &last_line(view, hidden), width));
    lines
}

/// Formats the last line: the keys, or the filter while it is edited.
fn last_line(view: &View, hidden: usize) -> String {
    if view.editing {
        return format!("/{}_  Enter keeps the filter, Esc clears it", view.filter);
    }
    let filter = if view.filter.is_empty() { String::new() } else { format!("[/{}] ", view.filter) };
    let more = if hidden > 0 { format!("{hidden} more  ") } else { String::new() };
    format!("{filter}{more}{HELP}")
}
