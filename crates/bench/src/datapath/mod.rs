//! Abey's own datapath as what is measured: its own server without root over a shared-memory NIC, or any program over it.

mod bed;
mod meter;
pub mod network;
mod preloaded;
mod proof;
mod served;
mod steps;

pub use bed::Memory;
pub use network::Datapath;
pub(crate) use preloaded::shown;
pub use preloaded::{Preloaded, Wire};
