//! The journal: what was there before, on disk before anything is changed, so that it survives `kill -9`.
//!
//! One file per process that holds settings. A file whose process is gone is *abandoned*, and [`restore_abandoned`]
//! puts its settings back. A restart of the machine forgets the settings and, with `/run`, the journal.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use crate::machine::MachineError;
use crate::netlink::NetlinkError;
use crate::netns::NetNs;
use crate::process::start_time;

use super::place::Place;
use super::step::Step;
use super::undo::undo_all;

/// Where journals are kept.
pub const JOURNAL_DIRECTORY: &str = "/run/abey";

/// Why the journal could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// It could not be written or read.
    #[error(
        "cannot {action} the journal {path}: {source}; it lets settings be put back after a crash, and is root's to write",
        path = path.display()
    )]
    File {
        /// `write`, `read` or `list`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// It holds something else.
    #[error("the journal {path} is not readable ({reason}): remove it after setting the device right by hand", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// What it says could not be done.
    #[error("settings in {path} could not be put back: {source}", path = path.display())]
    Restore {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: MachineError,
    },
}

/// What became of one step when it was to be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restored {
    /// It is as it was before.
    Back(Step),
    /// The NAPI instance or device has gone, with its settings.
    Gone(Step),
    /// Somebody else has changed it since, and their value stays.
    LeftToOthers(Step),
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: u32,
    /// When that process started, in clock ticks since boot: process numbers are used again.
    started: u64,
    netns_inode: u64,
    steps: Vec<Step>,
}

/// The journal of this process.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
}

impl Journal {
    /// Writes a journal of these steps.
    pub(super) fn write(directory: &Path, netns_inode: u64, steps: &[Step]) -> Result<Self, JournalError> {
        let path = write_draft(directory, netns_inode, steps, |draft| name(draft, directory, std::process::id()))?;
        Ok(Self { path })
    }

    /// Writes it anew, with these steps: at every moment one of both is there and whole.
    pub(super) fn rewrite(&self, netns_inode: u64, steps: &[Step]) -> Result<(), JournalError> {
        let directory = self.path.parent().expect("it has a name in a directory");
        write_draft(directory, netns_inode, steps, |draft| fs::rename(draft, &self.path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn remove(self) {
        // A journal that stays is no harm: restoring it finds the settings back already.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes a journal under a name of its own, and gives it its real one by `publish` only once it is whole: who reads half
/// of one takes its writer for dead.
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

/// A name for a file that is being written, of which [`restore_abandoned`] sees whose it is.
pub(super) fn draft_in(directory: &Path) -> PathBuf {
    directory.join(format!("{}-{}.draft", std::process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed)))
}

/// Removes what processes that no longer run had begun to write.
fn remove_drafts(directory: &Path) {
    for path in fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let writer = name.strip_suffix(".draft").and_then(|name| name.split_once('-')?.0.parse().ok());
        if writer.is_some_and(|pid| start_time(pid).is_none()) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// How many this process has begun to write: its threads may do so at the same time.
static DRAFTS: AtomicU32 = AtomicU32::new(0);

/// Gives a journal its name. A process may hold several sets of settings at once, so the name has a count as well.
fn name(draft: &Path, directory: &Path, pid: u32) -> io::Result<PathBuf> {
    for count in 0.. {
        let path = directory.join(format!("{pid}-{count}.json"));
        match renameat_with(CWD, draft, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(path),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("there are more numbers than files")
}

/// Makes the directory and keeps others from writing there until the value goes: between finding that nobody holds an
/// instance and writing down that we do, nobody else may find the same.
pub(super) fn lock(directory: &Path) -> Result<fs::File, JournalError> {
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
            // Its owner put the settings back just now.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed("read", &path, error)),
        };
        match serde_json::from_slice(&text) {
            Ok(record) => found.push((path, record)),
            // Cut off by a file system that lost its end: written before anything was changed.
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

/// What processes that still run hold in this namespace, but for what `own` holds.
///
/// Interrupts, threads and processes are the whole machine's, so what other namespaces hold counts for those.
pub(super) fn live_journals(
    directory: &Path,
    netns_inode: u64,
    own: Option<&Journal>,
) -> Result<Vec<(u32, Vec<Step>)>, JournalError> {
    let others = records(directory)?.into_iter().filter(|(path, _)| own.is_none_or(|own| own.path() != path));
    let live = others.map(|(_, record)| record).filter(Record::is_live);
    let shared = |steps: Vec<Step>| steps.into_iter().filter(Step::is_of_the_machine).collect();
    let of = |record: Record| {
        let here = record.netns_inode == netns_inode;
        (record.pid, if here { record.steps } else { shared(record.steps) })
    };
    Ok(live.map(of).collect())
}

/// What processes that no longer run had changed in a namespace and not put back.
///
/// # Errors
/// What could not be read.
pub fn abandoned(directory: &Path, netns: &NetNs) -> Result<Vec<Step>, JournalError> {
    let mine = |(_, record): &(PathBuf, Record)| record.netns_inode == netns.inode() && !record.is_live();
    Ok(records(directory)?.into_iter().filter(mine).flat_map(|(_, record)| record.steps).collect())
}

/// Puts back what processes that no longer run had changed. Journals of live processes are left alone.
///
/// # Errors
/// What could not be read or put back; its journal stays, and those before it are done.
pub fn restore_abandoned(directory: &Path) -> Result<Vec<Restored>, JournalError> {
    restore(directory, |_| true)
}

/// As [`restore_abandoned`], in one namespace.
///
/// # Errors
/// As there.
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
        // A namespace that nobody lives in and that has no name is gone, with its devices and their settings.
        if let Some(netns) = namespace_with(record.netns_inode) {
            let refused = |source| JournalError::Restore { path: path.clone(), source };
            let mut place = Place::open(&netns).map_err(|error| refused(unreachable_namespace(&error)))?;
            restored.extend(undo_all(&mut place, &record.steps).map_err(refused)?);
        } else {
            restored.extend(record.steps.iter().cloned().map(Restored::Gone));
        }
        match fs::remove_file(&path) {
            // Somebody else did the same at the same time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(|source| JournalError::File { action: "remove", path, source })?,
        }
    }
    Ok(restored)
}

fn unreachable_namespace(error: &NetlinkError) -> MachineError {
    MachineError::from_netlink("", "look into the network namespace", error)
}

/// Finds an open namespace by its number: ours, one with a name, or one that a process lives in.
fn namespace_with(inode: u64) -> Option<NetNs> {
    let matches = |netns: &NetNs| netns.inode() == inode;
    if let Some(own) = NetNs::current().ok().filter(matches) {
        return Some(own);
    }
    crate::netns::all().into_iter().find(matches)
}

impl Restored {
    /// The step it is about.
    pub fn step(&self) -> &Step {
        match self {
            Self::Back(step) | Self::Gone(step) | Self::LeftToOthers(step) => step,
        }
    }
}
