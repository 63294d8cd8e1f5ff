//! The settings that `abey apply` keeps in force, with the values before: what a later policy no longer names is restored
//! from here.
//!
//! There is one file for each network namespace, in the directory of the journals. Like these it does not survive a restart
//! of the machine, which discards the settings as well. A journal belongs to changes in progress; once they are complete,
//! they are written here and the journal is removed. A process that is killed in between leaves both: the values that the
//! journal restores are found restored when they are compared with this file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

use abey_linux::machine::{DeviceState, NapiState, Snapshot};
use abey_linux::process::start_time;
use serde::{Deserialize, Serialize};

use crate::bounds::Bounds;
use crate::directory::{Directory, refused};
use crate::error::JournalError;
use crate::journal::write_json;
use crate::lock::{STATE_LIMIT, wait_for};
use crate::setting::{Instance, SavedQueue};
use crate::step::Step;

/// One setting that is kept in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedStep {
    /// The device's ifindex, which distinguishes it from a later device of the same name. `None` for a process or unit.
    pub ifindex: Option<u32>,
    /// The receive queue that the setting belongs to. NAPI instances, interrupts and threads have other numbers after
    /// their queue was recreated.
    pub queue: Option<u32>,
    /// The change from the value before the first apply to the value that is kept.
    pub step: Step,
}

impl AppliedStep {
    /// Whether both belong to the same device and queue.
    fn is_at(&self, other: &Self) -> bool {
        self.ifindex == other.ifindex && self.queue == other.queue
    }

    /// Joins this step and a later one of the same setting; `None` if they are of different settings.
    fn joined_by(&self, later: &Self) -> Option<Self> {
        let step = self.is_at(later).then(|| later.step.edit().joined_to(&self.step))??;
        Some(Self { step, ..later.clone() })
    }

    /// Whether the step removes what `earlier` created, or creates what that one removed.
    fn undoes(&self, earlier: &Self) -> bool {
        self.ifindex == earlier.ifindex && self.step.edit().undoes(&earlier.step)
    }
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    /// The process that runs `abey apply --watch`: its ID, and its start time in clock ticks since boot.
    watcher: Option<(u32, u64)>,
    kept: Vec<AppliedStep>,
}

impl Content {
    fn read(bounds: Bounds<'_>, namespace: u64) -> Result<Self, JournalError> {
        let Some(directory) = Directory::open(bounds.journals)? else { return Ok(Self::default()) };
        let name = file_of(namespace);
        let text = directory.read(&name)?;
        text.map_or_else(|| Ok(Self::default()), |text| Self::parse(&text, &directory.path_of(&name), bounds))
    }

    fn parse(text: &[u8], path: &Path, bounds: Bounds<'_>) -> Result<Self, JournalError> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let content: Self = serde_json::from_slice(text)
            .map_err(|error| JournalError::Content { path: path.to_owned(), reason: error.to_string() })?;
        bounds.check(content.kept.iter().map(|one| &one.step)).map_err(|problem| refused(path, problem))?;
        Ok(content)
    }
}

/// The settings that are kept in force in a network namespace. While this value exists, no other process changes them.
#[derive(Debug)]
pub struct AppliedState {
    directory: Directory,
    name: OsString,
    /// Locked. Saving replaces the file by a new one, which is locked, too.
    file: File,
    content: Content,
    changed: bool,
}

impl AppliedState {
    /// Reads the settings of the namespace with this [cookie](abey_linux::kernel::NetnsHandle::namespace_cookie) without a
    /// lock: they may change at any time. `units` is the directory of drop-ins.
    ///
    /// # Errors
    /// When the file cannot be read, or is refused.
    pub fn read(directory: &Path, units: &Path, namespace: u64) -> Result<Vec<AppliedStep>, JournalError> {
        Ok(Content::read(Bounds { journals: directory, units }, namespace)?.kept)
    }

    /// Returns the ID of the process that runs `abey apply --watch` in the namespace, if it is not the caller.
    ///
    /// # Errors
    /// As [`AppliedState::read`].
    pub fn watcher(directory: &Path, units: &Path, namespace: u64) -> Result<Option<u32>, JournalError> {
        let content = Content::read(Bounds { journals: directory, units }, namespace)?;
        let Some((pid, started)) = content.watcher else { return Ok(None) };
        Ok((pid != std::process::id() && start_time(pid) == Some(started)).then_some(pid))
    }

