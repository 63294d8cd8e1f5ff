//! Changing settings as a whole: planned and checked first, journalled, applied, and put back.

mod journal;
mod plan;
mod step;
mod wire;

pub use journal::{JOURNAL_DIRECTORY, JournalError, Restored, restore_abandoned};
pub use plan::{ApplyError, Plan, Target};
pub use step::{Place, SettingChange, Step};

use crate::netlink::NetlinkError;
use journal::Journal;

/// Settings that are in force and will be put back: by [`Applied::restore`], or when this value goes.
#[derive(Debug)]
#[must_use = "the settings are put back when this value goes"]
pub struct Applied {
    place: Place,
    done: Vec<Step>,
    journal: Option<Journal>,
}

impl Applied {
    /// Puts every setting back to what it was.
    ///
    /// A NAPI instance that has gone meanwhile took its settings with it, and a setting that somebody else changed
    /// since is left to them.
    ///
    /// # Errors
    /// What could not be put back; the journal is kept, so that `abey set --restore` can try again.
    pub fn restore(mut self) -> Result<Vec<Restored>, NetlinkError> {
        self.undo()
    }

    /// Leaves the settings in force for good.
    pub fn keep(mut self) {
        self.done.clear();
        if let Some(journal) = self.journal.take() {
            journal.remove();
        }
    }

    fn undo(&mut self) -> Result<Vec<Restored>, NetlinkError> {
        let outcome = step::undo_all(&mut self.place, &self.done);
        if outcome.is_ok() {
            self.done.clear();
            if let Some(journal) = self.journal.take() {
                journal.remove();
            }
        }
        outcome
    }
}

impl Drop for Applied {
    fn drop(&mut self) {
        if self.done.is_empty() {
            return;
        }
        if let Err(error) = self.undo() {
            eprintln!("abey: settings could not be put back: {error}; `abey set --restore` tries again");
        }
    }
}
