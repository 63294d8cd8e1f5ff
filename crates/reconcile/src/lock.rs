//! Locks between the processes that change settings: taken within a bounded time, and given up at a request to end.
//!
//! The lock is `flock(2)` on a file that only root (or the user of this process) can open. A process that waits for it asks
//! again every [`PERIOD`] rather than in the kernel: `abey` receives SIGINT and SIGTERM through a descriptor, so that these
//! do not interrupt a system call.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use abey_text::visible;
use nix::sys::signal::Signal;
use rustix::fs::{major, minor};

use crate::directory::{Directory, failed};
use crate::error::JournalError;

/// The file that is locked while a journal is written. Its holder removes it.
pub(crate) const LOCK: &str = "lock";

/// How long to wait for the lock of the directory, which is held while one file is read and one is written.
const DIRECTORY_LIMIT: Duration = Duration::from_secs(10);

/// How long to wait for an applied state, which is held during a whole apply. A change of channels takes seconds.
pub(crate) const STATE_LIMIT: Duration = Duration::from_secs(30);

/// The period of trying again.
const PERIOD: Duration = Duration::from_millis(20);

/// The signals that end the wait.
const ENDS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// The lock of a directory. Dropping this releases it.
#[derive(Debug)]
pub(crate) struct Lock<'a> {
    directory: &'a Directory,
    file: File,
}

impl<'a> Lock<'a> {
    pub(crate) fn take(directory: &'a Directory) -> Result<Self, JournalError> {
        let (name, path) = (OsStr::new(LOCK), directory.path_of(LOCK));
        let file =
            wait_for(&path, DIRECTORY_LIMIT, || directory.open_or_create(name), |file| directory.has(name, file))?;
        Ok(Self { directory, file })
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // Removed while it is still locked: a process that waits for it finds that it has no name any more, and
        // creates another.
        let name = OsStr::new(LOCK);
        if self.directory.has(name, &self.file) {
            let _ = self.directory.remove(name);
        }
    }
}

/// Opens and locks a file. `is_current` tells whether the file that was locked still has its name: the previous holder
/// may have removed or replaced it.
pub(crate) fn wait_for(
    path: &Path,
    limit: Duration,
    open: impl Fn() -> Result<File, JournalError>,
    is_current: impl Fn(&File) -> bool,
) -> Result<File, JournalError> {
    let since = Instant::now();
    loop {
        let file = open()?;
        match file.try_lock() {
            Ok(()) if is_current(&file) => return Ok(file),
            Ok(()) => continue,
            Err(TryLockError::Error(error)) => return Err(failed("lock", path, error)),
            Err(TryLockError::WouldBlock) => {}
        }
        if termination_is_pending() {
            return Err(JournalError::Interrupted { path: path.to_owned(), holder: holder(&file) });
        }
        if since.elapsed() >= limit {
            return Err(JournalError::Locked { path: path.to_owned(), holder: holder(&file), limit });
        }
        std::thread::sleep(PERIOD);
    }
}

/// Whether a signal that asks this process to end is blocked and has arrived. It stays pending for its receiver.
fn termination_is_pending() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let masks = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    let pending = masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).fold(0, |all, mask| all | mask);
    ENDS.iter().any(|signal| pending & 1 << (*signal as i32 - 1) != 0)
}

/// Names the process that holds a lock on the file, from `/proc/locks` (`proc_locks(5)`).
fn holder(file: &File) -> String {
    let known = file.metadata().ok().and_then(|about| {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        holder_in(&locks, (major(about.st_dev()), minor(about.st_dev())), about.st_ino())
    });
    known.map_or_else(|| "another process".to_owned(), describe)
}

/// Finds the process that holds a `flock` of a file in the text of `/proc/locks`.
fn holder_in(locks: &str, device: (u32, u32), inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", device.0, device.1);
    let held = locks.lines().find_map(|line| {
        // "1: FLOCK ADVISORY WRITE 4711 00:19:1234 0 EOF"; those who wait have an arrow after the number.
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&file.as_str())).then(|| fields[4].parse().ok())
    });
    held.flatten().filter(|pid| *pid != 0)
}

/// Describes a process by its ID and its program, whose name its user chose.
fn describe(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = visible(name.trim_end());
    if name.is_empty() { format!("process {pid}") } else { format!("process {pid} ({name})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found_among_those_who_wait() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 00:19:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 8 00:1a:42 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 4711 00:19:42 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 9 00:19:42 0 EOF\n";
        assert_eq!(holder_in(locks, (0, 0x19), 42), Some(4711));
        assert_eq!(holder_in(locks, (0, 0x19), 43), None);
        assert_eq!(holder_in("1: FLOCK  ADVISORY  WRITE 0 00:19:42 0 EOF", (0, 0x19), 42), None);
        assert_eq!(holder_in("1: FLOCK", (0, 0x19), 42), None);
    }

    #[test]
    fn a_lock_that_is_held_is_refused_with_its_holder_and_free_afterwards() {
        let place = tempfile::tempdir().expect("directory");
        let path = place.path().join("file");
        let open =
            || File::options().create(true).append(true).open(&path).map_err(|error| failed("write", &path, error));
        let held = wait_for(&path, Duration::ZERO, open, |_| true).expect("free");
        let error = wait_for(&path, Duration::ZERO, open, |_| true).expect_err("held").to_string();
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        drop(held);
        wait_for(&path, Duration::ZERO, open, |_| true).expect("free again");
    }
}
