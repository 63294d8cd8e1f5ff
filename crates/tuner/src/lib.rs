//! The tuner's runtime: samples the kernel's NAPI instances or a running datapath, and applies what the controller decides.
//!
//! The decisions are those of [`abey_tune::Controller`], which is pure and runs in the simulator as well. This crate is a crate of
//! its own because a policy file names goals and bounds (`abey-policy` uses `abey-tune`), and the runtime reads policies.
//!
//! | module | job |
//! | --- | --- |
//! | [`tuner`] | one interval after the other: sample, decide, apply. Independent of the kernel, the datapath and the clock |
//! | [`kernel`], [`datapath`] | the two things that can be tuned |
//! | [`host`] | what all groups of one host share: the netlink connection, the poll counters, the transaction |
//! | `meter`, `poll_cpus` | packets, polls and CPU time of a group, and the CPUs that poll it |
//! | [`server`] | the processes whose epoll instances get the mode's busy-poll parameters |
//! | [`latency`], [`probe`] | sources of latencies: a file that a client writes, or requests of our own |
//! | [`group`], [`device`], [`policy`] | which instances are tuned together, as the caller or a policy requests it |
//! | [`session`] | all groups, from the first interval to the end |
//! | [`report`] | one row and one line per decision, and a summary |

#![forbid(unsafe_code)]

pub mod datapath;
pub mod device;
pub mod group;
pub mod host;
pub mod kernel;
pub mod latency;
pub mod name;
pub mod policy;
pub mod probe;
pub mod report;
pub mod selection;
pub mod server;
pub mod session;
pub mod tuner;

mod error;
mod meter;
mod poll_cpus;

pub use error::TuneError;
