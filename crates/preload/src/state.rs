//! What this process was asked to do, read from the environment once.

use std::ffi::OsString;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use abey_linux::library::{ConfigError, LibraryConfig, is_ours, unknown_variables};

use crate::report::{self, Topic};
use crate::{face, real};

/// The exit status of a program that is stopped because it was to be strict: the machine lacks something.
const STOPPED: i32 = 3;

static STATE: OnceLock<LibraryConfig> = OnceLock::new();

/// Read before `main`, while there is one thread; other libraries' constructors may still call us earlier.
// SAFETY: the section holds addresses of functions that the loader calls once the library is relocated.
#[unsafe(link_section = ".init_array")]
#[used]
static CONSTRUCTOR: extern "C" fn() = {
    extern "C" fn construct() {
        real::prepare();
        face::prepare();
        get();
    }
    construct
};

/// What to do in this process.
#[inline]
pub(crate) fn get() -> &'static LibraryConfig {
    match STATE.get() {
        Some(state) => state,
        None => first(),
    }
}

#[cold]
fn first() -> &'static LibraryConfig {
    // Only a mistake of ours can panic here, and it must not become the guest's.
    STATE.get_or_init(|| keep_errno(|| catch_unwind(read).unwrap_or_default()))
}

/// Runs something on the side of a call of the program's, which shall not see a trace of it.
pub(crate) fn keep_errno<R>(run: impl FnOnce() -> R) -> R {
    // SAFETY: every thread has its errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; the address stays the same within a thread.
    let before = unsafe { errno.read() };
    let result = run();
    // SAFETY: as above.
    unsafe { errno.write(before) };
    result
}

/// Does what a mode adds to a call that succeeded. A failure is said, and ends the program if it was to be strict; the
/// call's own result and errno are untouched.
pub(crate) fn aside<E: Display>(topic: Topic, add: impl FnOnce() -> Result<(), E>) {
    keep_errno(|| {
        if let Ok(Err(error)) = catch_unwind(AssertUnwindSafe(add)) {
            failed(topic, &error);
        }
    });
}

/// Says what failed; ends the program if it was to be strict.
#[cold]
pub(crate) fn failed(topic: Topic, error: &dyn Display) {
    let config = get();
    let mode = config.mode.map(|mode| format!("mode {mode}: ")).unwrap_or_default();
    if config.strict {
        report::say(format_args!("{mode}{error}; the program was stopped, as ABEY_STRICT asks"));
        stop();
    }
    report::say_once(topic, format_args!("{mode}{error}; the program runs on without it"));
}

fn stop() -> ! {
    // SAFETY: ends all threads at once, and runs none of the program's exit handlers, which may not be ready for it.
    unsafe { libc::_exit(STOPPED) }
}

/// The configuration; the default, which is to do nothing, where it is unusable or this process is not meant.
fn read() -> LibraryConfig {
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
                report::say_once(Topic::Environment, format_args!("{unknown} It was ignored"));
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
        report::say(format_args!("{error}; the program was stopped, as ABEY_STRICT asks"));
        stop();
    }
    report::say_once(Topic::Environment, format_args!("{error}; the program runs as if there were no Abey"));
}

/// Whether the program was called by this name (`comm`, of which the kernel keeps 15 bytes), or its file has it.
fn is_this_program(name: &str) -> bool {
    const COMM_BYTES: usize = 15;
    let comm = std::fs::read("/proc/self/comm").unwrap_or_default();
    let comm = comm.strip_suffix(b"\n").unwrap_or(&comm);
    let short = name.as_bytes().get(..COMM_BYTES).unwrap_or(name.as_bytes());
    let file = std::fs::read_link("/proc/self/exe");
    comm == short || file.is_ok_and(|file| file.file_name().is_some_and(|file| file == name))
}
