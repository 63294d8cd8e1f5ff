//! The journal: the values before, written to disk before anything is changed, so that they survive `kill -9`.
//!
//! Each process that holds settings has one file. A file whose process no longer runs is *abandoned*, and
//! [`restore_abandoned`] restores its settings. A restart of the machine discards the settings and, with `/run`, the
//! journal.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use abey_linux::kernel::NetnsHandle;
use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNs;
use abey_linux::process::start_time;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use crate::step::Step;
use crate::undo::{Restored, undo_all};

/// The directory of journals.
pub const JOURNAL_DIRECTORY: &str = "/run/abey";

/// Why a journal or the applied state could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A file could not be read or written.
    #[error(
        "cannot {action} the journal {path}: {source}; settings are restored from it after a crash, and only root may write it",
        path = path.display()
    )]
    File {
        /// `write`, `read` or `list`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A file has other content.
    #[error("the journal {path} is damaged ({reason}): correct the device's settings by hand, then remove the file", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        reason: String,
    },
    /// A setting could not be restored.
    #[error("cannot restore the settings in {path}: {source}", path = path.display())]
    Restore {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: MachineError,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: u32,
    /// The start time of that process in clock ticks since boot, because process IDs are reused.
    started: u64,
    netns_inode: u64,
    steps: Vec<Step>,
}

/// The journal of this process.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
}

impl Journal {
    /// Writes a new journal with these steps.
    pub(crate) fn write(directory: &Path, netns_inode: u64, steps: &[Step]) -> Result<Self, JournalError> {
        let path = write_draft(directory, netns_inode, steps, |draft| name(draft, directory, std::process::id()))?;
        Ok(Self { path })
    }

