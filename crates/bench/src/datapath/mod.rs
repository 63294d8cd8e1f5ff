//! Abey's own datapath as what is measured: without root, over a shared-memory NIC.

mod bed;
mod meter;
pub mod network;
mod proof;

pub use bed::Memory;
pub use network::Datapath;
