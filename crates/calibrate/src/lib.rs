//! Measures the costs of operations on this machine, writes a host profile for the simulator, and validates its predictions.
//!
//! A calibration has three steps:
//!
//! 1. [`costs`]: operations that can be measured in isolation: system calls, wake-ups, timers, polls, packets. A cost is a low
//!    quantile of many interleaved batches.
//! 2. [`training`] and [`fit`]: the other costs are fitted to some rows of a short bench. The measured costs stay fixed.
//! 3. [`prediction`]: the profile is validated on the held-out rows of the bench.
//!
//! The unit of a calibrated profile is the nanosecond: the processor has 1000 MHz and one cycle per instruction, because a
//! machine without hardware counters measures only times.

#![forbid(unsafe_code)]

mod calibration;
pub mod costs;
pub mod fit;
pub mod prediction;
pub mod report;
pub mod template;
pub mod training;

pub use calibration::{CANDIDATE_TIME, Calibration, CalibrationError, CalibrationRequest, MAX_SEARCH_FACTOR, Stage};
pub use costs::{Cost, CostError, Costs, Operation};
pub use prediction::{Accuracy, Prediction};
pub use training::{BenchedRow, TrainingError};
