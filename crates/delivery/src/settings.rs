//! What can be set, per NAPI instance and per epoll context, and which combinations make sense.

use crate::Nanos;

/// The largest busy-poll budget the kernel lets a process without `CAP_NET_ADMIN` choose, in packets
/// (`NAPI_POLL_WEIGHT`; Linux `Documentation/networking/napi.rst`, "epoll-based busy polling").
pub const UNPRIVILEGED_BUDGET: u16 = 64;

/// The largest `defer-hard-irqs`: the kernel keeps it in a signed 32-bit counter.
const MAX_DEFER_HARD_IRQS: u32 = i32::MAX as u32;

/// Who runs the polls of a NAPI instance that no application is busy polling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PollContext {
    /// The softirq of the CPU that took the interrupt (`threaded` = disabled).
    #[default]
    Softirq,
    /// One thread per NAPI instance, which sleeps when there is nothing to do (`threaded` = enabled).
    Thread,
    /// One thread per NAPI instance, which never sleeps (`threaded` = busy-poll).
    BusyThread,
    /// A shared pool of workers (datapath and sim only).
    Workqueue,
}

impl PollContext {
    /// Whether this is one of the two kinds of thread.
    pub const fn is_thread(self) -> bool {
        matches!(self, Self::Thread | Self::BusyThread)
    }

    /// Whether the same softirq, thread or pool does both.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hold {
    /// Poll without a pause until this long has passed without a packet.
    Spin(Nanos),
    /// Poll from a timer, at most two polls a packet, until this long has passed without a packet.
    Timer(Nanos),
}

/// The settings of one NAPI instance.
///
/// The default is the kernel's: everything zero, which is plain interrupts.
/// Source: Linux `Documentation/networking/napi.rst`; the attribute names are those of the netdev netlink family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NapiSettings {
    /// How many polls in a row that leave the queue empty may re-arm the timer instead of unmasking the interrupt.
    pub defer_hard_irqs: u32,
    /// How long after such a poll the timer polls again. Without deferral it only bounds how long GRO holds packets.
    pub gro_flush_timeout: Nanos,
    /// How long interrupts stay masked after an application took events, before the safety timer looks at the queue.
    pub irq_suspend_timeout: Nanos,
    /// Who polls.
    pub context: PollContext,
    /// Whether to stay in poll mode after the last packet.
    pub hold: Option<Hold>,
}

/// How many packets one poll of an instance may take (`NAPI_POLL_WEIGHT`).
pub const DEFAULT_WEIGHT: u16 = 64;

/// Which of the two published forms of IRQ suspension an instance follows.
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

/// From when irq-suspend-timeout counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SuspendFrom {
    /// From the last poll of the queue: no packet waits longer than the timeout, whatever the application does.
    #[default]
    LastPoll,
    /// From the delivery of the events, as in Linux. An application that is always given events from elsewhere, or takes
    /// the events of one poll in many waits, moves the timer out again and again and may leave a queue waiting for ever.
    Delivery,
}

/// What is fixed when a NAPI instance is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NapiConfig {
    /// How many packets one poll may take; at least 1.
    pub weight: u16,
    /// Which form of IRQ suspension to follow.
    pub suspend: SuspendVariant,
    /// From when irq-suspend-timeout counts.
    pub suspend_from: SuspendFrom,
}

impl NapiConfig {
    /// Everything as Linux does it.
    pub const LINUX: Self =
        Self { weight: DEFAULT_WEIGHT, suspend: SuspendVariant::Merged, suspend_from: SuspendFrom::Delivery };
}

impl Default for NapiConfig {
    fn default() -> Self {
        Self { weight: DEFAULT_WEIGHT, suspend: SuspendVariant::default(), suspend_from: SuspendFrom::default() }
    }
}

