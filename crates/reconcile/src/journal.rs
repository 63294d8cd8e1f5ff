//! The journal: the values before, written to disk before anything is changed, so that they survive `kill -9`.
//!
//! Each process that holds settings has one file. A file whose process no longer runs is *abandoned*, and
//! [`restore_abandoned`] restores its settings. A restart of the machine discards the settings and, with `/run`, the
//! journal.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use abey_linux::kernel::NetnsHandle;
use abey_linux::machine::MachineError;
use abey_linux::netlink::NetlinkError;
use abey_linux::netns::NetNs;
use abey_linux::process::start_time;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::bounds::Bounds;
use crate::directory::{Directory, failed, refused};
use crate::error::JournalError;
use crate::step::Step;
use crate::undo::{Restored, undo_all};

/// The directory of journals.
pub const JOURNAL_DIRECTORY: &str = "/run/abey";

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
    directory: PathBuf,
    name: OsString,
}

impl Journal {
    /// Writes a new journal with these steps.
    pub(crate) fn write(directory: &Directory, netns_inode: u64, steps: &[Step]) -> Result<Self, JournalError> {
        let name = write_draft(directory, netns_inode, steps, |draft| publish(draft, directory))?;
        Ok(Self { directory: directory.path().to_owned(), name })
    }

    /// Replaces the steps atomically.
    pub(crate) fn rewrite(&self, netns_inode: u64, steps: &[Step]) -> Result<(), JournalError> {
        // Opened again, because the directory may have been removed and made anew.
        let directory = Directory::create(&self.directory)?;
        write_draft(&directory, netns_inode, steps, |draft| directory.rename(draft, &self.name))
    }

    pub(crate) fn remove(self) {
        // A journal that cannot be removed is harmless: restoring from it finds the settings restored.
        if let Ok(Some(directory)) = Directory::open(&self.directory) {
            let _ = directory.remove(&self.name);
        }
    }
}

/// Writes a complete journal under a temporary name, and has `publish` rename it: a reader that finds half a journal takes
/// its writer for killed.
fn write_draft<T>(
    directory: &Directory,
    netns_inode: u64,
    steps: &[Step],
    publish: impl FnOnce(&OsStr) -> io::Result<T>,
) -> Result<T, JournalError> {
    let pid = std::process::id();
    let started = start_time(pid).unwrap_or(0);
    let record = Record { pid, started, netns_inode, steps: steps.to_vec() };
    write_json(directory, &record, |_, draft| publish(draft))
}

/// Writes a document to a new file under a temporary name, and has `publish` rename it.
pub(crate) fn write_json<T>(
    directory: &Directory,
    document: &impl Serialize,
    publish: impl FnOnce(std::fs::File, &OsStr) -> io::Result<T>,
) -> Result<T, JournalError> {
    // The process ID tells which drafts are abandoned, and the count distinguishes those of several threads.
    let draft = OsString::from(format!("{}-{}.draft", std::process::id(), DRAFTS.fetch_add(1, Ordering::Relaxed)));
    let failed = |source: io::Error| failed("write", &directory.path_of(&draft), source);
    let mut text = serde_json::to_vec_pretty(document).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    let written = directory.create_new(&draft).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()?;
        publish(file, &draft)
    });
    written.map_err(|error| {
        let _ = directory.remove(&draft);
        failed(error)
    })
}

/// The number of drafts of this process.
static DRAFTS: AtomicU32 = AtomicU32::new(0);

/// Removes the drafts of processes that no longer run.
fn remove_drafts(directory: &Directory) {
    for name in directory.names().unwrap_or_default() {
        let text = name.to_string_lossy();
        let writer = text.strip_suffix(".draft").and_then(|name| name.split_once('-')?.0.parse().ok());
        if writer.is_some_and(|pid| start_time(pid).is_none()) {
            let _ = directory.remove(&name);
        }
    }
}

