//! Changes that are made one after another, each knowing what the last one brought about, and all of them or none.

use std::path::{Path, PathBuf};

use crate::machine::MachineError;
use crate::units::is_systemds;

use super::change::Change;
use super::journal::{Journal, Restored, live_journals, lock};
use super::kernel::Kernel;
use super::place::Place;
use super::plan::{ApplyError, Plan};
use super::step::{SettingChange, Step};
use super::undo::undo_all;

/// Changes under way. What is not [finished](Self::finish) is rolled back when the value goes.
///
/// Each step is in the journal before it is taken, so that after `kill -9` `abey set --restore` finds what to undo.
#[derive(Debug)]
#[must_use = "what was changed is rolled back when this value goes"]
pub struct Transaction<K: Kernel = Place> {
    applied: Applied<K>,
    directory: Option<PathBuf>,
}

/// What one change came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// What was changed; nothing where it was so already.
    pub changes: Vec<SettingChange>,
    /// The RSS context that serves a [`Change::Context`].
    pub context: Option<u32>,
    /// The steps that were taken.
    pub steps: Vec<Step>,
}

impl<K: Kernel> Transaction<K> {
    /// Begins. The journal is kept in `journal_directory`; `None` for a place that will vanish by itself.
    pub fn begin(kernel: K, journal_directory: Option<&Path>) -> Self {
        let applied = Applied { place: kernel, done: Vec::new(), journal: None };
        Self { applied, directory: journal_directory.map(Path::to_owned) }
    }

    /// The place, to look around between changes: new queues bring new NAPI instances, interrupts and threads.
    pub fn place(&mut self) -> &mut K {
        &mut self.applied.place
    }

    /// What has been changed so far, in order.
    pub fn steps(&self) -> &[Step] {
        &self.applied.done
    }

    /// Makes a change, where it is not so already.
    ///
    /// # Errors
    /// When the kernel or another Abey is against it, or the journal cannot be written; then nothing of this change
    /// stays, and what was changed before it does until this value goes.
    pub fn make(&mut self, change: &Change) -> Result<Made, ApplyError> {
        let steps = change.steps(&mut self.applied.place)?;
        if steps.is_empty() {
            return Ok(Made { context: change.context(&mut self.applied.place)?, ..Made::default() });
        }
        self.make_steps(steps, |_| false)
    }

    fn make_steps(&mut self, steps: Vec<Step>, also_mine: impl Fn(&Step) -> bool) -> Result<Made, ApplyError> {
        let context = self.take(steps.clone(), also_mine)?;
        Ok(Made { changes: steps.iter().flat_map(Step::changes).collect(), context, steps })
    }

    /// Puts back what was there before a step of long ago, unless somebody else has changed it since. Where queues are
    /// made anew for it, they get what they had before the step. Whether something was left to others is the answer's
    /// second part; what has gone is nothing to be done.
    ///
    /// # Errors
    /// As [`Transaction::make`].
    pub fn put_back(&mut self, step: &Step) -> Result<(Made, bool), ApplyError> {
        let reversal = match step.reversal(&mut self.applied.place) {
            Err(error) if error.is_gone() => return Ok((Made::default(), false)),
            other => other?,
        };
        if reversal.steps.is_empty() {
            return Ok((Made::default(), reversal.left));
        }
        let mut made = self.make_steps(reversal.steps, |_| false)?;
        if let Step::Channels { device, held, .. } = step {
            let queues = Change::Queues { device: device.clone(), held: held.clone() };
            // A thread is there only once its instance is threaded.
            for _ in 0..2 {
                let Made { changes, steps, .. } = self.make(&queues)?;
                made.changes.extend(changes);
                made.steps.extend(steps);
            }
        }
        Ok((made, reversal.left))
    }

    /// Lets systemd read the drop-ins that were changed; what runs is left alone.
    ///
    /// # Errors
    /// When it did not.
    pub fn reload_units(&mut self) -> Result<(), ApplyError> {
        let read = |step: &Step| matches!(step, Step::DropIn { path, .. } if is_systemds(path));
        if self.applied.done.iter().any(read) { Ok(self.applied.place.reload_units()?) } else { Ok(()) }
    }

    /// Makes planned changes of NAPI settings.
    ///
    /// # Errors
    /// As [`Transaction::make`].
    pub fn make_plan(&mut self, plan: Plan) -> Result<Made, ApplyError> {
        let (steps, about) = plan.into_parts();
        self.make_steps(steps, |held| about.covers(held))
    }

