//! Changes that are made one after another, each on the state that the last one left, and all of them or none.

use std::path::{Path, PathBuf};

use abey_linux::kernel::NetnsHandle;
use abey_linux::machine::MachineError;
use abey_policy::Change;

use crate::change::{existing_context, steps_for};
use crate::directory::Directory;
use crate::host::Host;
use crate::journal::{Journal, live_journals};
use crate::plan::{ApplyError, Plan};
use crate::setting::{Assignment, ChannelsEdit, DropIn, Reversal, SettingChange};
use crate::step::Step;
use crate::undo::{Restored, undo_all};
use crate::units::is_systemds;

/// Changes in progress. They are rolled back when the value is dropped, unless it was [finished](Self::finish).
///
/// Each step is in the journal before it is taken, so that after `kill -9` `abey set --restore` can undo it.
#[derive(Debug)]
#[must_use = "the changes are rolled back when this value is dropped"]
pub struct Transaction<H: Host = NetnsHandle> {
    applied: Applied<H>,
    directory: Option<PathBuf>,
}

/// The result of one change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// What was changed; empty if nothing had to change.
    pub changes: Vec<SettingChange>,
    /// The RSS context that serves a [`Change::Context`].
    pub context: Option<u32>,
    /// The steps that were taken.
    pub steps: Vec<Step>,
}

impl Made {
    /// Adds the changes and steps of another result.
    pub(crate) fn extend(&mut self, other: Self) {
        self.changes.extend(other.changes);
        self.steps.extend(other.steps);
    }
}

impl<H: Host> Transaction<H> {
    /// Begins a transaction. The journal is written to `journal_directory`; `None` if the namespace is temporary.
    pub fn begin(host: H, journal_directory: Option<&Path>) -> Self {
        let applied = Applied { host, done: Vec::new(), journal: None };
        Self { applied, directory: journal_directory.map(Path::to_owned) }
    }

    /// Returns the machine, to read its state between changes: new queues bring new NAPI instances, interrupts and
    /// threads.
    pub fn host(&mut self) -> &mut H {
        &mut self.applied.host
    }

    /// Returns the steps taken so far, in order.
    pub fn steps(&self) -> &[Step] {
        &self.applied.done
    }

    /// Makes a change, if anything has to change.
    ///
    /// # Errors
    /// When the kernel refuses it, another Abey process holds the setting, or the journal cannot be written. This change
    /// is undone then; earlier ones stay until the value is dropped.
    pub fn make(&mut self, change: &Change) -> Result<Made, ApplyError> {
        let steps = steps_for(change, &mut self.applied.host)?;
        if steps.is_empty() {
            return Ok(Made { context: existing_context(change, &mut self.applied.host)?, ..Made::default() });
        }
        self.make_steps(steps, |_| false)
    }

    fn make_steps(&mut self, steps: Vec<Step>, also_conflicts: impl Fn(&Step) -> bool) -> Result<Made, ApplyError> {
        let context = self.take(steps.clone(), also_conflicts)?;
        Ok(Made { changes: steps.iter().flat_map(Step::changes).collect(), context, steps })
    }

    /// Reverses a step of an earlier transaction, unless another program has changed the setting since. If that recreates
    /// queues, they get the settings that were saved with the step. Something that no longer exists needs no change.
    ///
    /// The second value is whether something stays because another program has changed it.
    ///
    /// # Errors
    /// As [`Transaction::make`].
    pub fn put_back(&mut self, step: &Step) -> Result<(Made, bool), ApplyError> {
        let Reversal { steps, changed_since, saved } = match step.reversal(&mut self.applied.host) {
            Err(error) if error.is_gone() => return Ok((Made::default(), false)),
            other => other?,
        };
        if steps.is_empty() {
            return Ok((Made::default(), changed_since));
        }
        let mut made = self.make_steps(steps, |_| false)?;
        if let (Some(saved), Step::Channels(ChannelsEdit { device, .. })) = (saved, step) {
            // A thread exists only after its instance is threaded.
            for _ in 0..2 {
                let steps = saved.steps(&mut self.applied.host, device)?;
                if !steps.is_empty() {
                    made.extend(self.make_steps(steps, |_| false)?);
                }
            }
        }
        Ok((made, changed_since))
    }

    /// Makes systemd read its units again if drop-ins were changed. Running units are not affected.
    ///
    /// # Errors
    /// When systemd did not.
    pub fn reload_units(&mut self) -> Result<(), ApplyError> {
        let is_read = |step: &Step| matches!(step, Step::DropIn(Assignment { setting: DropIn { path, .. }, .. }) if is_systemds(path));
        if self.applied.done.iter().any(is_read) { Ok(self.applied.host.reload_units()?) } else { Ok(()) }
    }

    /// Makes the planned changes of NAPI settings.
    ///
    /// # Errors
    /// As [`Transaction::make`].
    pub fn make_plan(&mut self, plan: Plan) -> Result<Made, ApplyError> {
        let (steps, scope) = plan.into_parts();
        self.make_steps(steps, |held| scope.includes(held))
    }

    /// Makes a plan as [`Transaction::make_plan`], and joins its steps with earlier ones of the same settings. However
    /// often settings are replaced, rolling back takes one step for each instance, and the journal does not grow.
    ///
    /// # Errors
    /// As [`Transaction::make_plan`]. The settings from before the call stay then, and are still rolled back later.
    pub fn replace(&mut self, plan: Plan) -> Result<Made, ApplyError> {
        // Until the journal is rewritten it undoes both steps one after the other, which has the same result.
        let made = self.make_plan(plan)?;
        let joined = join_napi_steps(self.steps());
        if joined.len() < self.steps().len() {
            self.rewrite(joined)?;
        }
        Ok(made)
    }

