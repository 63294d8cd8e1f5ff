//! What the tests of the command share: a test network of their own, the command run in it, and what must be as before.

#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

mod bed;
mod nobody;
mod running;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use abey_linux::library::find_library;
pub(crate) use bed::*;
pub(crate) use nobody::Nobody;
pub(crate) use running::*;

/// The command under test.
pub(crate) const ABEY: &str = env!("CARGO_BIN_EXE_abey");

/// How long anything that must happen may take. Nothing here depends on how long it does take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A name of a device or namespace that nobody else has.
pub(crate) fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Whether this is root; says why not.
pub(crate) fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root to make network namespaces");
    }
    root
}

/// Whether a program is there; says why not.
pub(crate) fn has(program: &str) -> bool {
    // Daemons are often installed where only root's PATH looks.
    let found = which(program).is_some();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Where a program is.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|place| place.join(program)).find(|file| file.is_file())
}

/// Makes a copy of a program, which can be started at once. Another process writes it: were it open for writing here, a test
/// that forks at that moment would have it open as well, and the kernel does not start what somebody may write to (ETXTBSY).
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let status = quiet("cp").arg("-L").args([from, to]).status().expect("cp starts");
    assert!(status.success(), "a copy of {}: {status}", from.display());
}

/// `libabey.so`, which `cargo test --workspace` builds. That it is missing is a failure and no reason to skip: a test
/// run that has not got it would show nothing and look well.
pub(crate) fn library() -> PathBuf {
    find_library(Path::new(ABEY)).unwrap_or_else(|error| {
        panic!("{error}; `cargo test --workspace` builds it, `cargo test -p abey` alone does not")
    })
}

fn quiet(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// `abey ...` where the test is.
pub(crate) fn abey(arguments: &[&str]) -> Command {
    let mut command = quiet(ABEY);
    command.args(arguments);
    command
}

/// Waits until something holds.
#[track_caller]
pub(crate) fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    await_some(what, || holds().then_some(()));
}

/// Waits until something is there.
#[track_caller]
pub(crate) fn await_some<T>(otherwise: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < DEADLINE, "{otherwise} after {} s", DEADLINE.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}