    /// Opens the file and locks it, after waiting for another process that holds the lock.
    ///
    /// # Errors
    /// When the file cannot be read, is refused, or cannot be opened for writing; when the lock is not free within half a
    /// minute, or a signal asks this process to end.
    pub fn open(directory: &Path, units: &Path, namespace: u64) -> Result<Self, JournalError> {
        let (bounds, name) = (Bounds { journals: directory, units }, file_of(namespace));
        let directory = Directory::create(directory)?;
        let path = directory.path_of(&name);
        let open = || directory.open_or_create(&name);
        let file = wait_for(&path, STATE_LIMIT, open, |file| directory.has(&name, file))?;
        let content = Content::parse(&directory.read_all(&name, &file)?, &path, bounds)?;
        Ok(Self { directory, name, file, content, changed: false })
    }

    /// Returns the settings in the order in which they were changed.
    pub fn entries(&self) -> &[AppliedStep] {
        &self.content.kept
    }

    /// Records whether this process runs `abey apply --watch`.
    pub fn set_watching(&mut self, watching: bool) {
        let pid = std::process::id();
        let watcher = watching.then(|| (pid, start_time(pid).unwrap_or(0)));
        if watching || self.content.watcher.is_some_and(|(other, _)| other == pid) {
            self.changed |= self.content.watcher != watcher;
            self.content.watcher = watcher;
        }
    }

    /// Removes a setting that was restored, no longer exists, or was changed by another program.
    pub fn forget(&mut self, applied: &AppliedStep) {
        let before = self.content.kept.len();
        self.content.kept.retain(|one| one != applied);
        self.changed |= self.content.kept.len() != before;
    }

    /// Adds steps that were taken and are kept. A step of a setting that is kept already is joined to the earlier one.
    /// `machine` is the state after all steps.
    pub fn record(&mut self, steps: &[Step], machine: &Snapshot) {
        let mut saved = BTreeMap::new();
        for step in steps {
            if let Step::Channels(channels) = step {
                let of_queue = |queue: &SavedQueue| ((channels.device.name.clone(), queue.queue), queue.clone());
                saved.extend(channels.saved.queues.iter().map(of_queue));
            }
            for part in step.edit().parts() {
                self.changed = true;
                self.add(part, machine, &saved);
            }
        }
    }

    fn add(&mut self, step: Step, machine: &Snapshot, saved: &BTreeMap<(String, u32), SavedQueue>) {
        let device = step.device().and_then(|name| machine.device(name));
        if step.device().is_some() && device.is_none() {
            return;
        }
        let instance = step.edit().instance();
        let queue = instance.zip(device).and_then(|(instance, device)| queue_of(instance, device));
        if instance.is_some() && queue.is_none() {
            // A later step recreated the queues.
            return;
        }
        let first = queue.and_then(|queue| saved.get(&(step.device()?.to_owned(), queue)));
        let step = first.map_or_else(|| step.clone(), |first| step.edit().since(first));
        let applied = AppliedStep { ifindex: device.map(|state| state.device.ifindex), queue, step };
        let all = &mut self.content.kept;
        if let Some(undone) = all.iter().position(|one| applied.undoes(one)) {
            all.remove(undone);
            return;
        }
        let joined = all.iter().enumerate().find_map(|(at, one)| Some((at, one.joined_by(&applied)?)));
        match joined {
            Some((at, joined)) if joined.step.edit().is_nothing() => _ = all.remove(at),
            Some((at, joined)) => all[at] = joined,
            None if applied.step.edit().is_nothing() => {}
            None => all.push(applied),
        }
    }

    /// Writes the file atomically. Dropping an empty state removes the file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&mut self) -> Result<(), JournalError> {
        if !self.changed {
            return Ok(());
        }
        self.file = write_json(&self.directory, &self.content, |file, draft| {
            // Locked before the rename, so that the lock is never free in between.
            file.lock()?;
            self.directory.rename(draft, &self.name)?;
            Ok(file)
        })?;
        self.changed = false;
        Ok(())
    }
}

impl Drop for AppliedState {
    fn drop(&mut self) {
        let empty = self.content.watcher.is_none() && self.content.kept.is_empty();
        if empty && !self.changed {
            let _ = self.directory.remove(&self.name);
        }
    }
}

/// Returns the first receive queue of an instance.
fn queue_of(instance: Instance, device: &DeviceState) -> Option<u32> {
    let is_it = |napi: &&NapiState| match instance {
        Instance::Napi(id) => napi.napi.id == id,
        Instance::Irq(irq) => napi.irq.as_ref().is_ok_and(|found| found.irq == irq),
    };
    device.napis.iter().find(is_it)?.rx_queues.first().copied()
}

fn file_of(namespace: u64) -> OsString {
    format!("applied-{namespace}.state").into()
}
