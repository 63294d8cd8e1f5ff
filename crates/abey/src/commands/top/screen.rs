//! The terminal: draws frames, reads keys and restores the terminal at the end.

use std::io;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use abey_metrics::top::{Frame, Key, Monitor, View, headline, pad_cell};
use abey_supervise::signals::Signal;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};

use crate::failure::Failure;
use crate::signals;

/// Maximum time until a signal is handled.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Time until the first frame.
const FIRST_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum number of lines for datapaths and notes.
const MAX_REMARKS: usize = 4;

const HELP: &str = "q quit  <> sort  r reverse  / filter  p pause  +- interval  arrows scroll";

/// The terminal, restored on drop, and after a panic by the hook that `try_init` sets.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Runs until q, Ctrl-C, SIGINT, SIGTERM or SIGHUP, or for `count` frames.
pub(super) fn run(mut monitor: Monitor, mut view: View, count: Option<u32>) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::lacks(format!("cannot use the terminal: {error}; use --batch"));
    let stop = signals::stop_flag(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])?;
    let mut screen = Screen(ratatui::try_init().map_err(failed)?);
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
            screen.0.draw(|area| draw(area, &frame, &mut view)).map_err(failed)?;
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

fn draw(area: &mut ratatui::Frame<'_>, frame: &Frame, view: &mut View) {
    let whole = area.area();
    let (width, height) = (usize::from(whole.width), usize::from(whole.height));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let columns = View::columns(width);

    let mut lines = vec![Line::styled(headline(frame, view), bold)];
    let notes = frame.notes.iter().map(|note| format!("note: {note}"));
    lines.extend(frame.datapaths.iter().cloned().chain(notes).take(MAX_REMARKS).map(Line::raw));
    let title = |(column, width): &(_, usize)| {
        let style = if *column == view.sort { reversed.add_modifier(Modifier::BOLD) } else { reversed };
        let marked = if *column == view.sort { bold.add_modifier(Modifier::UNDERLINED) } else { style };
        [Span::styled(pad_cell(*column, *width, column.title()), marked), Span::styled(" ", reversed)]
    };
    lines.push(Line::from(columns.iter().flat_map(title).collect::<Vec<_>>()));

    let rows = view.rows(frame);
    let visible = height.saturating_sub(lines.len() + 1);
    view.limit_scroll(rows.len(), visible);
    for row in rows.iter().skip(view.scrolled).take(visible) {
        let cells: Vec<String> =
            columns.iter().map(|(column, width)| pad_cell(*column, *width, &column.text(row))).collect();
        lines.push(Line::raw(cells.join(" ")));
    }
    let hidden = rows.len().saturating_sub(view.scrolled + visible);
    let below = last_line(view, hidden);
    area.render_widget(Text::from(lines), Rect { height: whole.height.saturating_sub(1), ..whole });
    let bottom = Rect { y: whole.y + whole.height.saturating_sub(1), height: whole.height.min(1), ..whole };
    area.render_widget(Line::styled(below, bold), bottom);
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
