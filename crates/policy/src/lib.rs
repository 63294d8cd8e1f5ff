//! A machine's delivery policy: the files, the devices they match, and the difference from a machine's state.
//!
//! The crate does no I/O: texts and a [snapshot](abey_linux::machine::Snapshot) of the machine are arguments,
//! [actions](Action) and messages are results. `abey-reconcile` reads the files and performs the actions.
//!
//! 1. [`Policy::parse_all`] parses the files; every error names file, line and key.
//! 2. [`Policy::resolve`] matches the policy with the devices: the [desired state](DesiredState).
//! 3. [`DesiredDevice::difference`] compares that with a device's state: the actions in order, and what is unsupported.
//!
//! [`dump()`] writes a state as a policy.
//!
//! An example with every key:
//!
//! ```toml
#![doc = include_str!("../example.toml")]
//! ```

#![forbid(unsafe_code)]

mod change;
mod desired;
mod difference;
mod dump;
mod error;
mod file;
mod model;
mod overlap;
mod program;
mod resolve;
mod select;
mod spanned;
mod tune;
mod tune_group;
mod value;

pub use change::Change;
pub use desired::{
    Absent, Desired, DesiredDevice, DesiredProgram, DesiredQueue, DesiredState, DesiredThread, SteeredPorts,
};
pub use difference::{Action, Difference, Planned, Unsupported};
pub use dump::dump;
pub use error::PolicyError;
pub use model::{DeviceRule, OnUnsupported, Policy, PortRule, Program, ProgramRule, QueueRule, Settings, ThreadRule};
pub use select::Selector;
pub use spanned::{Origin, Spanned};
pub use tune::Tune;
pub use tune_group::TuneGroup;
pub use value::{CpuChoice, Port, Queues};
