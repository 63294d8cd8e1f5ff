//! Sources of latencies: requests of our own ([`crate::probe`]), or a file that a client writes.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use abey_tune::Latency;
use serde::Deserialize;

use crate::TuneError;

/// Measures how long requests take.
pub trait LatencySource {
    /// Begins an interval of about this length. `changed`: the settings differ from those of the last interval.
    ///
    /// # Errors
    /// When the source has ended.
    fn begin(&mut self, interval: Duration, changed: bool) -> Result<(), TuneError>;

    /// Returns whether there is a figure for the interval.
    ///
    /// # Errors
    /// When the source has ended.
    fn is_ready(&mut self) -> Result<bool, TuneError>;

    /// Returns the latencies of the interval; `None` if there was no request.
    ///
    /// # Errors
    /// When the source has ended.
    fn take(&mut self) -> Result<Option<Latency>, TuneError>;
}

/// The latency of an interval without requests, where there is a source. (`None` in a sample means that there is no source.)
pub(crate) const NO_REQUESTS: Latency = Latency { count: 0, p50: Nanos::ZERO, p99: Nanos::ZERO };

/// Latencies that another program writes, one line of JSON for each of its intervals.
pub struct LatencyFile {
    name: String,
    lines: Receiver<io::Result<String>>,
    /// When settings last changed: an interval that contains a change is ignored.
    changed: Instant,
    measured: Vec<Latency>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Requests that were answered.
    count: u64,
    p50_us: f64,
    p99_us: f64,
    /// Length of the interval, which ended when the line was written.
    interval_ms: f64,
}

impl LatencyFile {
    /// Starts reading a file or a FIFO; `-` is standard input.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn open(path: &Path) -> Result<Self, TuneError> {
        let (sender, lines) = channel();
        let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        if path != Path::new("-") {
            // Checked here, before anything is changed, because opening a FIFO may wait for its writer.
            path.metadata().map_err(|error| unreadable(&name, &error))?;
        }
        let from = path.to_owned();
        let started = std::thread::Builder::new().name("latencies".to_owned()).spawn(move || read(&from, &sender));
        started.map_err(|error| TuneError::unsupported(format!("cannot start a thread: {error}")))?;
        Ok(Self { name, lines, changed: Instant::now(), measured: Vec::new() })
    }

    fn read(&self, text: &str, now: Instant) -> Result<Option<Latency>, TuneError> {
        let wrong = |reason: String| {
            TuneError::failed(format!(
                "{}: `{text}` is no latency ({reason}): write lines such as \
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
        let is_after_change = began.is_some_and(|began| began >= self.changed);
        let time = |us: f64| Nanos::from_nanos((us * 1e3) as u64);
        let latency = Latency { count, p50: time(p50_us), p99: time(p99_us) };
        Ok((is_after_change && count > 0).then_some(latency))
    }
}

/// Reads lines until the end of the file. A FIFO ends with its writer, and is opened again for the next one.
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

fn unreadable(name: &str, error: &io::Error) -> TuneError {
    TuneError::usage(format!("cannot read latencies from {name}: {error}"))
}

impl LatencySource for LatencyFile {
    fn begin(&mut self, _: Duration, changed: bool) -> Result<(), TuneError> {
        if changed {
            self.changed = Instant::now();
            self.measured.clear();
        }
        Ok(())
    }

    fn is_ready(&mut self) -> Result<bool, TuneError> {
        loop {
            let text = match self.lines.try_recv() {
                Ok(Ok(text)) => text,
                Ok(Err(error)) => return Err(unreadable(&self.name, &error)),
                Err(TryRecvError::Empty) => return Ok(!self.measured.is_empty()),
                Err(TryRecvError::Disconnected) => {
                    let ended = format!("{} has ended: there are no latencies to tune by any more", self.name);
                    return Err(TuneError::failed(ended));
                }
            };
            let latency = self.read(&text, Instant::now())?;
            self.measured.extend(latency);
        }
    }

    fn take(&mut self) -> Result<Option<Latency>, TuneError> {
        self.is_ready()?;
        Ok(combine(&std::mem::take(&mut self.measured)))
    }
}

/// Combines several intervals. Percentiles of the whole cannot be computed from those of its parts: this is their mean, weighted by
/// requests, and lies between them.
fn combine(measured: &[Latency]) -> Option<Latency> {
    let count: u64 = measured.iter().map(|one| one.count).sum();
    let mean = |time: fn(&Latency) -> Nanos| {
        let sum: u128 = measured.iter().map(|one| u128::from(one.count) * u128::from(time(one).as_nanos())).sum();
        Nanos::from_nanos(u64::try_from(sum / u128::from(count.max(1))).unwrap_or(u64::MAX))
    };
    (count > 0).then(|| Latency { count, p50: mean(|one| one.p50), p99: mean(|one| one.p99) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(changed: Instant) -> LatencyFile {
        LatencyFile { name: "latencies".to_owned(), lines: channel().1, changed, measured: Vec::new() }
    }

    #[test]
    fn an_interval_that_contains_a_change_is_ignored() {
        let start = Instant::now();
        let file = file(start);
        let at = |ms: u64| start + Duration::from_millis(ms);
        let line = r#"{"count":10,"p50_us":40.5,"p99_us":180,"interval_ms":250}"#;
        assert_eq!(file.read(line, at(249)).expect("a line"), None);
        let measured = file.read(line, at(251)).expect("a line").expect("measured");
        assert_eq!((measured.count, measured.p50.as_nanos(), measured.p99.as_nanos()), (10, 40_500, 180_000));
        let none = r#"{"count":0,"p50_us":0,"p99_us":0,"interval_ms":250}"#;
        assert_eq!(file.read(none, at(300)).expect("a line"), None);
    }

    #[test]
    fn malformed_lines_are_refused_with_an_example() {
        let file = file(Instant::now());
        for wrong in [
            "",
            "p99=3",
            r#"{"count":10}"#,
            r#"{"count":10,"p50_us":4,"p99_us":3,"interval_ms":250}"#,
            r#"{"count":10,"p50_us":4,"p99_us":8,"interval_ms":-1}"#,
            r#"{"count":10,"p50_us":4,"p99_us":8,"interval_ms":1,"p999_us":9}"#,
        ] {
            let message = file.read(wrong, Instant::now()).expect_err(wrong).to_string();
            assert!(message.contains("write lines such as"), "{message}");
        }
    }

    #[test]
    fn intervals_are_weighted_by_their_requests() {
        let one = |count, us| Latency { count, p50: Nanos::from_micros(us), p99: Nanos::from_micros(2 * us) };
        assert_eq!(combine(&[one(100, 10), one(300, 30)]), Some(one(400, 25)));
        assert_eq!(combine(&[]), None);
    }
}
