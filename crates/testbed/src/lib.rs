//! Network namespaces, veth pairs and child processes that a bench or a test makes, and that vanish with it.
//!
//! Nothing here has a name in a file system: a namespace lives as long as a descriptor, a process or a socket refers to it,
//! and a veth pair as long as the namespaces of its ends. So nothing is left behind, however the program ends.
//!
//! - [`veth`] makes a pair over netlink, between any two namespaces.
//! - [`spawn`] starts a child in a namespace, on some CPUs, or bound to the life of its parent.
//! - [`namespace`] runs a test in a namespace of its own, where [`network`] makes a pair with known addresses.
//! - [`fuzz`] runs a fuzz target in an ordinary test.
//! - [`old_kernel`] is one without something, for a thread.
//! - [`echo`] is a small epoll server with load for it, for tests of what the kernel does meanwhile.
//!
//! [`namespace`], [`network`], [`old_kernel`], [`fuzz`] and [`echo`] panic where something fails: they are for tests only.

pub mod echo;
mod error;
pub mod fuzz;
pub mod namespace;
pub mod network;
pub mod old_kernel;
pub mod spawn;
pub mod veth;

pub use error::TestbedError;
