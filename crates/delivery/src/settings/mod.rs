//! The settings of NAPI instances, epoll contexts and sockets, and the rules that they obey together.
//!
//! A setting is defined here once: its field, its name ([`NapiSetting`]), its text, its range ([`SettingsError`]) and its
//! serde form. The worlds, settings files and the control protocol use these types.

#[cfg(feature = "serde")]
mod form;
mod napi_setting;

use crate::Nanos;

pub use napi_setting::{NapiChange, NapiSetting, ParseContextError, ParseHoldError, SettingValue};

/// The largest busy-poll budget the kernel lets a process without `CAP_NET_ADMIN` choose, in packets
/// (`NAPI_POLL_WEIGHT`; Linux `Documentation/networking/napi.rst`, "epoll-based busy polling").
pub const UNPRIVILEGED_BUDGET: u16 = 64;

/// The largest `defer-hard-irqs`: the kernel keeps it in a signed 32-bit counter.
const MAX_DEFER_HARD_IRQS: u32 = i32::MAX as u32;

/// The context that polls a NAPI instance while no application busy polls it.
///
/// Text form: the value of the setting `threaded`, which is `no`, `yes`, `busy` or `workqueue`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PollContext {
    /// The softirq of the CPU that took the interrupt (`threaded` = disabled).
    #[default]
    #[cfg_attr(feature = "serde", serde(rename = "no"))]
    Softirq,
    /// One thread per NAPI instance, which sleeps while the queue is empty (`threaded` = enabled).
    #[cfg_attr(feature = "serde", serde(rename = "yes"))]
    Thread,
    /// One thread per NAPI instance, which never sleeps (`threaded` = busy-poll).
    #[cfg_attr(feature = "serde", serde(rename = "busy"))]
    BusyThread,
    /// A shared pool of workers (datapath and sim only).
    #[cfg_attr(feature = "serde", serde(rename = "workqueue"))]
    Workqueue,
}

impl PollContext {
    /// Returns whether this is one of the two kinds of thread.
    pub const fn is_thread(self) -> bool {
        matches!(self, Self::Thread | Self::BusyThread)
    }

    /// Returns whether one softirq, thread or pool serves both contexts.
    pub(crate) const fn is_same_place(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Softirq, Self::Softirq)
                | (Self::Thread | Self::BusyThread, Self::Thread | Self::BusyThread)
                | (Self::Workqueue, Self::Workqueue)
        )
    }
}

/// Staying in poll mode after the last packet (datapath and sim only).
///
/// Text form: the time, with `-timer` behind it for [`Hold::Timer`] (`50us`, `50us-timer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "form::HoldDocument", into = "form::HoldDocument"))]
pub enum Hold {
    /// Polls without a pause until no packet has come for this long.
    Spin(Nanos),
    /// Polls from a timer, at most two polls a packet, until no packet has come for this long.
    Timer(Nanos),
}

/// The settings of one NAPI instance.
///
/// The default is the kernel's: everything zero, which is plain interrupts.
/// Source: Linux `Documentation/networking/napi.rst`; the attribute names are those of the netdev netlink family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct NapiSettings {
    /// The number of polls in a row that leave the queue empty and re-arm the timer instead of unmasking the interrupt.
    pub defer_hard_irqs: u32,
    /// The time from such a poll to the timer's poll. Without deferral it only bounds how long GRO holds packets.
    #[cfg_attr(feature = "serde", serde(rename = "gro_flush_timeout_ns"))]
    pub gro_flush_timeout: Nanos,
    /// The time that interrupts stay masked after an application took events, until the safety timer polls the queue.
    #[cfg_attr(feature = "serde", serde(rename = "irq_suspend_timeout_ns"))]
    pub irq_suspend_timeout: Nanos,
    /// The context that polls.
    #[cfg_attr(feature = "serde", serde(rename = "threaded"))]
    pub context: PollContext,
    /// Staying in poll mode after the last packet; `None` leaves poll mode at once.
    pub hold: Option<Hold>,
}

/// The number of packets that one poll of an instance may take (`NAPI_POLL_WEIGHT`).
pub const DEFAULT_WEIGHT: u16 = 64;

