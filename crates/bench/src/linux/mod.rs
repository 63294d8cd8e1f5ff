//! The kernel's modes on a test network of our own: namespaces, a veth pair, a pinned server and a pinned load.

mod error;
mod matrix;
mod proof;
mod run;
mod server;
mod testbed;

pub use error::BenchError;
pub use matrix::{Matrix, Outcome, Progress, measure};
pub use server::App;
