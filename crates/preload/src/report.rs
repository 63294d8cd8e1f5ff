//! One line on standard error, once per tree of processes as far as that can be known.
//!
//! Two notes are kept of what was said. One is a shared page, which a process has in common with those it forks. The
//! other is the value of `ABEY_TOLD`, changed in place in the environment, which a program that it executes inherits.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use abey_linux::library::{FILE_NAME, TOLD_NOTHING, TOLD_VARIABLE};

/// What a line is about; each is said once.
#[derive(Clone, Copy)]
pub(crate) enum Topic {
    Environment,
    Epoll,
    Socket,
    Waiting,
    Steering,
    Datapath,
}

const TOPICS: usize = TOLD_NOTHING.len();
const _: () = assert!(Topic::Datapath as usize + 1 == TOPICS);

/// The character in `ABEY_TOLD` that stands for a topic that was said.
const TOLD: u8 = b'x';

type Notes = [AtomicU8; TOPICS];

/// For a process in which the shared page could not be had.
static PRIVATE_NOTES: Notes = [const { AtomicU8::new(0) }; TOPICS];
static SHARED_NOTES: AtomicPtr<Notes> = AtomicPtr::new(null_mut());
/// The file that standard error was when the process began: device and inode.
static STANDARD_ERROR: OnceLock<Option<(libc::dev_t, libc::ino_t)>> = OnceLock::new();

unsafe extern "C" {
    /// The C library's list of `NAME=value` strings, which ends with a null pointer.
    static environ: *const *mut c_char;
}

/// Prepares for lines to be written later: to be called while the process is young.
pub(crate) fn prepare() {
    STANDARD_ERROR.get_or_init(standard_error);
    // SAFETY: a new mapping, at no particular place.
    let page = unsafe {
        libc::mmap(
            null_mut(),
            size_of::<Notes>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page != libc::MAP_FAILED {
        SHARED_NOTES.store(page.cast(), Ordering::Release);
    }
}

/// Writes the line, unless one on this topic was written already.
pub(crate) fn say_once(topic: Topic, line: fmt::Arguments<'_>) {
    // Both notes are taken, whichever already says so.
    let (noted, inherited) = (note(topic), note_for_children(topic));
    if !noted && !inherited {
        say(line);
    }
}

/// Writes the line.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    // A server that made itself a daemon may have closed standard error and be using its number for a file of its own.
    let expected = STANDARD_ERROR.get().copied().flatten();
    if expected.is_none() || standard_error() != expected {
        return;
    }
    let mut text = String::new();
    if writeln!(text, "{FILE_NAME}: {line}").is_ok() {
        // SAFETY: the pointer and length are those of a live string. One write, so that lines of processes do not mix.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}

fn standard_error() -> Option<(libc::dev_t, libc::ino_t)> {
    let mut facts = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `facts` is written by the call, and read only when it succeeded.
    unsafe {
        (libc::fstat(libc::STDERR_FILENO, facts.as_mut_ptr()) == 0).then(|| {
            let facts = facts.assume_init();
            (facts.st_dev, facts.st_ino)
        })
    }
}

/// Takes the note in the page; whether it was taken before.
fn note(topic: Topic) -> bool {
    let page = SHARED_NOTES.load(Ordering::Acquire);
    // SAFETY: null, or a mapping of this size that is never unmapped; zero bytes are valid atomics.
    let notes = unsafe { page.as_ref() }.unwrap_or(&PRIVATE_NOTES);
    notes.get(topic as usize).is_none_or(|told| told.swap(1, Ordering::Relaxed) != 0)
}

/// Takes the note in the environment, if it is there; whether it was taken before.
fn note_for_children(topic: Topic) -> bool {
    // SAFETY: the list and its strings belong to the C library. As with any `getenv`, a program that changes its
    // environment in one thread while another one creates epoll instances is on its own; this is done once or twice in
    // a process's life. Only a byte of our own variable's value is written, within its length.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let bytes = CStr::from_ptr(*entry).to_bytes();
            if let Some(value) = bytes.strip_prefix(TOLD_VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
                let Some(told) = value.get(topic as usize).map(|byte| *byte == TOLD) else {
                    return false;
                };
                let at = bytes.len() - value.len() + topic as usize;
                (*entry).add(at).cast::<u8>().write(TOLD);
                return told;
            }
            entry = entry.add(1);
        }
    }
    false
}
