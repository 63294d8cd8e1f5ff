//! The delivery core: decides which context polls a queue and when.
//!
//! Modes, settings and time are the vocabulary that every world of Abey shares (the kernel's NAPI, the user-space
//! datapath, the simulator), so a result in one can be checked in another. The core is the mechanism behind them as plain
//! values: no input or output, no clock, no threads, no locks.
//!
//! - [`Napi`] is one queue's delivery state: its owner, whether it may interrupt, when its timer fires.
//! - [`Softirq`], [`NapiThread`] and [`WorkPool`] are the contexts that poll, [`EpollWait`] and [`SocketWait`] the
//!   applications that do.
//! - [`Store`] holds the settings of queues across their removal and re-creation.
//! - [`handoff`] decides which thread receives a queue's interrupt and deadline in user space; [`lateness`] shortens timed
//!   sleeps.
//! - [`record`] records the calls to an instance, so that two worlds can be compared.
//!
//! Events go in as `handle_*` methods with the time they happened at. What must happen comes out as a value, [`Actions`]
//! or a step such as [`WaitStep`], which the caller executes. A poll is `begin_poll`, the caller taking packets from
//! its queue, and `handle_poll_done`:
//!
//! ```
//! use abey_delivery::{InterruptAction, Mode, Nanos, Napi, NapiConfig, Outcome, PollContext};
//!
//! let mut napi = Napi::new(NapiConfig::default(), Mode::Base.settings().napi);
//! assert_eq!(napi.enable().interrupt, Some(InterruptAction::Unmask));
//! let queue_is_not_empty = false;
//! assert!(napi.handle_unmasked(Nanos::ZERO, queue_is_not_empty).is_none());
//!
//! // Three packets arrive, and the queue interrupts.
//! let actions = napi.handle_interrupt(Nanos::from_micros(10));
//! assert_eq!(actions.interrupt, Some(InterruptAction::Mask));
//! assert_eq!(actions.run, Some(PollContext::Softirq));
//!
//! // The softirq polls: its budget is 64 and it finds 3, so the queue is empty and may interrupt again.
//! assert_eq!(napi.begin_poll(PollContext::Softirq), Some(64));
//! let done = napi.handle_poll_done(Nanos::from_micros(11), 3);
//! assert_eq!(done.outcome, Outcome::Released);
//! assert_eq!(done.actions.interrupt, Some(InterruptAction::Unmask));
//! ```
//!
//! A mode is parsed from its name, and stands for settings:
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

pub mod check;
pub mod fault;
pub mod handoff;
pub mod lateness;
pub mod record;

mod action;
mod context;
mod epoll;
mod family;
mod flags;
mod mode;
mod nanos;
mod napi;
mod settings;
mod socket;
mod softirq;
mod store;

pub use action::{Actions, InterruptAction, Outcome, PollDone, TimerAction};
pub use context::{NapiThread, ThreadStep, WorkPool};
pub use epoll::{EpollConfig, EpollContext, EpollWait, Membership, WaitStep, ZeroTimeout};
pub use family::{Family, ParseFamilyError, describe, mode_of, nearest_mode};
pub use flags::Flags;
pub use mode::{Mode, ParseModeError};
pub use nanos::{Nanos, ParseNanosError};
pub use napi::{Napi, Poller};
pub use settings::{
    DEFAULT_WEIGHT, EpollBusyPoll, Hold, ModeSettings, NapiChange, NapiConfig, NapiSetting, NapiSettings,
    ParseContextError, ParseHoldError, PollContext, SettingValue, SettingsError, SoftirqLimits, SuspendFrom,
    SuspendVariant, UNPRIVILEGED_BUDGET,
};
pub use socket::{SOCKET_BUSY_POLL_BUDGET, SocketBusyPoll, SocketWait};
pub use softirq::{HandOver, Softirq, SoftirqStep};
pub use store::{Change, NapiId, NapiIndex, QueueKey, Store, StoreError};
