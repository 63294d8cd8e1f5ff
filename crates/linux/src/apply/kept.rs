//! What `abey apply` keeps in force, with what was there before: so that what a later policy no longer names goes back.
//!
//! One file for each network namespace, beside the journals, and like them lost at a restart of the machine, as the settings
//! are. A journal belongs to changes that are under way; once they stand, they are here and the journal goes. Whoever is
//! killed in between leaves both: what the journal puts back is found to be back already when it is looked for here.

mod join;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::machine::Snapshot;
use crate::process::start_time;

use super::journal::{JournalError, draft_in};
use super::step::{HeldByQueue, Step};

/// One thing that is kept in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The device's ifindex: a device with its name is another one, if its ifindex is. `None` for what is no device's.
    pub ifindex: Option<u32>,
    /// The receive queue that it is about: the numbers of NAPI instances, interrupts and threads are others once the
    /// queue was made anew.
    pub queue: Option<u32>,
    /// From what was there before to what is kept.
    pub step: Step,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    /// The process that watches: its number, and when it started, in clock ticks since boot.
    watcher: Option<(u32, u64)>,
    kept: Vec<Kept>,
}

impl Content {
    fn look(directory: &Path, namespace: u64) -> Result<Self, JournalError> {
        let path = file_of(directory, namespace);
        match fs::read_to_string(&path) {
            Ok(text) => parse(&text, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(failed("read", &path, error)),
        }
    }
}

/// What is kept in a network namespace; nobody else changes it while this value lives.
#[derive(Debug)]
pub struct Keeping {
    path: PathBuf,
    /// Locked. Another file takes its place when it is written.
    file: File,
    content: Content,
    changed: bool,
}

impl Keeping {
    /// What is kept in the namespace with this [cookie](super::Place::namespace_cookie), for a look: it may be changed at
    /// any time.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn look(directory: &Path, namespace: u64) -> Result<Vec<Kept>, JournalError> {
        Ok(Content::look(directory, namespace)?.kept)
    }

