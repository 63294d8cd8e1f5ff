//! The terminal: draws frames, takes keys, and leaves it as it was.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};

use super::batch::headline;
use super::frame::{Frame, Looker};
use super::view::{Key, View, cell};
use crate::failure::Failure;

/// A signal is seen within this time.
const GLANCE: Duration = Duration::from_millis(250);
/// The first look is short, so that something is there at once.
const FIRST: Duration = Duration::from_millis(200);
/// Most lines about datapaths and about what could not be read.
const REMARKS: usize = 4;

const HELP: &str = "q quit  <> sort  r reverse  / filter  p pause  +- interval  arrows scroll";

/// The terminal, put back with the end of this value; after a panic by the hook that is set with it.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Until q, Ctrl-C, SIGINT or SIGTERM, or `count` looks.
pub(super) fn run(mut looker: Looker, mut view: View, count: Option<u32>) -> Result<ExitCode, Failure> {
    let failed = |error: io::Error| Failure::lacks(format!("cannot use the terminal: {error}; say --batch"));
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    }
    let mut screen = Screen(ratatui::try_init().map_err(failed)?);
    let mut frame = Frame::default();
    let mut last = Instant::now();
    let mut taken = 0;
    let mut redraw = true;
    while !stop.load(Ordering::Relaxed) {
        let span = if taken == 0 { FIRST } else { Duration::from(view.interval) };
        if !view.paused && last.elapsed() >= span {
            if count.is_some_and(|count| taken >= count) {
                break;
            }
            frame = looker.look();
            last = Instant::now();
            taken += 1;
            redraw = true;
        }
        if redraw {
            screen.0.draw(|area| draw(area, &frame, &mut view)).map_err(failed)?;
            redraw = false;
        }
        let left = if view.paused { GLANCE } else { span.saturating_sub(last.elapsed()).min(GLANCE) };
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
    lines.extend(frame.datapaths.iter().cloned().chain(notes).take(REMARKS).map(Line::raw));
    let title = |(column, width): &(_, usize)| {
        let style = if *column == view.sort { reversed.add_modifier(Modifier::BOLD) } else { reversed };
        let marked = if *column == view.sort { bold.add_modifier(Modifier::UNDERLINED) } else { style };
        [Span::styled(cell(*column, *width, column.title()), marked), Span::styled(" ", reversed)]
    };
    lines.push(Line::from(columns.iter().flat_map(title).collect::<Vec<_>>()));

    let rows = view.rows(frame);
    let room = height.saturating_sub(lines.len() + 1);
    view.limit_scroll(rows.len(), room);
    for row in rows.iter().skip(view.scrolled).take(room) {
        let cells: Vec<String> =
            columns.iter().map(|(column, width)| cell(*column, *width, &column.cell(row))).collect();
        lines.push(Line::raw(cells.join(" ")));
    }
    let hidden = rows.len().saturating_sub(view.scrolled + room);
    let below = last_line(view, hidden);
    area.render_widget(Text::from(lines), Rect { height: whole.height.saturating_sub(1), ..whole });
    let bottom = Rect { y: whole.y + whole.height.saturating_sub(1), height: whole.height.min(1), ..whole };
    area.render_widget(Line::styled(below, bold), bottom);
}

/// What the keys do, and what is done at the moment.
fn last_line(view: &View, hidden: usize) -> String {
    if view.editing {
        return format!("/{}_  Enter keeps the filter, Esc shows all", view.filter);
    }
    let filter = if view.filter.is_empty() { String::new() } else { format!("[/{}] ", view.filter) };
    let more = if hidden > 0 { format!("{hidden} more  ") } else { String::new() };
    format!("{filter}{more}{HELP}")
}
