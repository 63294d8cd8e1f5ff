//! The server under test, as a child process.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abey_linux::spawn::CommandSetup;
use abey_testbed::spawn::SpawnExt;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

use crate::BenchError;

/// A running server, which is killed on drop.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    output: File,
    /// Its command line, for messages.
    name: String,
}

/// Time limit for a server to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(5);

impl Server {
    /// Starts the server and polls `ready` until it returns true. `name` is for messages.
    pub(crate) fn start(
        mut command: Command,
        name: String,
        stop: &AtomicBool,
        mut ready: impl FnMut(&Self) -> Result<bool, BenchError>,
    ) -> Result<Self, BenchError> {
        let io = |action| move |source| BenchError::Io { action, source };
        let output = tempfile::tempfile().map_err(io("make a temporary file"))?;
        command.unblock_signals(&SigSet::all()).dies_with_parent();
        // Its own process group: Ctrl-C at the terminal goes to the bench alone, which then stops the server.
        command.stdin(Stdio::null()).process_group(0);
        let copy = || output.try_clone().map_err(io("share a temporary file"));
        command.stdout(copy()?).stderr(copy()?);
        let child = command.spawn().map_err(|source| BenchError::Server {
            server: name.clone(),
            what: format!("does not start: {source}"),
            output: String::new(),
        })?;
        let mut server = Self { child, output, name };
        let since = Instant::now();
        while !ready(&server)? {
            if stop.load(Ordering::Relaxed) {
                return Err(BenchError::Stopped);
            }
            server.check()?;
            if since.elapsed() > START_TIMEOUT {
                return Err(server.failed(format!("is not ready after {} s", START_TIMEOUT.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its output so far.
    pub(crate) fn output(&self) -> String {
        let length = self.output.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = vec![0; length as usize];
        // The file position belongs to the server's writes.
        match self.output.read_exact_at(&mut bytes, 0) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::new(),
        }
    }

    /// Checks that the server is running.
    pub(crate) fn check(&mut self) -> Result<(), BenchError> {
        match self.child.try_wait() {
            Ok(Some(status)) => Err(self.failed(format!("ended ({status})"))),
            _ => Ok(()),
        }
    }

    /// Returns an error with the server's output.
    pub(crate) fn failed(&self, what: String) -> BenchError {
        let output = self.output();
        // An error message is one line.
        let lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let output = if lines.is_empty() { String::new() } else { format!(" and printed: {}", lines.join("; ")) };
        BenchError::Server { server: self.name.clone(), what, output }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Includes worker processes, which are in its process group.
        let _ = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
