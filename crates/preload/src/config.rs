//! The process's configuration, read from the environment once, and what happens if a part of it cannot be applied.

use std::ffi::OsString;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use abey_linux::library::{ConfigError, LibraryConfig, is_ours, unknown_variables};

use crate::errno::preserve_errno;
use crate::interpose::sandbox;
use crate::report::{self, Topic};

/// The exit status of a program that is stopped because of `ABEY_STRICT=1`.
const STOPPED: i32 = 3;

static STATE: OnceLock<LibraryConfig> = OnceLock::new();

/// Returns the configuration of this process.
#[inline]
pub(crate) fn get() -> &'static LibraryConfig {
    match STATE.get() {
        Some(state) => state,
        None => first(),
    }
}

#[cold]
fn first() -> &'static LibraryConfig {
    // A panic is a bug of this library, and must not unwind into the program.
    STATE.get_or_init(|| preserve_errno(|| catch_unwind(read).unwrap_or_default()))
}

/// Applies a parameter of the mode after a call that succeeded. The call's result and errno stay as they are. A failure is
/// reported with [`failed`].
pub(crate) fn apply<E: Display>(topic: Topic, change: impl FnOnce() -> Result<(), E>) {
    if sandbox::forbids_parameters() {
        return;
    }
    preserve_errno(|| {
        if let Ok(Err(error)) = catch_unwind(AssertUnwindSafe(change)) {
            failed(topic, &error);
        }
    });
}

/// Prints the failure, once per topic. Ends the program if `ABEY_STRICT=1`.
#[cold]
pub(crate) fn failed(topic: Topic, error: &dyn Display) {
    let config = get();
    let mode = config.mode.map(|mode| format!("mode {mode}: ")).unwrap_or_default();
    if config.strict {
        report::print(format_args!("{mode}{error}; --strict (ABEY_STRICT=1) has ended the program"));
        stop();
    }
    report::print_once(topic, format_args!("{mode}{error}; the program continues without it"));
}

fn stop() -> ! {
    // SAFETY: ends all threads at once, without the program's exit handlers, whose state may not be initialised yet.
    unsafe { libc::_exit(STOPPED) }
}

/// Returns whether the program has more privileges than the user who started it (`AT_SECURE`, getauxval(3)): set-user-ID,
/// set-group-ID or file capabilities. That user wrote the environment, so the library ignores its variables.
///
/// The loader preloads no library from a path with a slash then (ld.so(8)). This library is loaded nevertheless if
/// `/etc/ld.so.preload` or the program names it, or if it is a set-user-ID file in a directory of the system.
pub(crate) fn is_secure() -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the configuration from the environment. Returns the default, which changes nothing, if it is invalid, if this
/// program is excluded or if it has privileges that its user lacks.
fn read() -> LibraryConfig {
    if is_secure() {
        return LibraryConfig::default();
    }
    let variables: Vec<(OsString, OsString)> = std::env::vars_os().filter(|(name, _)| is_ours(name)).collect();
    if variables.is_empty() {
        return LibraryConfig::default();
    }
    report::prepare();
    let is = |name: &str, value: &str| variables.iter().any(|(n, v)| n == name && v == value);
    if is("ABEY_DISABLE", "1") {
        return LibraryConfig::default();
    }
    match LibraryConfig::from_env(variables.iter().map(|(name, value)| (name, value))) {
        Ok(config) if config.skip.iter().any(|name| is_this_program(name)) => LibraryConfig::default(),
        Ok(config) => {
            if let Some(unknown) = unknown_variables(variables.iter().map(|(name, _)| name)).first() {
                report::print_once(Topic::Environment, format_args!("{unknown} It was ignored"));
            }
            if config.is_passive() { LibraryConfig::default() } else { config }
        }
        Err(error) => {
            unusable(&error, is("ABEY_STRICT", "1"));
            LibraryConfig::default()
        }
    }
}

fn unusable(error: &ConfigError, strict: bool) {
    if strict {
        report::print(format_args!("{error}; --strict (ABEY_STRICT=1) has ended the program"));
        stop();
    }
    report::print_once(Topic::Environment, format_args!("{error}; the program continues without Abey"));
}

/// Returns whether `name` is the process's `comm`, of which the kernel keeps 15 bytes, or the name of its executable.
fn is_this_program(name: &str) -> bool {
    const COMM_BYTES: usize = 15;
    let comm = std::fs::read("/proc/self/comm").unwrap_or_default();
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    let short = name.as_bytes().get(..COMM_BYTES).unwrap_or(name.as_bytes());
    let file = std::fs::read_link("/proc/self/exe");
    comm == short || file.is_ok_and(|file| file.file_name().is_some_and(|file| file == name))
}
