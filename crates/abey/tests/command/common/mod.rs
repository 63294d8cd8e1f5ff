//! Shared by the tests of the command: the test network, commands that run in it, and assertions about what they restore.

mod running;
mod testbed;
mod unprivileged;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use abey_linux::library::find_library;
pub(crate) use running::*;
pub(crate) use testbed::*;
pub(crate) use unprivileged::UnprivilegedUser;

/// The command under test.
pub(crate) const ABEY: &str = env!("CARGO_BIN_EXE_abey");

/// Limit for anything that must happen: only a hang reaches it. No assertion depends on the time that something takes.
pub(crate) const HANG_LIMIT: Duration = Duration::from_secs(120);

/// Returns a name for a device or namespace that is unique on this machine.
pub(crate) fn unique(prefix: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Returns whether this process runs as root. Prints a line if it does not.
pub(crate) fn is_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root to make network namespaces");
    }
    root
}

/// Returns whether a program is installed. Prints a line if it is not.
pub(crate) fn has(program: &str) -> bool {
    let found = which(program).is_some();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Returns the path of a program. Besides PATH it searches the directories of daemons, which are often only in root's PATH.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|place| place.join(program)).find(|file| file.is_file())
}

/// Copies a program so that it can be started at once. `cp` writes the copy: if this process had it open for writing, a child
/// that another test forks at that moment would have it open as well, and `execve` would fail with ETXTBSY.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    let status = quiet("cp").arg("-L").args([from, to]).status().expect("cp starts");
    assert!(status.success(), "a copy of {}: {status}", from.display());
}

/// Returns the path of `libabey.so`, which `cargo test --workspace` builds. If it is missing the test fails and is not skipped:
/// otherwise a test run without it would pass without testing anything.
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

/// Returns `abey ARGUMENTS` in the namespace of the test.
pub(crate) fn abey(arguments: &[&str]) -> Command {
    let mut command = quiet(ABEY);
    command.args(arguments);
    command
}

/// Waits until `holds` returns true. `otherwise` is the message of the panic after [`HANG_LIMIT`].
#[track_caller]
pub(crate) fn await_that(otherwise: &str, mut holds: impl FnMut() -> bool) {
    await_some(otherwise, || holds().then_some(()));
}

/// Waits until `find` returns a value. `otherwise` is the message of the panic after [`HANG_LIMIT`].
#[track_caller]
pub(crate) fn await_some<T>(otherwise: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(since.elapsed() < HANG_LIMIT, "{otherwise} after {} s", HANG_LIMIT.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}
