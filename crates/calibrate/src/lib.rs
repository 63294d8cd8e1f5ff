//! Measures what operations cost on this machine, into a host profile for the simulator, and says how well that predicts.
//!
//! Three steps, each of which says where its figures come from:
//!
//! 1. [`costs`]: what can be measured alone is: system calls, wake-ups, timers, polls, packets; low quantiles of many
//!    interleaved repetitions.
//! 2. [`training`] and [`fit`]: what cannot be isolated is fitted to some rows of a short bench, the measured costs held.
//! 3. [`prediction`]: the other rows of the bench, which the search never saw, beside what the simulator says of them.
//!
//! The unit of a calibrated profile is the nanosecond: its processor is called one of 1000 MHz with one cycle an instruction,
//! since a machine without hardware counters tells only times.

#![forbid(unsafe_code)]

pub mod costs;
pub mod fit;
pub mod prediction;
pub mod template;
pub mod training;

pub use costs::{Cost, CostError, Costs, Operation};
pub use prediction::{Accuracy, Prediction};
pub use training::{Trained, TrainingError, World};