/// What one softirq run may use before it gives way to the scheduler.
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
pub struct EpollBusyPoll {
    /// How long one wait may busy poll before it sleeps, in whole microseconds; zero with `prefer` polls exactly once.
    pub usecs: u32,
    /// How many packets one poll may take.
    pub budget: u16,
    /// Prefer busy polling: keep the softirq away from the queue as long as the application polls often enough.
    pub prefer: bool,
}

/// Everything that a [mode](crate::Mode) stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModeSettings {
    /// The settings of every NAPI instance the server receives from.
    pub napi: NapiSettings,
    /// The busy-poll parameters of every epoll context of the server; `None` leaves them alone.
    pub epoll: Option<EpollBusyPoll>,
    /// The longest that one wait of the event loop may block; `None` for no bound.
    pub max_wait: Option<Nanos>,
    /// How long a blocking receive polls its own queue before it sleeps (`SO_BUSY_POLL`); `None` for not at all.
    pub socket_busy_poll: Option<Nanos>,
}

/// Why settings do not make sense together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Suspension falls back to deferral when traffic pauses; without it, it does nothing.
    #[error(
        "irq-suspend-timeout {suspend} has no effect without deferral: set defer-hard-irqs and gro-flush-timeout above 0 as well"
    )]
    SuspendWithoutDeferral {
        /// The irq-suspend-timeout asked for.
        suspend: Nanos,
    },
    /// A safety timer that fires before the deferral timer suspends nothing.
    #[error(
        "irq-suspend-timeout {suspend} must be longer than gro-flush-timeout {flush}: make the first longer or the second shorter"
    )]
    SuspendNotAboveFlush {
        /// The irq-suspend-timeout asked for.
        suspend: Nanos,
        /// The gro-flush-timeout asked for.
        flush: Nanos,
    },
    /// The kernel's counter is a signed 32-bit number.
    #[error("defer-hard-irqs {0} is out of range: it goes from 0 to {MAX_DEFER_HARD_IRQS}")]
    DeferOutOfRange(u32),
    /// Nothing can be polled with no budget.
    #[error("an epoll busy-poll budget of 0 polls nothing: choose 1 to 64 packets (more needs CAP_NET_ADMIN)")]
    ZeroBudget,
    /// The kernel keeps the busy-poll time in a signed 32-bit number of microseconds.
    #[error("an epoll busy-poll time of {0} us is out of range: it goes from 0 to {max} us", max = i32::MAX)]
    BusyPollOutOfRange(u32),
}

impl NapiSettings {
    /// Whether a timer may re-poll instead of unmasking the interrupt: both halves of deferral are set.
    pub const fn defers(&self) -> bool {
        self.defer_hard_irqs > 0 && !self.gro_flush_timeout.is_zero()
    }

    /// Checks that the settings make sense together.
    ///
    /// # Errors
    /// The first rule that is broken, in the words of the settings.
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

impl EpollBusyPoll {
    /// Checks the ranges that hold for every caller; whether a budget above [`UNPRIVILEGED_BUDGET`] is allowed
    /// depends on who asks.
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
    /// What of it only the datapath and the simulator have, and the Linux kernel does not; `None` if nothing.
    pub const fn only_ours(&self) -> Option<&'static str> {
        if self.napi.hold.is_some() {
            return Some("hold");
        }
        match self.napi.context {
            PollContext::Workqueue => Some("threaded = \"workqueue\""),
            PollContext::Softirq | PollContext::Thread | PollContext::BusyThread => None,
        }
    }

    /// Checks every part.
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
    fn suspension_needs_both_halves_of_deferral() {
        for settings in [suspend(0, 20, 20_000), suspend(100, 0, 20_000)] {
            assert!(matches!(settings.validate(), Err(SettingsError::SuspendWithoutDeferral { .. })), "{settings:?}");
        }
        assert_eq!(suspend(1, 20, 20_000).validate(), Ok(()));
    }

    #[test]
    fn the_safety_timer_is_the_longer_one() {
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
