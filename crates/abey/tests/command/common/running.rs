//! Child processes of a test, which end with it, and the results of commands.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use abey_linux::process;
use abey_testbed::spawn::SpawnExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::await_some;

/// Limit for a command to its end: only a hang reaches it. Some commands measure for ten seconds on an idle machine.
const COMMAND_HANG_LIMIT: Duration = Duration::from_secs(300);

/// Time between SIGTERM and SIGKILL when a [`Running`] is dropped.
const TERMINATION_LIMIT: Duration = Duration::from_secs(20);

/// A child process that is ended when this value is dropped: by SIGTERM, so that it can restore what it changed, and after a
/// while by SIGKILL.
///
/// It prints to files: a pipe would stay open until every process that it leaves behind has ended as well.
pub(crate) struct Running {
    child: Child,
    out: fs::File,
    errors: fs::File,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let file = || tempfile::tempfile().expect("a temporary file");
        let (out, errors) = (file(), file());
        command.stdout(out.try_clone().expect("shared")).stderr(errors.try_clone().expect("shared"));
        Self { child: command.default_signals().spawn().expect("the command starts"), out, errors }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn terminate(self) -> Finished {
        self.signal(Signal::SIGTERM);
        self.end()
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Finished {
        let status = self.wait();
        Finished { status, out: text(&self.out), errors: self.errors_so_far() }
    }

    /// Returns what it has printed on standard output up to now.
    pub(crate) fn out_so_far(&self) -> String {
        text(&self.out)
    }

    /// Returns what it has printed on standard error up to now.
    pub(crate) fn errors_so_far(&self) -> String {
        text(&self.errors)
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(since.elapsed() < COMMAND_HANG_LIMIT, "the command did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// Waits for a descendant with this name, and returns all of them.
    pub(crate) fn await_program(&self, name: &str) -> Vec<u32> {
        await_some(&format!("no process `{name}`"), || {
            let found = self.programs(name);
            (!found.is_empty()).then_some(found)
        })
    }

    /// Returns its descendants with this name.
    pub(crate) fn programs(&self, name: &str) -> Vec<u32> {
        let mut below = process::descendants(self.pid()).expect("/proc");
        below.retain(|pid| comm(*pid).as_deref() == Some(name) && !is_guard(*pid));
        below
    }

    /// Waits for the guard process of `abey run` and returns its ID.
    pub(crate) fn await_guard(&self) -> u32 {
        await_some("no guard", || {
            process::descendants(self.pid()).expect("/proc").into_iter().find(|pid| is_guard(*pid))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("standard error of the command: {}", self.errors_so_far());
        }
        if self.child.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        self.signal(Signal::SIGTERM);
        let since = Instant::now();
        while since.elapsed() < TERMINATION_LIMIT {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the contents of a file without moving the file offset, which its writers share.
fn text(file: &fs::File) -> String {
    let mut bytes = vec![0; file.metadata().expect("a file").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A process that is no child of the test, killed when this value is dropped.
pub(crate) struct KillOnDrop(pub(crate) u32);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.cast_signed()), Signal::SIGKILL);
    }
}

fn comm(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

fn is_guard(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(b"guard")
}

/// Returns whether the process runs. A zombie does not.
pub(crate) fn runs(pid: u32) -> bool {
    process::start_time(pid).is_some()
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).expect("a process of this test");
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Finished {
    #[track_caller]
    pub(crate) fn assert_status(&self, code: i32) -> &Self {
        assert_eq!((self.status.code(), self.status.signal()), (Some(code), None), "{self:?}");
        self
    }

    /// Asserts the exit status, one line on standard error that has these words, and nothing on standard output.
    #[track_caller]
    pub(crate) fn assert_refused(&self, code: i32, words: &[&str]) {
        self.assert_sentence(code, words);
        assert_eq!(self.out, "");
    }

    /// Asserts the same as [`Finished::assert_refused`] except that standard output may have text.
    #[track_caller]
    pub(crate) fn assert_sentence(&self, code: i32, words: &[&str]) {
        self.assert_status(code);
        assert_eq!(self.errors.lines().count(), 1, "more than one line: {self:?}");
        assert!(self.errors.starts_with("abey: "), "{self:?}");
        assert!(words.iter().all(|word| self.errors.contains(word)), "not all of {words:?} in {:?}", self.errors);
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command that ends by itself.
pub(crate) fn finish(command: Command) -> Finished {
    Running::start(command).end()
}
