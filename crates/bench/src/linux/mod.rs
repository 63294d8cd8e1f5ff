//! The kernel's modes on a test network of our own: namespaces, a veth pair, a pinned server and a pinned load.

mod bed;
mod proof;
mod steps;

pub use bed::Linux;
