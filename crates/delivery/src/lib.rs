//! The delivery vocabulary: what a mode is called, which settings it stands for, and which settings make sense.
//!
//! Pure values: no input or output, no clock, no threads. Every world of Abey (the kernel's NAPI, the user-space
//! datapath, the simulator) takes its settings from here, so a result in one can be checked in another.
//!
//! ```
//! use abey_delivery::{Mode, Nanos};
//!
//! let mode: Mode = "suspend20".parse()?;
//! let settings = mode.settings();
//! assert_eq!(settings.napi.gro_flush_timeout, Nanos::from_micros(20));
//! assert_eq!(settings.napi.irq_suspend_timeout, Nanos::from_millis(20));
//! settings.validate()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod mode;
mod nanos;
mod settings;

pub use mode::{Mode, ParseModeError};
pub use nanos::{Nanos, ParseNanosError};
pub use settings::{EpollBusyPoll, Hold, ModeSettings, NapiSettings, PollContext, SettingsError, UNPRIVILEGED_BUDGET};
