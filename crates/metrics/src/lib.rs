//! Samples the NAPI instances of the kernel and of running datapaths, repeatedly and at low cost.
//!
//! A [`Sampler`] keeps its netlink socket, BPF maps and control connections open between samples and reads no process that
//! it does not need. A [`Sample`] holds the instances with their settings, mode and counts. Two samples give
//! [rates](rates::Rates); a sequence of samples gives [totals](totals::Totals) by device and mode, which continue when
//! instances are created anew.
//!
//! A source that cannot be read does not hide the others: each [`Collector`] succeeds or fails on its own and reports its
//! error.
//!
//! Three features add the output of commands: `exporter` (Prometheus metrics over HTTP or in a text file), `top` (sorted and
//! filtered rows) and `status` (text and JSON document of `abey status`).

#![forbid(unsafe_code)]

mod collector;
mod counts;
mod datapath;
#[cfg(feature = "exporter")]
pub mod exporter;
mod host;
mod kernel;
pub mod polls;
pub mod rates;
mod sample;
mod sampler;
#[cfg(feature = "status")]
pub mod status;
#[cfg(feature = "top")]
pub mod top;
pub mod totals;

pub use collector::{Collector, CollectorResult, UnknownCollector};
pub use counts::{BATCH_BOUNDS, BATCH_BUCKETS, Counter, Counts};
pub use sample::{Datapath, Instance, InstanceKey, Owner, Sample, Softnet};
pub use sampler::{Options, Sampler};