/// Renames a draft to a free name. A process may have several journals, so the name has a count as well as its ID.
fn publish(draft: &OsStr, directory: &Directory) -> io::Result<OsString> {
    let pid = std::process::id();
    for count in 0.. {
        let name = OsString::from(format!("{pid}-{count}.json"));
        match directory.rename_new(draft, &name) {
            Ok(()) => return Ok(name),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("a directory has fewer files than there are numbers")
}

/// Reads all journals. One that is not a file of root's or of this user is an error, also if it would not be carried out.
fn records(directory: &Directory) -> Result<Vec<(OsString, Record)>, JournalError> {
    let mut found = Vec::new();
    for name in directory.names()? {
        if Path::new(&name).extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        // Its process may just have restored the settings.
        let Some(text) = directory.read(&name)? else { continue };
        match serde_json::from_slice(&text) {
            Ok(record) => found.push((name, record)),
            // The file system lost the end of the file: it was written before anything was changed.
            Err(error) if error.is_eof() => drop(directory.remove(&name)),
            Err(error) => {
                return Err(JournalError::Content { path: directory.path_of(&name), reason: error.to_string() });
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
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
    directory: &Directory,
    netns_inode: u64,
    own: Option<&Journal>,
) -> Result<Vec<(u32, Vec<Step>)>, JournalError> {
    let others = records(directory)?.into_iter().filter(|(name, _)| own.is_none_or(|own| own.name != *name));
    let live = others.map(|(_, record)| record).filter(Record::is_live);
    let shared = |steps: Vec<Step>| steps.into_iter().filter(|step| step.claim().is_machine_wide()).collect();
    let of = |record: Record| {
        let here = record.netns_inode == netns_inode;
        (record.pid, if here { record.steps } else { shared(record.steps) })
    };
    Ok(live.map(of).collect())
}

/// Returns whether processes took steps in a namespace and did not undo them before they were killed.
///
/// # Errors
/// When a journal cannot be read.
pub(crate) fn has_abandoned(directory: &Path, netns: &NetNs) -> Result<bool, JournalError> {
    let Some(directory) = Directory::open(directory)? else { return Ok(false) };
    let is_abandoned = |record: &Record| record.netns_inode == netns.inode() && !record.is_live();
    Ok(records(&directory)?.iter().any(|(_, record)| is_abandoned(record) && !record.steps.is_empty()))
}

/// Undoes the steps of processes that were killed. Journals of running processes are left alone. `units` is the directory
/// of drop-ins: [`RUNTIME_UNITS`](crate::RUNTIME_UNITS).
///
/// # Errors
/// When a journal cannot be read, is refused or cannot be undone; it stays, and the others are done.
pub fn restore_abandoned(directory: &Path, units: &Path) -> Result<Vec<Restored>, JournalError> {
    restore(Bounds { journals: directory, units }, |_| true)
}

/// Undoes the steps of killed processes in one namespace.
///
/// # Errors
/// As [`restore_abandoned`].
pub(crate) fn restore_abandoned_in(bounds: Bounds<'_>, netns: &NetNs) -> Result<Vec<Restored>, JournalError> {
    restore(bounds, |record| record.netns_inode == netns.inode())
}

fn restore(bounds: Bounds<'_>, meant: impl Fn(&Record) -> bool) -> Result<Vec<Restored>, JournalError> {
    let Some(directory) = Directory::open(bounds.journals)? else { return Ok(Vec::new()) };
    let (mut restored, mut first_error) = (Vec::new(), None);
    remove_drafts(&directory);
    for (name, record) in records(&directory)? {
        if record.is_live() || !meant(&record) {
            continue;
        }
        match restore_record(&directory.path_of(&name), &record, bounds) {
            Ok(steps) => restored.extend(steps),
            Err(error) => {
                first_error = first_error.or(Some(error));
                continue;
            }
        }
        match directory.remove(&name) {
            // Another process has just done the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(|source| failed("remove", &directory.path_of(&name), source))?,
        }
    }
    first_error.map_or(Ok(restored), Err)
}

fn restore_record(path: &Path, record: &Record, bounds: Bounds<'_>) -> Result<Vec<Restored>, JournalError> {
    bounds.check(&record.steps).map_err(|problem| refused(path, problem))?;
    // A namespace without a process and without a name no longer exists, nor do its devices.
    let Some(netns) = namespace_with(record.netns_inode) else {
        return Ok(record.steps.iter().cloned().map(Restored::Missing).collect());
    };
    let refused = |source| JournalError::Restore { path: path.to_owned(), source };
    let mut handle = NetnsHandle::open(&netns).map_err(|error| refused(unreachable_namespace(&error)))?;
    undo_all(&mut handle, &record.steps).map_err(refused)
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
