//! The kernel's modes on a test network: namespaces, a veth pair, a pinned server and a pinned load.

mod proof;
mod steps;
mod test_bed;

pub use test_bed::Linux;
