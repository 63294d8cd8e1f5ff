//! The online controller: it takes a goal, bounds and samples, and returns the next settings with a reason.
//!
//! A [`Controller`] tunes the delivery of one NAPI instance, or of a group of queues that share a goal. It is a plain
//! value and does no I/O: the caller takes a [`Sample`] of each interval, passes it to
//! [`handle_sample`](Controller::handle_sample), and applies the returned settings. So the same code tunes the kernel,
//! the datapath, and the simulator's hosts in virtual time, in which it was developed.
//!
//! ```
//! use abey_delivery::Nanos;
//! use abey_tune::{Bounds, Controller, Latency, Sample};
//!
//! let mut tuner = Controller::new("p99=250us".parse()?, Bounds::default(), None)?;
//! let interval = Nanos::from_millis(500);
//! let latency = Latency { count: 10_000, p50: Nanos::from_micros(60), p99: Nanos::from_micros(140) };
//! let sample = Sample { interval, packets: 20_000, polls: 9_000, empty_polls: 500, cpu: 0.2, latency: Some(latency) };
//! let steps = (1..20).map(|n| tuner.handle_sample(Nanos::from_millis(500 * n), &sample));
//! let first = steps.into_iter().find(|step| step.changed).expect("there is much room below the goal");
//! assert!(Bounds::default().contains(&first.settings));
//! println!("{}", first.reason);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | question | module |
//! | --- | --- |
//! | the decisions; the candidate choices | `controller`, `controller/options` |
//! | goal, permitted settings, measurements | `goal`, `bounds` (`choice`), `sample` |
//! | measured latency and CPU of each choice at each load | `memory` |
//! | expected latency and CPU of an unused choice | `forecast` |
//! | telling a change from noise | `watch` |
//! | recent failures, and the limit on swings | `restraint` |
//! | the reason of a step | `reason` |

#![forbid(unsafe_code)]

mod bounds;
mod choice;
mod controller;
mod forecast;
mod goal;
mod memory;
mod reason;
mod restraint;
mod sample;
mod watch;

pub use bounds::{Bounds, BoundsError};
pub use controller::{Controller, StartError, Step};
pub use goal::{Goal, ParseGoalError};
pub use reason::{Reason, Why};
pub use sample::{Latency, Sample};
