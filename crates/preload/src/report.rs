//! Messages of the library: one line on standard error, at most once per topic and tree of processes.
//!
//! Two flags per topic record that it was printed. One is in a shared page, which a process has in common with the
//! children that it forks. The other is a character of the value of `ABEY_TOLD`, changed in place in the environment, which
//! a program that the process executes inherits.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use abey_linux::library::{FILE_NAME, NOTHING_PRINTED, PRINTED_VARIABLE};

use crate::config;

/// What a line is about. Each topic is printed once.
#[derive(Clone, Copy)]
pub(crate) enum Topic {
    Environment,
    Epoll,
    Socket,
    SocketWait,
    Steering,
    Datapath,
    IoUring,
    HandOverChild,
    HandOverExec,
    HandOverPassed,
    HandOverCall,
    Option,
    Sandbox,
    DirectEpoll,
}

const TOPICS: usize = NOTHING_PRINTED.len();
const _: () = assert!(Topic::DirectEpoll as usize + 1 == TOPICS);

/// The character in `ABEY_TOLD` that marks a topic as printed.
const PRINTED: u8 = b'x';

type Flags = [AtomicU8; TOPICS];

/// The flags of a process in which the shared page could not be mapped.
static PRIVATE_FLAGS: Flags = [const { AtomicU8::new(0) }; TOPICS];
static SHARED_FLAGS: AtomicPtr<Flags> = AtomicPtr::new(null_mut());
/// Device and inode of standard error when the process started.
static STDERR_FILE: OnceLock<Option<(libc::dev_t, libc::ino_t)>> = OnceLock::new();

unsafe extern "C" {
    /// The C library's list of `NAME=value` strings, which ends with a null pointer.
    static environ: *const *mut c_char;
}

/// Maps the shared page and records standard error. Called before `main`.
pub(crate) fn prepare() {
    STDERR_FILE.get_or_init(stderr_file);
    // SAFETY: a new anonymous mapping at an address that the kernel chooses.
    let page = unsafe {
        libc::mmap(
            null_mut(),
            size_of::<Flags>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page != libc::MAP_FAILED {
        SHARED_FLAGS.store(page.cast(), Ordering::Release);
    }
}

/// Prints the line, unless one on this topic was printed already.
pub(crate) fn print_once(topic: Topic, line: fmt::Arguments<'_>) {
    // Both flags must be set, so neither call may be skipped.
    let (in_page, in_environment) = (set_page_flag(topic), set_environment_flag(topic));
    if !in_page && !in_environment {
        print(line);
    }
}

/// Marks the topic in the environment, which programs that this process executes inherit.
pub(crate) fn mark(topic: Topic) {
    set_environment_flag(topic);
}

/// Returns whether the topic is marked in the environment.
pub(crate) fn is_marked(topic: Topic) -> bool {
    if config::is_secure() {
        return false;
    }
    let variable = std::env::var_os(PRINTED_VARIABLE);
    variable.is_some_and(|printed| printed.as_encoded_bytes().get(topic as usize) == Some(&PRINTED))
}

/// Whether this process must not print.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Prints nothing from now on.
pub(crate) fn silence() {
    IS_SILENT.store(true, Ordering::Relaxed);
}

/// Prints the line.
pub(crate) fn print(line: fmt::Arguments<'_>) {
    if IS_SILENT.load(Ordering::Relaxed) {
        return;
    }
    // A daemon may have closed standard error and reused its number for a file of its own.
    let expected = STDERR_FILE.get().copied().flatten();
    if expected.is_none() || stderr_file() != expected {
        return;
    }
    let mut text = String::new();
    if writeln!(text, "{FILE_NAME}: {line}").is_ok() {
        // SAFETY: the pointer and length are those of a live string. A single write keeps lines of several processes apart.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}

fn stderr_file() -> Option<(libc::dev_t, libc::ino_t)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is written by the call, and read only when it succeeded.
    unsafe {
        (libc::fstat(libc::STDERR_FILENO, stat.as_mut_ptr()) == 0).then(|| {
            let stat = stat.assume_init();
            (stat.st_dev, stat.st_ino)
        })
    }
}

/// Sets the topic's flag in the shared page. Returns whether it was set before.
fn set_page_flag(topic: Topic) -> bool {
    let page = SHARED_FLAGS.load(Ordering::Acquire);
    // SAFETY: null, or a mapping of this size that is never unmapped; zeroed bytes are valid atomics.
    let flags = unsafe { page.as_ref() }.unwrap_or(&PRIVATE_FLAGS);
    flags.get(topic as usize).is_none_or(|printed| printed.swap(1, Ordering::Relaxed) != 0)
}

/// Sets the topic's flag in the environment, if `ABEY_TOLD` is there. Returns whether it was set before.
fn set_environment_flag(topic: Topic) -> bool {
    if config::is_secure() {
        return false;
    }
    // SAFETY: the list and its strings belong to the C library. As with `getenv(3)`, a program must not change its
    // environment in one thread while another thread reads it; this happens once or twice in a process's life. Only one
    // byte of the value of our own variable is written, within its length.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let bytes = CStr::from_ptr(*entry).to_bytes();
            if let Some(value) =
                bytes.strip_prefix(PRINTED_VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
            {
                let Some(printed) = value.get(topic as usize).map(|byte| *byte == PRINTED) else {
                    return false;
                };
                let at = bytes.len() - value.len() + topic as usize;
                (*entry).add(at).cast::<u8>().write(PRINTED);
                return printed;
            }
            entry = entry.add(1);
        }
    }
    false
}
