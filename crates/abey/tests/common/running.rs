//! Processes of a test: they are watched while they run, and end with it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use abey_linux::process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::await_some;

/// How long a command may take to its end: some measure for ten seconds where nothing else runs.
const TO_THE_END: Duration = Duration::from_secs(120);

/// A process that ends with this value, asked first so that it can put back what it changed.
///
/// It prints to files: the end of a pipe would come only when everything it leaves behind has ended as well.
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
        Self { child: command.spawn().expect("the command starts"), out, errors }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn terminate(self) -> Finished {
        self.signal(Signal::SIGTERM);
        self.end()
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Finished {
        let status = self.wait();
        Finished { status, out: text(&self.out), errors: self.errors_so_far() }
    }

    /// What it has printed on standard output up to now.
    pub(crate) fn out_so_far(&self) -> String {
        text(&self.out)
    }

    /// What it has printed on standard error up to now.
    pub(crate) fn errors_so_far(&self) -> String {
        text(&self.errors)
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(since.elapsed() < TO_THE_END, "the command did not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_some()
    }

    /// The processes below it that are called `name`, once there is one.
    pub(crate) fn await_program(&self, name: &str) -> Vec<u32> {
        await_some(&format!("no process `{name}`"), || {
            let found = self.programs(name);
            (!found.is_empty()).then_some(found)
        })
    }

    /// The processes below it that are called `name`.
    pub(crate) fn programs(&self, name: &str) -> Vec<u32> {
        let mut below = process::descendants(self.pid()).expect("/proc");
        below.retain(|pid| comm(*pid).as_deref() == Some(name) && !is_guard(*pid));
        below
    }

    /// The guard process of an `abey run`.
    pub(crate) fn await_guard(&self) -> u32 {
        await_some("no guard", || {
            process::descendants(self.pid()).expect("/proc").into_iter().find(|pid| is_guard(*pid))
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what the command said: {}", self.errors_so_far());
        }
        if self.child.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        self.signal(Signal::SIGTERM);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(5) {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a file holds, without moving where its writers are.
fn text(file: &fs::File) -> String {
    let mut bytes = vec![0; file.metadata().expect("a file").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A process outside of any [`Running`] that is killed with this value.
pub(crate) struct Stray(pub(crate) u32);

impl Drop for Stray {
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

/// Whether the process runs; one that has ended and was not waited for does not.
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

    /// It refused with this status, one sentence that has these words, and nothing on standard output.
    #[track_caller]
    pub(crate) fn assert_refused(&self, code: i32, words: &[&str]) {
        self.assert_sentence(code, words);
        assert_eq!(self.out, "");
    }

    /// As [`Finished::assert_refused`], where a program may have printed something before.
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
