//! Samples what NAPI instances do, those of the kernel and of running datapaths, again and again and at little cost.
//!
//! A [`Sampler`] keeps what it reads from open (netlink, BPF maps, control sockets), looks at no process it need not, and
//! gives a [`Sample`]: instances with their settings, their mode and their counts. What is shown of it are
//! [rates](rates::Rates) between two, or [totals](totals::Totals) by device and mode that outlive the instances.
//!
//! What cannot be read is no reason to show nothing: each [`Collector`] succeeds or fails on its own, and says why.

#![forbid(unsafe_code)]

mod btf;
mod collector;
mod counts;
mod datapath;
mod host;
mod kernel;
pub mod polls;
pub mod rates;
mod sample;
mod sampler;
pub mod totals;

pub use collector::{Collector, Outcome, UnknownCollector};
pub use counts::{BATCH_BOUNDS, BATCHES, Counter, Counts};
pub use sample::{Datapath, Instance, Key, Sample, Settings, Softnet, World};
pub use sampler::{Options, Sampler};
