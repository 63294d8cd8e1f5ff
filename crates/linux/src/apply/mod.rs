//! Changing settings as a whole: planned and checked first, journalled, applied, and put back.

mod change;
mod held;
mod journal;
mod kept;
mod kernel;
mod place;
mod plan;
mod replace;
mod reverse;
mod step;
mod take;
mod transaction;
mod undo;
mod wire;

pub use change::Change;
pub use journal::{JOURNAL_DIRECTORY, JournalError, Restored, abandoned, restore_abandoned, restore_abandoned_in};
pub use kept::{Keeping, Kept};
pub use kernel::Kernel;
pub use place::Place;
pub use plan::{ApplyError, Plan, Target};
pub use reverse::Reversal;
pub use step::{HeldByQueue, HeldByQueues, SettingChange, Step};
pub use transaction::{Applied, Made, Transaction};
pub use wire::{ChangeRecord, ContextRecord, SettingsRecord};