/// The published form of IRQ suspension that an instance follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SuspendVariant {
    /// As merged in Linux 6.13: a busy poll that ends arms gro-flush-timeout, and only delivering events moves the timer
    /// out to irq-suspend-timeout.
    #[default]
    Merged,
    /// As in the first five revisions of the series: a busy poll that ends under *prefer*, and a completion under it,
    /// arm irq-suspend-timeout whenever it is set.
    Early,
}

/// The moment from which irq-suspend-timeout counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SuspendFrom {
    /// The last poll of the queue: no packet waits longer than the timeout, whatever the application does.
    #[default]
    LastPoll,
    /// The delivery of events, as in Linux. An application that keeps receiving events of other queues, or that takes the
    /// events of one poll in many waits, moves the timer out each time, so a queue may wait without limit.
    Delivery,
}

/// The fixed parameters of a NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NapiConfig {
    /// The number of packets that one poll may take; at least 1.
    pub weight: u16,
    /// The form of IRQ suspension.
    pub suspend: SuspendVariant,
    /// The moment from which irq-suspend-timeout counts.
    pub suspend_from: SuspendFrom,
}

impl NapiConfig {
    /// The behaviour of Linux.
    pub const LINUX: Self =
        Self { weight: DEFAULT_WEIGHT, suspend: SuspendVariant::Merged, suspend_from: SuspendFrom::Delivery };
}

impl Default for NapiConfig {
    fn default() -> Self {
        Self { weight: DEFAULT_WEIGHT, suspend: SuspendVariant::default(), suspend_from: SuspendFrom::default() }
    }
}

/// The limits of one softirq run, after which the softirq thread continues under the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoftirqLimits {
    /// Packets (`net.core.netdev_budget`).
    pub packets: u32,
    /// Time (`net.core.netdev_budget_usecs`).
    pub time: Nanos,
}

impl Default for SoftirqLimits {
    fn default() -> Self {
        Self { packets: 300, time: Nanos::from_millis(2) }
    }
}

/// Busy polling from an epoll context: the parameters of `EPIOCSPARAMS` (Linux 6.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct EpollBusyPoll {
    /// The time that one wait may busy poll before it sleeps, in whole microseconds; zero with `prefer` polls exactly once.
    pub usecs: u32,
    /// The number of packets that one poll may take.
    pub budget: u16,
    /// Prefer busy polling: the softirq does not poll the queue as long as the application polls often enough.
    pub prefer: bool,
}

/// All settings of a [mode](crate::Mode).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
pub struct ModeSettings {
    /// The settings of every NAPI instance that the server receives from.
    pub napi: NapiSettings,
    /// The busy-poll parameters of every epoll context of the server; `None` does not set them.
    #[cfg_attr(feature = "serde", serde(rename = "busy_poll"))]
    pub epoll: Option<EpollBusyPoll>,
    /// The longest time that one wait of the event loop may block; `None` for no limit.
    #[cfg_attr(feature = "serde", serde(rename = "max_wait_ns"))]
    pub max_wait: Option<Nanos>,
    /// The time that a blocking receive polls its own queue before it sleeps (`SO_BUSY_POLL`); `None` for no polling.
    #[cfg_attr(feature = "serde", serde(rename = "socket_busy_poll_ns"))]
    pub socket_busy_poll: Option<Nanos>,
}

/// A rule that settings break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Suspension falls back to deferral when traffic pauses. Without deferral it has no effect.
    #[error(
        "irq-suspend-timeout {suspend} has no effect without deferral: set defer-hard-irqs and gro-flush-timeout above 0 as well"
    )]
    SuspendWithoutDeferral {
        /// The requested irq-suspend-timeout.
        suspend: Nanos,
    },
    /// A safety timer that fires before the deferral timer does not suspend interrupts.
    #[error(
        "irq-suspend-timeout {suspend} must be longer than gro-flush-timeout {flush}: make the first longer or the second shorter"
    )]
    SuspendNotAboveFlush {
        /// The requested irq-suspend-timeout.
        suspend: Nanos,
        /// The requested gro-flush-timeout.
        flush: Nanos,
    },
    /// The kernel's counter is a signed 32-bit number.
    #[error("defer-hard-irqs {0} is out of range: it goes from 0 to {MAX_DEFER_HARD_IRQS}")]
    DeferOutOfRange(u32),
    /// A poll with a budget of zero takes no packet.
    #[error("an epoll busy-poll budget of 0 polls nothing: choose 1 to 64 packets (more needs CAP_NET_ADMIN)")]
    ZeroBudget,
    /// The kernel keeps the busy-poll time in a signed 32-bit number of microseconds.
    #[error("an epoll busy-poll time of {0} us is out of range: it goes from 0 to {max} us", max = i32::MAX)]
    BusyPollOutOfRange(u32),
}

