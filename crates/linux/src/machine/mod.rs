//! A snapshot of the settings of a machine's devices, interrupts and threads, with a reason for each missing value.

mod capability;
mod error;
mod interrupts;
mod read;
mod state;
mod unavailable;

pub use capability::Capability;
pub use error::MachineError;
pub use interrupts::IrqSource;
pub use state::{DeviceState, IrqState, Link, NapiState, QueueState, Snapshot, ThreadState};
pub use unavailable::{Available, Cause, Feature, Unavailable};
