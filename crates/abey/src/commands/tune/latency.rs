//! Who sees how long requests take: a probe of our own, or somebody who writes it down for us.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use abey_tune::Latency;
use serde::Deserialize;

use crate::failure::Failure;

/// Somebody who sees how long requests take.
pub(crate) trait Witness {
    /// An interval of about this length begins. `changed`: under other settings than the last one.
    fn begin(&mut self, interval: Duration, changed: bool) -> Result<(), Failure>;

    /// Whether it has something to say of the interval.
    fn is_ready(&mut self) -> Result<bool, Failure>;

    /// What it saw; `None` if there was no request.
    fn take(&mut self) -> Result<Option<Latency>, Failure>;
}

/// What a witness says of an interval in which it saw no request: nothing, rather than that nobody watches.
pub(crate) const UNSEEN: Latency = Latency { count: 0, p50: Nanos::ZERO, p99: Nanos::ZERO };

/// Latencies that another program writes, a line of JSON for each interval of its own.
pub(crate) struct Feed {
    name: String,
    lines: Receiver<io::Result<String>>,
    /// When settings were last changed: what was seen across that says nothing.
    changed: Instant,
    seen: Vec<Latency>,
}

/// A line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Requests that were answered.
    count: u64,
    p50_us: f64,
    p99_us: f64,
    /// How long the interval was that ended when the line was written.
    interval_ms: f64,
}

impl Feed {
    /// Reads from a file or, more to the point, a FIFO; `-` is standard input.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let (sender, lines) = channel();
        let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        if path != Path::new("-") {
            // That it is not there shall be known before anything is changed; opening a FIFO may wait for its writer.
            path.metadata().map_err(|error| unreadable(&name, &error))?;
        }
        let from = path.to_owned();
        let started = std::thread::Builder::new().name("latencies".to_owned()).spawn(move || read(&from, &sender));
        started.map_err(|error| Failure::lacks(format!("cannot start a thread: {error}")))?;
        Ok(Self { name, lines, changed: Instant::now(), seen: Vec::new() })
    }

    fn read(&self, text: &str, now: Instant) -> Result<Option<Latency>, Failure> {
        let wrong = |why: String| {
            Failure::check(format!(
                "{}: `{text}` is no latency ({why}): write lines such as \
                 {{\"count\":5000,\"p50_us\":40.5,\"p99_us\":180.2,\"interval_ms\":250}}",
                self.name
            ))
        };
        let line: Line = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let Line { count, p50_us, p99_us, interval_ms } = line;
        let is_time = |value: f64| (0.0..=1e9).contains(&value);
        if ![p50_us, p99_us, interval_ms].into_iter().all(is_time) || p50_us > p99_us {
            return Err(wrong("its figures are no times".to_owned()));
        }
        let began = now.checked_sub(Duration::from_secs_f64(interval_ms / 1e3));
        let is_of_one_setting = began.is_some_and(|began| began >= self.changed);
        let time = |us: f64| Nanos::from_nanos((us * 1e3) as u64);
        let latency = Latency { count, p50: time(p50_us), p99: time(p99_us) };
        Ok((is_of_one_setting && count > 0).then_some(latency))
    }
}

/// Reads lines until their end. That of a FIFO is only the end of its writer: the next one may come.
fn read(from: &Path, sender: &Sender<io::Result<String>>) {
    let (is_input, is_fifo) = (from == Path::new("-"), from.metadata().is_ok_and(|about| about.file_type().is_fifo()));
    loop {
        let source: Box<dyn BufRead> = match File::open(from) {
            _ if is_input => Box::new(BufReader::new(io::stdin())),
            Ok(file) => Box::new(BufReader::new(file)),
            Err(error) => return drop(sender.send(Err(error))),
        };
        for line in source.lines() {
            if sender.send(line).is_err() {
                return;
            }
        }
        if !is_fifo {
            return;
        }
    }
}

fn unreadable(name: &str, error: &io::Error) -> Failure {
    Failure::usage(format!("cannot read latencies from {name}: {error}"))
}

impl Witness for Feed {
    fn begin(&mut self, _: Duration, changed: bool) -> Result<(), Failure> {
        if changed {
            self.changed = Instant::now();
            self.seen.clear();
        }
        Ok(())
    }

    fn is_ready(&mut self) -> Result<bool, Failure> {
        loop {
            let text = match self.lines.try_recv() {
                Ok(Ok(text)) => text,
                Ok(Err(error)) => return Err(unreadable(&self.name, &error)),
                Err(TryRecvError::Empty) => return Ok(!self.seen.is_empty()),
                Err(TryRecvError::Disconnected) => {
                    let ended = format!("{} has ended: nobody sees latencies any more", self.name);
                    return Err(Failure::check(ended));
                }
            };
            let latency = self.read(&text, Instant::now())?;
            self.seen.extend(latency);
        }
    }

    fn take(&mut self) -> Result<Option<Latency>, Failure> {
        self.is_ready()?;
        Ok(together(&std::mem::take(&mut self.seen)))
    }
}

/// Several intervals as one. The percentiles of the whole cannot be had from those of its parts: each is taken to weigh as
/// its requests do, and so lies between them.
fn together(seen: &[Latency]) -> Option<Latency> {
    let count: u64 = seen.iter().map(|one| one.count).sum();
    let mean = |time: fn(&Latency) -> Nanos| {
        let sum: u128 = seen.iter().map(|one| u128::from(one.count) * u128::from(time(one).as_nanos())).sum();
        Nanos::from_nanos(u64::try_from(sum / u128::from(count.max(1))).unwrap_or(u64::MAX))
    };
    (count > 0).then(|| Latency { count, p50: mean(|one| one.p50), p99: mean(|one| one.p99) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(changed: Instant) -> Feed {
        Feed { name: "latencies".to_owned(), lines: channel().1, changed, seen: Vec::new() }
    }

    #[test]
    fn what_was_seen_across_a_change_says_nothing() {
        let start = Instant::now();
        let feed = feed(start);
        let at = |ms: u64| start + Duration::from_millis(ms);
        let line = r#"{"count":10,"p50_us":40.5,"p99_us":180,"interval_ms":250}"#;
        assert_eq!(feed.read(line, at(249)).expect("a line"), None);
        let seen = feed.read(line, at(251)).expect("a line").expect("seen");
        assert_eq!((seen.count, seen.p50.as_nanos(), seen.p99.as_nanos()), (10, 40_500, 180_000));
        let none = r#"{"count":0,"p50_us":0,"p99_us":0,"interval_ms":250}"#;
        assert_eq!(feed.read(none, at(300)).expect("a line"), None);
    }

    #[test]
    fn other_lines_are_refused_with_what_to_write() {
        let feed = feed(Instant::now());
        for wrong in [
            "",
            "p99=3",
            r#"{"count":10}"#,
            r#"{"count":10,"p50_us":4,"p99_us":3,"interval_ms":250}"#,
            r#"{"count":10,"p50_us":4,"p99_us":8,"interval_ms":-1}"#,
            r#"{"count":10,"p50_us":4,"p99_us":8,"interval_ms":1,"p999_us":9}"#,
        ] {
            let said = feed.read(wrong, Instant::now()).expect_err(wrong).to_string();
            assert!(said.contains("write lines such as"), "{said}");
        }
    }

    #[test]
    fn several_intervals_weigh_as_their_requests() {
        let one = |count, us| Latency { count, p50: Nanos::from_micros(us), p99: Nanos::from_micros(2 * us) };
        assert_eq!(together(&[one(100, 10), one(300, 30)]), Some(one(400, 25)));
        assert_eq!(together(&[]), None);
    }
}