impl NapiSettings {
    /// Returns whether a timer polls again instead of unmasking the interrupt: both settings of deferral are above zero.
    pub const fn defers(&self) -> bool {
        self.defer_hard_irqs > 0 && !self.gro_flush_timeout.is_zero()
    }

    /// Checks the ranges, and the rules between settings.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.defer_hard_irqs > MAX_DEFER_HARD_IRQS {
            return Err(SettingsError::DeferOutOfRange(self.defer_hard_irqs));
        }
        let suspend = self.irq_suspend_timeout;
        if suspend.is_zero() {
            return Ok(());
        }
        if !self.defers() {
            return Err(SettingsError::SuspendWithoutDeferral { suspend });
        }
        if suspend <= self.gro_flush_timeout {
            return Err(SettingsError::SuspendNotAboveFlush { suspend, flush: self.gro_flush_timeout });
        }
        Ok(())
    }
}

impl std::fmt::Display for EpollBusyPoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} us, budget {}{}", self.usecs, self.budget, if self.prefer { ", prefer" } else { "" })
    }
}

impl EpollBusyPoll {
    /// Checks the ranges that hold for every process. Whether a budget above [`UNPRIVILEGED_BUDGET`] is allowed depends on
    /// the capabilities of the process.
    ///
    /// # Errors
    /// The value that is out of range.
    pub const fn validate(&self) -> Result<(), SettingsError> {
        if self.budget == 0 {
            return Err(SettingsError::ZeroBudget);
        }
        if self.usecs > i32::MAX as u32 {
            return Err(SettingsError::BusyPollOutOfRange(self.usecs));
        }
        Ok(())
    }
}

impl ModeSettings {
    /// Returns a setting that the Linux kernel does not have, only the datapath and the simulator; `None` if there is none.
    pub const fn only_ours(&self) -> Option<&'static str> {
        if self.napi.hold.is_some() {
            return Some("hold");
        }
        match self.napi.context {
            PollContext::Workqueue => Some("threaded = \"workqueue\""),
            PollContext::Softirq | PollContext::Thread | PollContext::BusyThread => None,
        }
    }

    /// Checks the settings of the NAPI instances and of the epoll contexts.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn validate(&self) -> Result<(), SettingsError> {
        self.napi.validate()?;
        self.epoll.map_or(Ok(()), |epoll| epoll.validate())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspend(defer: u32, flush_us: u64, suspend_us: u64) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: defer,
            gro_flush_timeout: Nanos::from_micros(flush_us),
            irq_suspend_timeout: Nanos::from_micros(suspend_us),
            ..NapiSettings::default()
        }
    }

    #[test]
    fn suspension_needs_both_settings_of_deferral() {
        for settings in [suspend(0, 20, 20_000), suspend(100, 0, 20_000)] {
            assert!(matches!(settings.validate(), Err(SettingsError::SuspendWithoutDeferral { .. })), "{settings:?}");
        }
        assert_eq!(suspend(1, 20, 20_000).validate(), Ok(()));
    }

    #[test]
    fn the_safety_timer_is_longer_than_the_deferral() {
        assert!(matches!(suspend(100, 20, 20).validate(), Err(SettingsError::SuspendNotAboveFlush { .. })));
        assert_eq!(suspend(100, 20, 21).validate(), Ok(()));
    }

    #[test]
    fn the_deferral_count_fits_the_kernels_counter() {
        assert_eq!(suspend(i32::MAX as u32, 20, 0).validate(), Ok(()));
        assert!(matches!(suspend(i32::MAX as u32 + 1, 20, 0).validate(), Err(SettingsError::DeferOutOfRange(_))));
    }

    #[test]
    fn a_busy_poll_needs_a_budget_and_a_time_in_range() {
        let epoll = |usecs, budget| EpollBusyPoll { usecs, budget, prefer: true }.validate();
        assert_eq!(epoll(0, 64), Ok(()));
        assert_eq!(epoll(64, 0), Err(SettingsError::ZeroBudget));
        assert!(matches!(epoll(u32::MAX, 64), Err(SettingsError::BusyPollOutOfRange(_))));
    }
}
