//! Abey's own datapath as what is measured.

pub mod network;

pub use network::Datapath;