    /// The process that watches, if it is not this one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn look_watcher(directory: &Path, namespace: u64) -> Result<Option<u32>, JournalError> {
        let Some((pid, started)) = Content::look(directory, namespace)?.watcher else { return Ok(None) };
        Ok((pid != std::process::id() && start_time(pid) == Some(started)).then_some(pid))
    }

    /// Waits until nobody else changes it.
    ///
    /// # Errors
    /// When it cannot be read, or not be written later.
    pub fn open(directory: &Path, namespace: u64) -> Result<Self, JournalError> {
        let path = file_of(directory, namespace);
        fs::create_dir_all(directory).map_err(|error| failed("write", &path, error))?;
        loop {
            let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
            let mut file = open.map_err(|error| failed("write", &path, error))?;
            file.lock().map_err(|error| failed("write", &path, error))?;
            // Who had it before may have put another file in its place, or removed it.
            let same = |there: fs::Metadata| file.metadata().is_ok_and(|ours| ours.ino() == there.ino());
            if !fs::metadata(&path).is_ok_and(same) {
                continue;
            }
            let mut text = String::new();
            file.read_to_string(&mut text).map_err(|error| failed("read", &path, error))?;
            let content = parse(&text, &path)?;
            return Ok(Self { path, file, content, changed: false });
        }
    }

    /// What is kept, in the order in which it was changed.
    pub fn entries(&self) -> &[Kept] {
        &self.content.kept
    }

    /// Whether this process watches.
    pub fn set_watching(&mut self, watching: bool) {
        let pid = std::process::id();
        let watcher = watching.then(|| (pid, start_time(pid).unwrap_or(0)));
        if watching || self.content.watcher.is_some_and(|(other, _)| other == pid) {
            self.changed |= self.content.watcher != watcher;
            self.content.watcher = watcher;
        }
    }

    /// This is no longer kept: it was put back, has gone, or is somebody else's.
    pub fn forget(&mut self, kept: &Kept) {
        let before = self.content.kept.len();
        self.content.kept.retain(|one| one != kept);
        self.changed |= self.content.kept.len() != before;
    }

    /// These steps were taken, and are kept. What was kept already of the same thing goes on with what was there first;
    /// `machine` is as it is after all of them.
    pub fn record(&mut self, steps: &[Step], machine: &Snapshot) {
        let mut held = BTreeMap::new();
        for step in steps {
            if let Step::Channels { device, held: by_queues, .. } = step {
                let of_queue = |held: &HeldByQueue| ((device.name.clone(), held.queue), held.clone());
                held.extend(by_queues.queues.iter().map(of_queue));
            }
            for part in step.parts() {
                self.changed = true;
                self.add(part, machine, &held);
            }
        }
    }

    fn add(&mut self, step: Step, machine: &Snapshot, held: &BTreeMap<(String, u32), HeldByQueue>) {
        let device = step.device().and_then(|name| machine.device(name));
        if step.device().is_some() && device.is_none() {
            return;
        }
        let napi_of = |step: &Step| match step {
            Step::Napi { id, .. } | Step::Thread { napi: id, .. } => {
                device?.napis.iter().find(|napi| napi.napi.id == *id)
            }
            Step::Irq { irq, .. } => {
                device?.napis.iter().find(|napi| napi.irq.as_ref().is_ok_and(|found| found.irq == *irq))
            }
            _ => None,
        };
        let queue = napi_of(&step).and_then(|napi| napi.rx_queues.first().copied());
        if matches!(step, Step::Napi { .. } | Step::Thread { .. } | Step::Irq { .. }) && queue.is_none() {
            // Queues were made anew after it.
            return;
        }
        let first = queue.and_then(|queue| held.get(&(step.device()?.to_owned(), queue)));
        let kept = Kept { ifindex: device.map(|state| state.device.ifindex), queue, step: since(step, first) };
        let all = &mut self.content.kept;
        if let Some(undone) = all.iter().position(|one| kept.undoes(one)) {
            all.remove(undone);
            return;
        }
        match all.iter().position(|one| kept.is_of_same(one)) {
            Some(at) => {
                let joined = all[at].followed_by(&kept);
                all[at] = joined;
                if all[at].is_nothing() {
                    all.remove(at);
                }
            }
            None if kept.is_nothing() => {}
            None => all.push(kept),
        }
    }

    /// Writes it down: at every moment the old file or the new one is there and whole. Without anything kept there is none.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&mut self) -> Result<(), JournalError> {
        if !self.changed {
            return Ok(());
        }
        let beside = draft_in(self.path.parent().expect("it has a name in a directory"));
        let mut text =
            serde_json::to_vec_pretty(&self.content).map_err(|error| failed("write", &self.path, error.into()))?;
        text.push(b'\n');
        let written = File::create(&beside).and_then(|mut file| {
            // Locked before it has its name, so that it is ours all the time.
            file.lock()?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)?;
            Ok(file)
        });
        self.file = written.map_err(|error| {
            let _ = fs::remove_file(&beside);
            failed("write", &self.path, error)
        })?;
        self.changed = false;
        Ok(())
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        let empty = self.content.watcher.is_none() && self.content.kept.is_empty();
        if empty && !self.changed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn file_of(directory: &Path, namespace: u64) -> PathBuf {
    directory.join(format!("applied-{namespace}.state"))
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> JournalError {
    JournalError::File { action, path: path.to_owned(), source }
}

fn parse(text: &str, path: &Path) -> Result<Content, JournalError> {
    if text.is_empty() {
        return Ok(Content::default());
    }
    let failed = |error: serde_json::Error| JournalError::Content { path: path.to_owned(), reason: error.to_string() };
    serde_json::from_str(text).map_err(failed)
}

/// The step, from what its queue had before a change of the channels took that away.
fn since(step: Step, first: Option<&HeldByQueue>) -> Step {
    let Some(held) = first else { return step };
    match step {
        Step::Napi { id, device, change, .. } => Step::Napi { id, device, before: held.napi.clone(), change },
        Step::Irq { device, irq, before, after } => {
            Step::Irq { device, irq, before: held.irq_cpus.clone().unwrap_or(before), after }
        }
        other => other,
    }
}
