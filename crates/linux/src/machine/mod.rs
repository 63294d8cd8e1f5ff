//! What a machine's devices, interrupts and threads are set to: one snapshot of it, and why something is not in it.

mod capability;
mod error;
mod interrupts;
mod lack;
mod read;
mod state;

pub use capability::Capability;
pub use error::MachineError;
pub use interrupts::IrqSource;
pub use lack::{Able, Feature, Lack, Why};
pub use state::{DeviceState, IrqState, Link, NapiState, QueueState, Snapshot, ThreadState};
