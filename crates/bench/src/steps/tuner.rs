//! `abey tune` as a child process, which gets latencies from the load.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use abey_linux::cpu::ProcessCpuClock;
use abey_linux::spawn::CommandSetup;
use abey_loadgen::Report;
use abey_testbed::spawn::SpawnExt;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::stat::Mode as FileMode;
use nix::unistd::{Pid, mkfifo};
use tempfile::TempDir;

use super::Steps;
use crate::BenchError;

/// Time limit for the tuner to begin and to end: a limit that only a hang reaches.
const HANG_LIMIT: Duration = Duration::from_secs(10);

/// A running tuner, which is killed on drop.
#[derive(Debug)]
pub(crate) struct Tuner {
    child: Child,
    clock: ProcessCpuClock,
    output: File,
    errors: File,
    /// FIFO of latencies; `None` if the tuner reads latencies from the datapath.
    latencies: Option<File>,
    _directory: TempDir,
}

impl Tuner {
    /// Starts `abey tune`; `configure` adds the target. With `with_latencies` the tuner gets latencies from the load.
    pub(crate) fn start(
        steps: &Steps,
        with_latencies: bool,
        client_cpu: u32,
        configure: impl FnOnce(&mut Command),
    ) -> Result<Self, BenchError> {
        let io = |action| move |source| BenchError::Io { action, source };
        let directory = tempfile::tempdir().map_err(io("make a temporary directory"))?;
        let fifo: PathBuf = directory.path().join("latencies");
        let mut command = Command::new(&steps.abey);
        command.arg("tune").arg("--json").arg("--goal").arg(format!("p99={}", steps.goal.limit));
        command.args(["--interval", &format!("{}ms", steps.slice.as_millis())]);
        command.arg("--journals").arg(directory.path());
        let mut latencies = None;
        if with_latencies {
            mkfifo(&fifo, FileMode::S_IRUSR | FileMode::S_IWUSR).map_err(|error| io("make a FIFO")(error.into()))?;
            // Opened for reading and writing, so that the open does not block and the FIFO always has a writer.
            latencies = Some(OpenOptions::new().read(true).write(true).open(&fifo).map_err(io("open a FIFO"))?);
            command.arg("--latencies").arg(&fifo);
        }
        command.args(&steps.arguments);
        configure(&mut command);
        command.on_cpus(&[client_cpu as usize]).unblock_signals(&SigSet::all()).dies_with_parent();
        let temporary = || tempfile::tempfile().map_err(io("make a temporary file"));
        let (output, errors) = (temporary()?, temporary()?);
        let copy = |file: &File| file.try_clone().map_err(io("share a temporary file"));
        command.stdin(Stdio::null()).stdout(copy(&output)?).stderr(copy(&errors)?);
        let child = command.spawn().map_err(io("start abey tune"))?;
        let clock = ProcessCpuClock::of(child.id())?;
        Ok(Self { child, clock, output, errors, latencies, _directory: directory })
    }

    /// Waits until standard error contains `expected`, which shows that the tuner has begun.
    pub(crate) fn wait_for_output(&self, expected: &str) -> Result<(), BenchError> {
        let since = Instant::now();
        loop {
            let errors = text(&self.errors);
            if errors.contains(expected) {
                return Ok(());
            }
            if since.elapsed() > HANG_LIMIT {
                return Err(BenchError::Server {
                    server: "abey tune".to_owned(),
                    what: "does not begin".to_owned(),
                    output: format!(" and printed: {errors}"),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes the latencies of a slice to the tuner, with the goal's percentile as `p99_us`.
    pub(crate) fn report_latency(&mut self, report: &Report, steps: &Steps) -> Result<(), BenchError> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(self.failed(&format!("ended ({status})")));
        }
        let Some(latencies) = &mut self.latencies else { return Ok(()) };
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
        // Does not block: the line is shorter than a pipe's buffer, and the tuner reads continuously.
        writeln!(latencies, "{line}").map_err(|source| BenchError::Io { action: "write to a FIFO", source })
    }

    pub(crate) fn cpu_time(&self) -> Result<Duration, BenchError> {
        Ok(self.clock.read()?)
    }

    /// Stops the tuner and returns its rows.
    pub(crate) fn finish(mut self) -> Result<Vec<serde_json::Value>, BenchError> {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let since = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                _ if since.elapsed() > HANG_LIMIT => return Err(self.failed("does not end")),
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
            _ => Err(self.failed("made no decision")),
        }
    }

    fn failed(&self, what: &str) -> BenchError {
        let errors = text(&self.errors);
        let lines: Vec<&str> = errors.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let output = if lines.is_empty() { String::new() } else { format!(" and printed: {}", lines.join("; ")) };
        BenchError::Server { server: "abey tune".to_owned(), what: what.to_owned(), output }
    }
}

/// Returns the file's content. Leaves the file position, which belongs to the other process's writes.
fn text(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |metadata| metadata.len()) as usize];
    let read = file.read_exact_at(&mut bytes, 0);
    read.map_or_else(|error| error.to_string(), |()| String::from_utf8_lossy(&bytes).into_owned())
}

impl Drop for Tuner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