    /// Other steps that lead back to the same, also in the journal.
    pub(super) fn rewrite(&mut self, steps: Vec<Step>) -> Result<(), ApplyError> {
        let Applied { place, done, journal } = &mut self.applied;
        if let Some(journal) = journal {
            journal.rewrite(place.network_namespace(), &steps)?;
        }
        *done = steps;
        Ok(())
    }

    /// Undoes everything, the last change first.
    ///
    /// # Errors
    /// What could not be put back; the journal is kept, so that `abey set --restore` can try again.
    pub fn roll_back(self) -> Result<Vec<Restored>, MachineError> {
        self.applied.restore()
    }

    /// Ends with everything in force: to be [kept](Applied::keep) for good, or put back later.
    pub fn finish(self) -> Applied<K> {
        self.applied
    }

    /// Takes steps, all or none. What `also_mine` says of a step that somebody else holds counts as asked for, too.
    fn take(&mut self, steps: Vec<Step>, also_mine: impl Fn(&Step) -> bool) -> Result<Option<u32>, ApplyError> {
        let Applied { place, done, journal } = &mut self.applied;
        let before = done.len();
        done.extend(steps);
        let mine = &done[before..];
        let written = match &self.directory {
            Some(directory) => write_journal(directory, place, done, mine, journal, also_mine),
            None => Ok(()),
        };
        if let Err(error) = written {
            done.truncate(before);
            return Err(error);
        }
        let mut context = None;
        for taken in before..done.len() {
            match done[taken].take(place) {
                Ok(made) => context = context.or(made),
                Err(error) => {
                    // The failed step is undone as well: it may have been taken without sticking. What cannot be undone
                    // stays in the journal, and is tried again when this value goes.
                    done.truncate(taken + 1);
                    if undo_all(place, &done[before..]).is_ok() {
                        done.truncate(before);
                    }
                    return Err(error.into());
                }
            }
        }
        Ok(context)
    }
}

/// Makes sure that nobody else holds what is to be changed, and writes down what was there before.
fn write_journal<K: Kernel>(
    directory: &Path,
    place: &K,
    all: &[Step],
    new: &[Step],
    journal: &mut Option<Journal>,
    also_mine: impl Fn(&Step) -> bool,
) -> Result<(), ApplyError> {
    let netns_inode = place.network_namespace();
    // Nothing to change needs no journal, but what another Abey holds it will put back.
    let _lock = if new.is_empty() { None } else { Some(lock(directory)?) };
    for (pid, steps) in live_journals(directory, netns_inode, journal.as_ref())? {
        let is_mine = |held: &&Step| also_mine(held) || new.iter().any(|step| step.is_about_what(held));
        if let Some(held) = steps.iter().find(is_mine) {
            return Err(ApplyError::Held { pid, what: held.subject() });
        }
    }
    match journal {
        _ if new.is_empty() => {}
        Some(journal) => journal.rewrite(netns_inode, all)?,
        None => *journal = Some(Journal::write(directory, netns_inode, all)?),
    }
    Ok(())
}

/// Settings that are in force and will be put back: by [`Applied::restore`], or when this value goes.
#[derive(Debug)]
#[must_use = "the settings are put back when this value goes"]
pub struct Applied<K: Kernel = Place> {
    place: K,
    done: Vec<Step>,
    journal: Option<Journal>,
}

impl<K: Kernel> Applied<K> {
    /// Puts every setting back to what it was.
    ///
    /// A NAPI instance that has gone meanwhile took its settings with it, and a setting that somebody else changed
    /// since is left to them.
    ///
    /// # Errors
    /// What could not be put back; the journal is kept, so that `abey set --restore` can try again.
    pub fn restore(mut self) -> Result<Vec<Restored>, MachineError> {
        self.undo()
    }

    /// Leaves the settings in force for good.
    pub fn keep(mut self) {
        self.done.clear();
        self.remove_journal();
    }

    fn undo(&mut self) -> Result<Vec<Restored>, MachineError> {
        let outcome = undo_all(&mut self.place, &self.done);
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

impl<K: Kernel> Drop for Applied<K> {
    fn drop(&mut self) {
        // Nothing is held any more, or a failure was undone at once and only the journal is left.
        if self.done.is_empty() {
            self.remove_journal();
            return;
        }
        if let Err(error) = self.undo() {
            eprintln!("abey: settings could not be put back: {error}; `abey set --restore` tries again");
        }
    }
}
