//! Helpers of the tests. A guest is a program with the library preloaded, usually this test binary itself.

#![allow(dead_code, reason = "each test file uses some of these")]

use std::env;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use abey_linux::library::{find_library, preload_value};

/// The variable with the name of the guest's test.
const GUEST: &str = "PRELOAD_TEST_GUEST";

pub(crate) fn library() -> PathBuf {
    find_library(&env::current_exe().expect("this program has a path")).expect("cargo built the library")
}

/// Returns a command with the library preloaded and these variables.
pub(crate) fn preloaded(program: impl AsRef<std::ffi::OsStr>, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", preload_value(&library(), None)).stdin(Stdio::null());
    command.envs(variables.iter().copied());
    command
}

/// Returns a command that runs the ignored test `name` of this binary as a guest.
pub(crate) fn guest(name: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = preloaded(env::current_exe().expect("this program has a path"), variables);
    command.args(["--ignored", "--exact", name, "--nocapture", "--test-threads=1"]).env(GUEST, name);
    command
}

/// Returns whether this process is the guest of this name, and not an `--ignored` run by hand.
pub(crate) fn is_guest(name: &str) -> bool {
    let is = env::var(GUEST).is_ok_and(|guest| guest == name);
    if is {
        // A guest that hangs fails its test.
        // SAFETY: takes no pointers.
        unsafe { libc::alarm(60) };
    }
    is
}

/// Runs a command that must succeed. Returns its standard error.
pub(crate) fn succeeds(mut command: Command) -> String {
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {}\n{errors}", output.status, String::from_utf8_lossy(&output.stdout));
    errors
}

/// Runs a command that must succeed with nothing on standard error.
pub(crate) fn succeeds_silently(command: Command) {
    assert_eq!(succeeds(command), "");
}

pub(crate) fn run(mut command: Command) -> Output {
    command.output().expect("the program starts")
}

/// Returns whether a program is installed. Prints a message if not.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}
