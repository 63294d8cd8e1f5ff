//! The kernel's modes on a test network of our own: namespaces, a veth pair, a pinned server and a pinned load.

mod app;
mod bed;
mod network;
mod proof;

pub use app::App;
pub use bed::Linux;