    /// Replaces the steps, here and in the journal, by others that undo the same.
    fn rewrite(&mut self, steps: Vec<Step>) -> Result<(), ApplyError> {
        let Applied { host, done, journal } = &mut self.applied;
        if let Some(journal) = journal {
            journal.rewrite(host.network_namespace(), &steps)?;
        }
        *done = steps;
        Ok(())
    }

    /// Undoes everything, in reverse order.
    ///
    /// # Errors
    /// The first setting that could not be restored; the journal stays, so that `abey set --restore` can try again.
    pub fn roll_back(self) -> Result<Vec<Restored>, MachineError> {
        self.applied.restore()
    }

    /// Ends the transaction with everything in force: to be [kept](Applied::keep) for good, or restored later.
    pub fn finish(self) -> Applied<H> {
        self.applied
    }

    /// Takes steps, all or none. Steps of another process for which `also_conflicts` is true are conflicts, too.
    fn take(&mut self, steps: Vec<Step>, also_conflicts: impl Fn(&Step) -> bool) -> Result<Option<u32>, ApplyError> {
        let Applied { host, done, journal } = &mut self.applied;
        let before = done.len();
        done.extend(steps);
        let written = match &self.directory {
            Some(directory) => {
                write_journal(directory, host.network_namespace(), (done, before), journal, also_conflicts)
            }
            None => Ok(()),
        };
        if let Err(error) = written {
            done.truncate(before);
            return Err(error);
        }
        let mut context = None;
        for index in before..done.len() {
            match done[index].take(host) {
                Ok(made) => context = context.or(made),
                Err(error) => {
                    // The failed step is undone as well: the kernel may have accepted it without keeping it. What cannot be
                    // undone stays in the journal, and is tried again when this value is dropped.
                    done.truncate(index + 1);
                    if undo_all(host, &done[before..]).is_ok() {
                        done.truncate(before);
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(context)
    }
}

/// Returns one step for each NAPI instance and each file of a device, from the first value to the last. Other steps stay
/// as they are.
fn join_napi_steps(steps: &[Step]) -> Vec<Step> {
    let mut joined: Vec<Step> = Vec::new();
    for step in steps {
        let is_napi = matches!(step, Step::Napi(_) | Step::DeviceFile(_));
        let same = |first: &Step| is_napi && first.claim() == step.claim() && first.device() == step.device();
        let found = joined.iter().enumerate().filter(|(_, first)| same(first));
        match found.into_iter().find_map(|(at, first)| Some((at, step.edit().joined_to(first)?))) {
            Some((at, both)) => joined[at] = both,
            None => joined.push(step.clone()),
        }
    }
    joined
}

/// Checks that no other process holds what the new steps (those of `steps` from `first_new` on) change, and writes all
/// steps to the journal.
fn write_journal(
    directory: &Path,
    netns_inode: u64,
    (steps, first_new): (&[Step], usize),
    journal: &mut Option<Journal>,
    also_conflicts: impl Fn(&Step) -> bool,
) -> Result<(), ApplyError> {
    let new = &steps[first_new..];
    // Without new steps nothing is written. Settings that another process will restore are a conflict all the same.
    let directory = if new.is_empty() { Directory::open(directory)? } else { Some(Directory::create(directory)?) };
    let Some(directory) = directory else { return Ok(()) };
    // No other process may claim a setting between the check for conflicts and the write of the journal.
    let _lock = if new.is_empty() { None } else { Some(directory.lock()?) };
    for (pid, held) in live_journals(&directory, netns_inode, journal.as_ref())? {
        let conflicts = |held: &&Step| also_conflicts(held) || new.iter().any(|step| step.conflicts(held));
        if let Some(held) = held.iter().find(conflicts) {
            return Err(ApplyError::Held { pid, what: held.subject() });
        }
    }
    match journal {
        _ if new.is_empty() => {}
        Some(journal) => journal.rewrite(netns_inode, steps)?,
        None => *journal = Some(Journal::write(&directory, netns_inode, steps)?),
    }
    Ok(())
}

/// Settings that are in force and will be restored: by [`Applied::restore`], or when this value is dropped.
#[derive(Debug)]
#[must_use = "the settings are restored when this value is dropped"]
pub struct Applied<H: Host = NetnsHandle> {
    host: H,
    done: Vec<Step>,
    journal: Option<Journal>,
}

impl<H: Host> Applied<H> {
    /// Restores every setting.
    ///
    /// A NAPI instance that no longer exists took its settings with it. A setting that another program has changed since
    /// keeps that program's value.
    ///
    /// # Errors
    /// The first setting that could not be restored; the journal stays, so that `abey set --restore` can try again.
    pub fn restore(mut self) -> Result<Vec<Restored>, MachineError> {
        self.undo()
    }

    /// Leaves the settings in force for good.
    pub fn keep(mut self) {
        self.done.clear();
        self.remove_journal();
    }

    fn undo(&mut self) -> Result<Vec<Restored>, MachineError> {
        let outcome = undo_all(&mut self.host, &self.done);
        if outcome.is_ok() {
            self.done.clear();
            self.remove_journal();
        }
        outcome
    }

    fn remove_journal(&mut self) {
        if let Some(journal) = self.journal.take() {
            journal.remove();
        }
    }
}

impl<H: Host> Drop for Applied<H> {
    fn drop(&mut self) {
        // Without steps there may still be a journal: after a failure that was undone at once.
        if self.done.is_empty() {
            self.remove_journal();
            return;
        }
        if let Err(error) = self.undo() {
            eprintln!("abey: cannot restore all settings: {error}; run `abey set --restore` to try again");
        }
    }
}
