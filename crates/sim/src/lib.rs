//! Discrete-event simulator that runs the delivery core in virtual time.
//!
//! It models the costs of clients, wire, NIC, CPUs and event-loop servers. The delivery decisions are those of
//! `abey-delivery`, so a mode runs the same code as in the datapath. Virtual time is in integer nanoseconds, and a
//! seed gives identical results on every machine.
//!
//! - [`Profile`]: costs of the operations of a machine. [`Scenario`]: clients, load, server and delivery mode.
//! - [`run`] simulates a scenario and returns its [`Outcome`]; [`run_steered`] changes load and settings meanwhile.
//! - [`reference`](mod@reference): published tables and their predictions. [`fit`]: fitting of a profile to one.
//!
//! # The cost model
//!
//! An operation costs instructions, at the warm rate, and stall cycles. Its cost also depends on the past: a thread
//! that was interrupted, woken or switched to needs additional cycles to refill caches and pipeline. They are added
//! to the instructions that it executes next (half of them within
//! [`recovery_instructions`](profile::Processor::recovery_instructions)). Interrupts therefore slow down the work
//! that they interrupt. Polling between two waits does not, though it executes the same instructions.
//!
//! # Topologies
//!
//! By default every queue has its own CPU and server thread. A [`Topology`] can have any number of either. A
//! scheduler places unpinned threads when they wake, and migrates them while they wait. It accounts for threads but
//! not for softirqs, which is why polling in threads has a lower tail latency and costs throughput.

#![forbid(unsafe_code)]

pub mod fit;
pub mod plan;
pub mod profile;
pub mod reference;
#[cfg(feature = "report")]
pub mod report;
pub mod scenario;
pub mod timeline;
pub mod topology;

mod adaptation;
mod distribution;
mod events;
mod fifo;
mod input;
mod nic;
mod outcome;
mod random;
mod recording;
mod trace;
mod waits;
mod wire;
mod world;

pub use abey_config::SettingsFile;
pub use distribution::{Delay, Size};
pub use input::InputError;
pub use outcome::Outcome;
pub use profile::Profile;
pub use recording::{External, Recording, What};
pub use scenario::{Arrivals, Load, NicSettings, Responder, Scenario, ScenarioFile, Sizes};
pub use topology::Topology;
pub use trace::{Activity, CpuLevel, RequestTrace, Slice, Trace, Track};
pub use world::{Next, run, run_recorded, run_steered, run_traced};
