//! A machine's delivery policy: the file, the devices it means, and what has to change for it to hold.
//!
//! Pure: texts and a [snapshot](abey_linux::machine::Snapshot) of the machine come in, [acts](Act) and sentences go out.
//!
//! 1. [`Policy::parse_all`] reads the files; every error names file, line and key.
//! 2. [`Policy::resolve`] finds the devices that are meant, and what each of their queues shall have.
//! 3. [`DeviceWish::difference`] says what has to be done for it, in which order, and what cannot be done.
//!
//! 4. [`Wishes::fates`] says what becomes of what was applied before and is not wanted any more.
//!
//! [`dump()`] goes the other way: a state as a policy.
//!
//! Every key, in an example:
//!
//! ```toml
#![doc = include_str!("../example.toml")]
//! ```

#![forbid(unsafe_code)]

mod difference;
mod dump;
mod error;
mod file;
mod kept;
mod model;
mod overlap;
mod program;
mod resolve;
mod said;
mod select;
mod tune;
mod value;

pub use difference::{Act, Difference, Planned, Unsupported};
pub use dump::dump;
pub use error::PolicyError;
pub use kept::Fate;
pub use model::{DeviceRule, FlowWish, OnUnsupported, Policy, Program, ProgramRule, QueueRule, Settings, ThreadWish};
pub use program::ProgramWish;
pub use resolve::{Absent, DeviceWish, QueueWish, Steered, ThreadOfQueue, Wish, Wishes};
pub use said::{Origin, Said};
pub use select::Selector;
pub use tune::{Tune, TuneGroup};
pub use value::{CpuChoice, Port, Queues};
