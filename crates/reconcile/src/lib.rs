//! Brings a machine's actual state to a desired state: journal, transaction, undo.
//!
//! - A [`Step`] is a change of one [setting] with the value before it, so that every step can be undone.
//! - A [`Transaction`] takes steps, all or none. Each is in a journal before it is taken: what a process that was killed
//!   had changed is found there by [`restore_abandoned`].
//! - A [`Plan`] is a change of NAPI settings that was checked before anything is written.
//! - The [`AppliedState`] holds what `abey apply` keeps in force; [`dispositions`] decides what of it is restored.
//! - A [`Reconciler`] applies a policy: it compares, changes and compares again until there is no difference. [`watch()`]
//!   repeats that after every change from outside.

#![forbid(unsafe_code)]

mod applied_state;
mod bounds;
mod change;
mod directory;
mod disposition;
mod error;
mod host;
mod journal;
mod lock;
mod outcome;
mod pace;
mod permission;
mod plan;
mod policy_files;
mod programs;
mod reconciler;
mod record;
mod rounds;
pub mod setting;
mod step;
mod transaction;
mod undo;
mod units;
mod view;
mod watch;

pub use applied_state::{AppliedState, AppliedStep};
pub use change::steps_for;
pub use disposition::{Disposition, dispositions};
pub use error::{JournalError, ReconcileError};
pub use host::Host;
pub use journal::{JOURNAL_DIRECTORY, restore_abandoned};
pub use outcome::Outcome;
pub use plan::{ApplyError, Plan, Target};
pub use policy_files::PolicyFiles;
pub use programs::{ProgramChange, ProgramState, processes_of};
pub use reconciler::{Reconciler, StopRequest};
pub use record::{ChangeRecord, ContextRecord, SettingsRecord};
pub use setting::{Reversal, SettingChange};
pub use step::Step;
pub use transaction::{Applied, Made, Transaction};
pub use undo::Restored;
pub use units::RUNTIME_UNITS;
pub use watch::{Request, WatchContext, watch};
