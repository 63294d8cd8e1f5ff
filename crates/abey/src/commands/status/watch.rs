//! `abey status --watch`: repeated reports, redrawn in place on a terminal.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abey_supervise::signals::TERMINATION;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::failure::Failure;
use crate::output::print_text;
use crate::signals;

/// Makes a report, and calls its argument to wait for the measured interval.
type MakeReport<'a> = dyn Fn(&mut dyn FnMut()) -> Result<String, Failure> + 'a;

/// The interval of the first report, short so that it appears at once.
const FIRST_INTERVAL: Duration = Duration::from_millis(200);

/// Repeats the report until q or Ctrl-C on a terminal, or until the reader of a pipe closes it.
pub(super) fn run(seconds: f64, report: &MakeReport<'_>) -> Result<ExitCode, Failure> {
    if !(0.1..=60.0).contains(&seconds) {
        return Err(Failure::usage(format!("--watch {seconds} is out of range: choose from 0.1 to 60 seconds")));
    }
    let every = Duration::from_secs_f64(seconds);
    let stop = signals::stop_flag(&TERMINATION)?;
    let screen = if io::stdout().is_terminal() { Some(Screen::open()?) } else { None };
    let mut span = if screen.is_some() { FIRST_INTERVAL.min(every) } else { every };
    let mut shown_before = false;
    loop {
        let text = report(&mut || wait(span, screen.as_ref(), &stop))?;
        if stop.load(Ordering::Relaxed) {
            return Ok(ExitCode::SUCCESS);
        }
        match &screen {
            Some(screen) => screen.show(&text).map_err(|error| Failure::check(format!("cannot write: {error}")))?,
            None => {
                // A closed pipe ends the command: `print_text` ignores the error of the write.
                let separator = if shown_before { "\n" } else { "" };
                print_text(&format!("{separator}{text}"))?;
                if is_reader_closed() {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
        shown_before = true;
        span = every;
    }
}

/// Waits until the time is over, or q or a signal ends the command.
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
                // The end of the input means that the terminal was closed.
                if count == 0 || typed[..count].iter().any(|key| b"qQ".contains(key)) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            Ok(0) | Err(Errno::INTR) => {}
            Err(_) => return std::thread::sleep(left),
        }
    }
}

/// Returns whether standard output is a pipe with a closed read end.
fn is_reader_closed() -> bool {
    let output = io::stdout();
    let mut end = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut end, Some(&now)).is_ok_and(|count| count > 0) && end[0].revents().intersects(PollFlags::ERR)
}

/// The alternate screen of the terminal, with unbuffered keys. Dropping it restores the terminal.
struct Screen {
    /// The previous settings, if standard input is a terminal.
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
        // Alternate screen, hidden cursor.
        put("\x1b[?1049h\x1b[?25l").map_err(|error| Failure::check(format!("cannot write: {error}")))?;
        Ok(screen)
    }

    /// Shows the part of the text that fits.
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

/// Returns a full screen: each line cut to the width and cleared to its end, and a last row with the key that ends it.
fn page(text: &str, columns: usize, rows: usize) -> String {
    // A terminal may report a size of 0.
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
    fn a_page_fits_the_screen() {
        let text = "first line\nsecond\nthird\nfourth\n";
        assert_eq!(page(text, 6, 3), "\x1b[Hfirst \x1b[K\r\nsecond\x1b[K\r\nq ends\x1b[J");
        let wide = page(text, 80, 3);
        assert!(wide.contains("first line\x1b[K") && wide.ends_with("q ends, 2 more lines below\x1b[J"), "{wide:?}");
        let tall = page(text, 80, 24);
        assert!(tall.contains("fourth") && tall.ends_with("q ends\x1b[J"), "{tall:?}");
        assert!(page("", 0, 0).ends_with("q ends\x1b[J"));
    }
}
