//! Test beds of Abey's datapath: its built-in server over a shared-memory NIC (without root), or any preloaded program.

mod memory;
mod meter;
pub mod network;
mod preloaded;
mod proof;
mod server;
mod steps;

pub use memory::Memory;
pub use network::Datapath;
pub(crate) use preloaded::command_text;
pub use preloaded::{Preloaded, Wire};
