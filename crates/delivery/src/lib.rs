//! The delivery core: when packets are looked at, and by whom, decided without doing any of it.
//!
//! Modes, settings and time are the vocabulary that every world of Abey shares (the kernel's NAPI, the user-space
//! datapath, the simulator), so a result in one can be checked in another. The core is the mechanism behind them as plain
//! values: no input or output, no clock, no threads, no locks.
//!
//! - [`Napi`] is one queue's delivery state: who owns it, whether it may interrupt, when its timer looks.
//! - [`Softirq`], [`NapiThread`] and [`WorkPool`] are the contexts that poll, [`EpollWait`] and [`SocketWait`] the
//!   applications that do.
//! - [`Store`] keeps the settings of queues that come and go.
//!
//! Events go in as `handle_*` methods with the time they happened at. What must happen comes out as a value, [`Actions`]
//! or a step such as [`WaitStep`], which the caller carries out. A poll is `begin_poll`, the caller taking packets from
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
//! // The softirq polls: it may take 64, finds 3, and so the queue is empty and may interrupt again.
//! assert_eq!(napi.begin_poll(PollContext::Softirq), Some(64));
//! let done = napi.handle_poll_done(Nanos::from_micros(11), 3);
//! assert_eq!(done.outcome, Outcome::Released);
//! assert_eq!(done.actions.interrupt, Some(InterruptAction::Unmask));
//! ```
//!
//! What a mode is called, and which settings it stands for:
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
    DEFAULT_WEIGHT, EpollBusyPoll, Hold, ModeSettings, NapiConfig, NapiSettings, PollContext, SettingsError,
    SoftirqLimits, SuspendFrom, SuspendVariant, UNPRIVILEGED_BUDGET,
};
pub use socket::{SOCKET_BUSY_POLL_BUDGET, SocketBusyPoll, SocketWait};
pub use softirq::{HandOver, Softirq, SoftirqStep};
pub use store::{Change, NapiId, NapiIndex, QueueKey, Store, StoreError};
