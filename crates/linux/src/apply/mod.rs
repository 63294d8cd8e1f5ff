//! Changing settings as a whole: planned and checked first, journalled, applied, and put back.

mod change;
mod journal;
mod kernel;
mod place;
mod plan;
mod replace;
mod step;
mod take;
mod transaction;
mod undo;
mod wire;

pub use change::Change;
pub use journal::{JOURNAL_DIRECTORY, JournalError, Restored, restore_abandoned};
pub use kernel::Kernel;
pub use place::Place;
pub use plan::{ApplyError, Plan, Target};
pub use step::{HeldByQueue, HeldByQueues, SettingChange, Step};
pub use transaction::{Applied, Made, Transaction};
pub use wire::{ChangeRecord, ContextRecord, SettingsRecord};
