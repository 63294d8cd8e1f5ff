//! The online controller: a goal, bounds and samples in, the next settings and their reason out.
//!
//! A [`Controller`] steers the delivery of one NAPI instance, or of a group of queues that share a goal. It is a plain value
//! and does no I/O: whoever has it takes a [`Sample`] of what happened in an interval, asks
//! [`handle_sample`](Controller::handle_sample), and applies what comes out. So the same code tunes the kernel, the
//! datapath, and the simulator's hosts in virtual time, in which it was developed.
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
//! | what is decided, and when; among what | `controller`, `controller/options` |
//! | what is wanted, what may be chosen, what was seen | `goal`, `bounds` (`choice`), `sample` |
//! | what did each choice give and cost at each load | `memory` |
//! | what would one give that was never used there | `forecast` |
//! | is it chance | `watch` |
//! | what failed lately; no swinging | `restraint` |
//! | why | `reason` |

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
