//! `abey status --watch`: the same again and again, in place on a terminal.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::failure::Failure;
use crate::output::print_text;

/// What is shown: a text that took as long to find out as the pause that it is given.
type Look<'a> = dyn Fn(&mut dyn FnMut()) -> Result<String, Failure> + 'a;

/// The first look is short, so that something is there at once.
const FIRST: Duration = Duration::from_millis(200);

/// Until q or Ctrl-C on a terminal; elsewhere until whoever reads has seen enough.
pub(super) fn run(seconds: f64, look: &Look<'_>) -> Result<ExitCode, Failure> {
    if !(0.1..=60.0).contains(&seconds) {
        return Err(Failure::usage(format!("--watch {seconds} is out of range: it goes from 0.1 to 60 seconds")));
    }
    let every = Duration::from_secs_f64(seconds);
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))?;
    }
    let screen = if io::stdout().is_terminal() { Some(Screen::open()?) } else { None };
    let mut span = if screen.is_some() { FIRST.min(every) } else { every };
    let mut shown_before = false;
    loop {
        let text = look(&mut || wait(span, screen.as_ref(), &stop))?;
        if stop.load(Ordering::Relaxed) {
            return Ok(ExitCode::SUCCESS);
        }
        match &screen {
            Some(screen) => screen.show(&text).map_err(|error| Failure::check(format!("cannot write: {error}")))?,
            None => {
                // A reader that is gone ends it: the next write would raise SIGPIPE's error again.
                let separator = if shown_before { "\n" } else { "" };
                print_text(&format!("{separator}{text}"))?;
                if is_reader_gone() {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
        shown_before = true;
        span = every;
    }
}

/// Waits, but for a key or a signal that ends it all.
fn wait(span: Duration, screen: Option<&Screen>, stop: &AtomicBool) {
    let end = Instant::now() + span;
    while !stop.load(Ordering::Relaxed) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let input = io::stdin();
        let mut keys = [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)];
        let watched = if screen.is_some_and(|screen| screen.before.is_some()) { &mut keys[..] } else { &mut [] };
        match poll(watched, Some(&timeout)) {
            Ok(1..) => {
                let mut typed = [0; 16];
                let count = rustix::io::read(&input, &mut typed).unwrap_or(0);
                // The end of the input is no key: there is nobody any more.
                if count == 0 || typed[..count].iter().any(|key| b"qQ".contains(key)) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            Ok(0) | Err(Errno::INTR) => {}
            Err(_) => return std::thread::sleep(left),
        }
    }
}

/// Whether nobody reads standard output any more (a pipe whose other end is closed).
fn is_reader_gone() -> bool {
    let output = io::stdout();
    let mut end = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut end, Some(&now)).is_ok_and(|count| count > 0) && end[0].revents().intersects(PollFlags::ERR)
}

/// The terminal's other screen, with keys that come one by one. What was there comes back with the end of this value.
struct Screen {
    /// How the terminal was, if keys come from one.
    before: Option<Termios>,
}

impl Screen {
    fn open() -> Result<Self, Failure> {
        let failed = |error: Errno| Failure::lacks(format!("cannot set up the terminal: {error}"));
        let input = io::stdin();
        let before = if input.is_terminal() { Some(tcgetattr(&input).map_err(failed)?) } else { None };
        if let Some(before) = &before {
            let mut keys = before.clone();
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            keys.special_codes[SpecialCodeIndex::VMIN] = 1;
            keys.special_codes[SpecialCodeIndex::VTIME] = 0;
            tcsetattr(&input, OptionalActions::Now, &keys).map_err(failed)?;
        }
        let screen = Self { before };
        // The other screen, and no cursor.
        put("\x1b[?1049h\x1b[?25l").map_err(|error| Failure::check(format!("cannot write: {error}")))?;
        Ok(screen)
    }

    /// As much of the text as there is room for.
    fn show(&self, text: &str) -> io::Result<()> {
        let size = tcgetwinsize(io::stdout())?;
        put(&page(text, size.ws_col.into(), size.ws_row.into()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = put("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

fn put(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A full screen: each line cut to the width and the rest of it cleared, the last row telling how to leave.
fn page(text: &str, columns: usize, rows: usize) -> String {
    // A terminal that does not know its size has none to keep to.
    let (columns, rows) = (if columns == 0 { 80 } else { columns }, if rows == 0 { 24 } else { rows });
    let cut = |line: &str| line.chars().take(columns).collect::<String>();
    let mut out = "\x1b[H".to_owned();
    let lines: Vec<&str> = text.lines().collect();
    let room = rows.saturating_sub(1);
    for line in lines.iter().take(room) {
        out += &format!("{}\x1b[K\r\n", cut(line));
    }
    let hidden = lines.len().saturating_sub(room);
    let more = if hidden > 0 { format!(", {hidden} more lines below") } else { String::new() };
    out + &cut(&format!("q ends{more}")) + "\x1b[J"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_keeps_to_the_screen() {
        let text = "first line\nsecond\nthird\nfourth\n";
        assert_eq!(page(text, 6, 3), "\x1b[Hfirst \x1b[K\r\nsecond\x1b[K\r\nq ends\x1b[J");
        let wide = page(text, 80, 3);
        assert!(wide.contains("first line\x1b[K") && wide.ends_with("q ends, 2 more lines below\x1b[J"), "{wide:?}");
        let tall = page(text, 80, 24);
        assert!(tall.contains("fourth") && tall.ends_with("q ends\x1b[J"), "{tall:?}");
        assert!(page("", 0, 0).ends_with("q ends\x1b[J"));
    }
}
