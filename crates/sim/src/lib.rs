//! Discrete-event world that runs the delivery core in virtual time.
//!
//! Clients, wire, NIC, CPUs and event-loop servers with costs; the delivery decisions are those of `abey-delivery`, so a
//! mode here is the same code as in the datapath. Virtual time is in integer nanoseconds, and one seed gives the same bytes
//! on every machine.
//!
//! - [`Profile`]: what operations cost on a machine. [`Scenario`]: who sends what to whom, under which mode.
//! - [`run`] simulates one scenario and gives its [`Outcome`]; [`run_steered`] changes load and settings while it goes on.
//! - [`reference`](mod@reference): the published tables, predicted beside published. [`fit`]: how a profile is made from one.
//!
//! # The cost model
//!
//! An operation costs instructions, at the warm rate, and stalled cycles. What an operation costs in a run depends on what
//! happened before: a thread that was interrupted, woken or switched to owes cycles for refilling caches and pipeline, and
//! pays them with the instructions that it executes next (half of them after
//! [`recovery_instructions`](profile::Processor::recovery_instructions)). So interrupts hurt the work they interrupt, and
//! polling between two waits does not, though both execute the same instructions.
//!
//! # Topologies
//!
//! Without saying more, every queue has a CPU and a server thread of its own. A [`Topology`] has any number of either; a
//! scheduler places threads that are not pinned when they wake, and moves them while they wait. It sees threads and not
//! softirqs: the reason why polling in threads has the better tail, and costs throughput.

#![forbid(unsafe_code)]

pub mod fit;
pub mod plan;
pub mod profile;
pub mod reference;
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

pub use abey_input::SettingsFile;
pub use distribution::{Delay, Size};
pub use input::InputError;
pub use outcome::Outcome;
pub use profile::Profile;
pub use recording::{External, Recording, What};
pub use scenario::{Arrivals, Load, NicSettings, Responder, Scenario, ScenarioFile, Sizes};
pub use topology::Topology;
pub use trace::{Activity, CpuLevel, RequestTrace, Slice, Trace, Track};
pub use world::{Next, run, run_recorded, run_steered, run_traced};
