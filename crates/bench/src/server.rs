//! A server under test: a child that is started, waited for, watched, and ended.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abey_linux::spawn::CommandPlace;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::BenchError;

/// A server that runs; it ends with this value.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    output: File,
    shown: String,
}

/// How long a server may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(5);

impl Server {
    /// Starts the server, which is called `shown`, and waits until it is `ready`, which is asked again and again.
    pub(crate) fn start(
        mut command: Command,
        shown: String,
        stop: &AtomicBool,
        mut ready: impl FnMut(&Self) -> Result<bool, BenchError>,
    ) -> Result<Self, BenchError> {
        let io = |action| move |source| BenchError::Io { action, source };
        let output = tempfile::tempfile().map_err(io("make a temporary file"))?;
        command.dies_with_parent(Signal::SIGKILL);
        // A process group of its own: Ctrl-C at the terminal is for the bench, which then ends the server.
        command.stdin(Stdio::null()).process_group(0);
        let copy = || output.try_clone().map_err(io("share a temporary file"));
        command.stdout(copy()?).stderr(copy()?);
        let child = command.spawn().map_err(|source| BenchError::Server {
            server: shown.clone(),
            what: format!("does not start: {source}"),
            output: String::new(),
        })?;
        let mut server = Self { child, output, shown };
        let since = Instant::now();
        while !ready(&server)? {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            server.check()?;
            if since.elapsed() > PATIENCE {
                return Err(server.failed(format!("is not ready after {} s", PATIENCE.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub(crate) fn output(&self) -> String {
        let length = self.output.metadata().map_or(0, |about| about.len());
        let mut bytes = vec![0; length as usize];
        // The file's own position is where the server writes.
        match self.output.read_exact_at(&mut bytes, 0) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::new(),
        }
    }

    /// That it still runs.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        match self.child.try_wait() {
            Ok(Some(status)) => Err(self.failed(format!("ended ({status})"))),
            _ => Ok(()),
        }
    }

    /// An error about the server, with what it printed.
    pub(crate) fn failed(&self, what: String) -> BenchError {
        let output = self.output();
        // An error is one line, whatever the server printed.
        let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let output = if lines.is_empty() { String::new() } else { format!(" and printed: {}", lines.join("; ")) };
        BenchError::Server { server: self.shown.clone(), what, output }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // With the workers that it may have, which are of its group.
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
