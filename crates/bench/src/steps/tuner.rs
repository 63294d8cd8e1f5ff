//! `abey tune` as a process beside the load, which tells it what it sees.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use abey_linux::cpu::ProcessCpuClock;
use abey_linux::spawn::CommandPlace;
use abey_load::Report;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode as FileMode;
use nix::unistd::{Pid, mkfifo};
use tempfile::TempDir;

use super::Steps;
use crate::BenchError;

/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// A tuner that runs; it ends with this value.
#[derive(Debug)]
pub(crate) struct Tuner {
    child: Child,
    clock: ProcessCpuClock,
    output: File,
    errors: File,
    /// Where latencies are written; none where it sees them by itself.
    feed: Option<File>,
    _directory: TempDir,
}

impl Tuner {
    /// Starts `abey tune`, with `place` to say what is tuned and from where. With `feeds` it is told latencies.
    pub(crate) fn start(
        steps: &Steps,
        feeds: bool,
        client_cpu: u32,
        place: impl FnOnce(&mut Command),
    ) -> Result<Self, BenchError> {
        let io = |action| move |source| BenchError::Io { action, source };
        let directory = tempfile::tempdir().map_err(io("make a temporary directory"))?;
        let fifo: PathBuf = directory.path().join("latencies");
        let mut command = Command::new(&steps.abey);
        command.arg("tune").arg("--json").arg("--goal").arg(format!("p99={}", steps.goal.limit));
        command.args(["--interval", &format!("{}ms", steps.slice.as_millis())]);
        command.arg("--journals").arg(directory.path());
        let mut feed = None;
        if feeds {
            mkfifo(&fifo, FileMode::S_IRUSR | FileMode::S_IWUSR).map_err(|error| io("make a FIFO")(error.into()))?;
            // For both directions, so that opening it waits for nobody, and it has a writer from the beginning.
            feed = Some(OpenOptions::new().read(true).write(true).open(&fifo).map_err(io("open a FIFO"))?);
            command.arg("--latencies").arg(&fifo);
        }
        command.args(&steps.arguments);
        place(&mut command);
        command.on_cpus(&[client_cpu as usize]).dies_with_parent(Signal::SIGKILL);
        let temporary = || tempfile::tempfile().map_err(io("make a temporary file"));
        let (output, errors) = (temporary()?, temporary()?);
        let copy = |file: &File| file.try_clone().map_err(io("share a temporary file"));
        command.stdin(Stdio::null()).stdout(copy(&output)?).stderr(copy(&errors)?);
        let child = command.spawn().map_err(io("start abey tune"))?;
        let clock = ProcessCpuClock::of(child.id())?;
        Ok(Self { child, clock, output, errors, feed, _directory: directory })
    }

    /// Waits until it has begun, which it says.
    pub(crate) fn wait_until_it_says(&self, begin: &str) -> Result<(), BenchError> {
        let since = Instant::now();
        loop {
            let said = text(&self.errors);
            if said.contains(begin) {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                return Err(BenchError::Server {
                    server: "abey tune".to_owned(),
                    what: "does not begin".to_owned(),
                    output: format!(" and printed: {said}"),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Tells it what the load saw in a slice: the percentile that the goal is about, as what it has to keep.
    pub(crate) fn tell(&mut self, report: &Report, steps: &Steps) -> Result<(), BenchError> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(self.failed(&format!("ended ({status})")));
        }
        let Some(feed) = &mut self.feed else { return Ok(()) };
        let goal = match steps.goal.percentile {
            50 => report.p50_us,
            90 => report.p90_us,
            95 => report.p95_us,
            _ => report.p99_us,
        };
        let (Some(p50), Some(goal)) = (report.p50_us, goal) else { return Ok(()) };
        let line = serde_json::json!({
            "count": report.count,
            "p50_us": p50.min(goal),
            "p99_us": goal,
            "interval_ms": report.duration_s * 1e3,
        });
        // Less than a pipe holds, and it reads all the time: this waits for nobody.
        writeln!(feed, "{line}").map_err(|source| BenchError::Io { action: "write to a FIFO", source })
    }

    pub(crate) fn cpu_time(&self) -> Result<Duration, BenchError> {
        Ok(self.clock.read()?)
    }

    /// Ends it, and reads its rows.
    pub(crate) fn finish(mut self) -> Result<Vec<serde_json::Value>, BenchError> {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let since = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                _ if since.elapsed() > PATIENCE => return Err(self.failed("does not end")),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if !status.success() {
            return Err(self.failed(&format!("failed ({status})")));
        }
        let text = text(&self.output);
        let document: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| self.failed(&format!("gave no document ({error})")))?;
        match document["rows"].as_array() {
            Some(rows) if rows.len() > 1 => Ok(rows.clone()),
            _ => Err(self.failed("decided nothing")),
        }
    }

    fn failed(&self, what: &str) -> BenchError {
        let said = text(&self.errors);
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let output = if lines.is_empty() { String::new() } else { format!(" and printed: {}", lines.join("; ")) };
        BenchError::Server { server: "abey tune".to_owned(), what: what.to_owned(), output }
    }
}

/// All that was written to it. Its position is where the other process writes, and stays.
fn text(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |about| about.len()) as usize];
    let read = file.read_exact_at(&mut bytes, 0);
    read.map_or_else(|error| error.to_string(), |()| String::from_utf8_lossy(&bytes).into_owned())
}

impl Drop for Tuner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