    /// Replaces the steps atomically.
    pub(crate) fn rewrite(&self, netns_inode: u64, steps: &[Step]) -> Result<(), JournalError> {
        let directory = self.path.parent().expect("it has a name in a directory");
        write_draft(directory, netns_inode, steps, |draft| fs::rename(draft, &self.path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn remove(self) {
        // A journal that cannot be removed is harmless: restoring from it finds the settings restored.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes a complete journal under a temporary name, and has `publish` rename it: a reader that finds half a journal takes
/// its writer for killed.
fn write_draft<T>(
    directory: &Path,
    netns_inode: u64,
    steps: &[Step],
    publish: impl FnOnce(&Path) -> io::Result<T>,
) -> Result<T, JournalError> {
    let pid = std::process::id();
    let draft = draft_in(directory);
    let failed = |source| JournalError::File { action: "write", path: draft.clone(), source };
    let started = start_time(pid).unwrap_or(0);
    let record = Record { pid, started, netns_inode, steps: steps.to_vec() };
    let mut text = serde_json::to_vec_pretty(&record).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    let named = fs::File::create(&draft)
        .and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()))
        .and_then(|()| publish(&draft));
    named.map_err(|error| {
        let _ = fs::remove_file(&draft);
        failed(error)
    })
}

/// Returns a temporary name with the ID of this process, by which [`restore_abandoned`] recognises abandoned drafts.
pub(crate) fn draft_in(directory: &Path) -> PathBuf {
    directory.join(format!("{}-{}.draft", std::process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed)))
}

/// Removes the drafts of processes that no longer run.
fn remove_drafts(directory: &Path) {
    for path in fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let writer = name.strip_suffix(".draft").and_then(|name| name.split_once('-')?.0.parse().ok());
        if writer.is_some_and(|pid| start_time(pid).is_none()) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The number of drafts of this process, for unique names: its threads may write at the same time.
static DRAFTS: AtomicU32 = AtomicU32::new(0);

/// Renames a draft to a free name. A process may have several journals, so the name has a count as well as its ID.
fn name(draft: &Path, directory: &Path, pid: u32) -> io::Result<PathBuf> {
    for count in 0.. {
        let path = directory.join(format!("{pid}-{count}.json"));
        match renameat_with(CWD, draft, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(path),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("a directory has fewer files than there are numbers")
}

/// Creates the directory and locks it against other writers until the value is dropped: no other process may claim a
/// setting between this process's check for conflicts and the write of its journal.
pub(crate) fn lock(directory: &Path) -> Result<fs::File, JournalError> {
    let open = || {
        fs::create_dir_all(directory)?;
        let open = fs::File::open(directory)?;
        open.lock()?;
        Ok(open)
    };
    open().map_err(|source| JournalError::File { action: "write", path: directory.to_owned(), source })
}

fn records(directory: &Path) -> Result<Vec<(PathBuf, Record)>, JournalError> {
    let failed = |action, path: &Path, source| JournalError::File { action, path: path.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", directory, error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| failed("list", directory, error))?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = match fs::read(&path) {
            Ok(text) => text,
            // Its process has just restored the settings.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed("read", &path, error)),
        };
        match serde_json::from_slice(&text) {
            Ok(record) => found.push((path, record)),
            // The file system lost the end of the file: it was written before anything was changed.
            Err(error) if error.is_eof() => drop(fs::remove_file(&path)),
            Err(error) => return Err(JournalError::Content { path, reason: error.to_string() }),
        }
    }
    Ok(found)
}

impl Record {
    fn is_live(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }
}

/// Returns the steps that other running processes hold in this namespace, with the process IDs. `own` is the journal of
/// the caller, which is left out.
///
/// Interrupts, threads, processes and units belong to the whole machine: steps of these count in every namespace.
pub(crate) fn live_journals(
    directory: &Path,
    netns_inode: u64,
    own: Option<&Journal>,
) -> Result<Vec<(u32, Vec<Step>)>, JournalError> {
    let others = records(directory)?.into_iter().filter(|(path, _)| own.is_none_or(|own| own.path() != path));
    let live = others.map(|(_, record)| record).filter(Record::is_live);
    let shared = |steps: Vec<Step>| steps.into_iter().filter(|step| step.claim().is_machine_wide()).collect();
    let of = |record: Record| {
        let here = record.netns_inode == netns_inode;
        (record.pid, if here { record.steps } else { shared(record.steps) })
    };
    Ok(live.map(of).collect())
}

/// Returns the steps in a namespace that processes took and did not undo before they were killed.
///
/// # Errors
/// When a journal cannot be read.
pub fn abandoned(directory: &Path, netns: &NetNs) -> Result<Vec<Step>, JournalError> {
    let is_abandoned = |(_, record): &(PathBuf, Record)| record.netns_inode == netns.inode() && !record.is_live();
    Ok(records(directory)?.into_iter().filter(is_abandoned).flat_map(|(_, record)| record.steps).collect())
}

/// Undoes the steps of processes that were killed. Journals of running processes are left alone.
///
/// # Errors
/// When a journal cannot be read or undone; it stays, and those before it are done.
pub fn restore_abandoned(directory: &Path) -> Result<Vec<Restored>, JournalError> {
    restore(directory, |_| true)
}

/// Undoes the steps of killed processes in one namespace.
///
/// # Errors
/// As [`restore_abandoned`].
pub fn restore_abandoned_in(directory: &Path, netns: &NetNs) -> Result<Vec<Restored>, JournalError> {
    restore(directory, |record| record.netns_inode == netns.inode())
}

fn restore(directory: &Path, meant: impl Fn(&Record) -> bool) -> Result<Vec<Restored>, JournalError> {
    let mut restored = Vec::new();
    remove_drafts(directory);
    for (path, record) in records(directory)? {
        if record.is_live() || !meant(&record) {
            continue;
        }
        // A namespace without a process and without a name no longer exists, nor do its devices.
        if let Some(netns) = namespace_with(record.netns_inode) {
            let refused = |source| JournalError::Restore { path: path.clone(), source };
            let mut handle = NetnsHandle::open(&netns).map_err(|error| refused(unreachable_namespace(&error)))?;
            restored.extend(undo_all(&mut handle, &record.steps).map_err(refused)?);
        } else {
            restored.extend(record.steps.iter().cloned().map(Restored::Missing));
        }
        match fs::remove_file(&path) {
            // Another process has just done the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(|source| JournalError::File { action: "remove", path, source })?,
        }
    }
    Ok(restored)
}

fn unreachable_namespace(error: &NetlinkError) -> MachineError {
    MachineError::from_netlink("", "open the network namespace", error)
}

/// Finds a namespace by its inode number: that of this process, one with a name, or that of another process.
fn namespace_with(inode: u64) -> Option<NetNs> {
    let matches = |netns: &NetNs| netns.inode() == inode;
    if let Some(own) = NetNs::current().ok().filter(matches) {
        return Some(own);
    }
    abey_linux::netns::all().into_iter().find(matches)
}
