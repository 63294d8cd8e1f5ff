//! The settings of a NAPI instance one by one: names, values as text, and changes of some of them.
//!
//! The functions here destructure [`NapiSettings`], [`NapiChange`] and [`NapiSetting`] completely, so that the compiler
//! names each place which a new setting needs.

use std::fmt;
use std::str::FromStr;

use super::{Hold, NapiSettings, PollContext};
use crate::{Nanos, ParseNanosError};

/// One setting of a NAPI instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NapiSetting {
    /// [`NapiSettings::defer_hard_irqs`], a count.
    DeferHardIrqs,
    /// [`NapiSettings::gro_flush_timeout`], a time.
    GroFlushTimeout,
    /// [`NapiSettings::irq_suspend_timeout`], a time.
    IrqSuspendTimeout,
    /// [`NapiSettings::context`], a name.
    Threaded,
    /// [`NapiSettings::hold`], a time with the way to hold.
    Hold,
}

/// The value of one setting.
///
/// Text form: a plain number, a time as [`Nanos`] prints it, the name of a context, or a hold time; `none` without hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingValue {
    /// A number of polls.
    Count(u32),
    /// A time; zero switches the setting off.
    Time(Nanos),
    /// The context that polls.
    Context(PollContext),
    /// Staying in poll mode.
    Hold(Option<Hold>),
}

impl NapiSetting {
    /// All settings, in the order in which tables and files list them.
    pub const ALL: [Self; 5] =
        [Self::DeferHardIrqs, Self::GroFlushTimeout, Self::IrqSuspendTimeout, Self::Threaded, Self::Hold];

    /// Returns the setting's name in settings files, flags and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeferHardIrqs => "defer-hard-irqs",
            Self::GroFlushTimeout => "gro-flush-timeout",
            Self::IrqSuspendTimeout => "irq-suspend-timeout",
            Self::Threaded => "threaded",
            Self::Hold => "hold",
        }
    }

    /// Returns the value that this setting has among `settings`.
    pub const fn get(self, settings: &NapiSettings) -> SettingValue {
        let NapiSettings { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, context, hold } = *settings;
        match self {
            Self::DeferHardIrqs => SettingValue::Count(defer_hard_irqs),
            Self::GroFlushTimeout => SettingValue::Time(gro_flush_timeout),
            Self::IrqSuspendTimeout => SettingValue::Time(irq_suspend_timeout),
            Self::Threaded => SettingValue::Context(context),
            Self::Hold => SettingValue::Hold(hold),
        }
    }
}

impl SettingValue {
    /// Returns whether this is the kernel's default: zero, the softirq, or no hold.
    pub fn is_default(self) -> bool {
        match self {
            Self::Count(count) => count == 0,
            Self::Time(span) => span.is_zero(),
            Self::Context(context) => context == PollContext::default(),
            Self::Hold(hold) => hold.is_none(),
        }
    }
}

impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Time(span) => span.fmt(f),
            Self::Context(context) => context.fmt(f),
            Self::Hold(Some(hold)) => hold.fmt(f),
            Self::Hold(None) => f.pad("none"),
        }
    }
}

/// A change of the settings of a NAPI instance that the kernel has too; `None` leaves a setting alone.
///
/// There is no change of hold alone: it comes only with a whole set of settings, such as a mode's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiChange {
    /// The new [`NapiSettings::defer_hard_irqs`].
    pub defer_hard_irqs: Option<u32>,
    /// The new [`NapiSettings::gro_flush_timeout`].
    pub gro_flush_timeout: Option<Nanos>,
    /// The new [`NapiSettings::irq_suspend_timeout`].
    pub irq_suspend_timeout: Option<Nanos>,
    /// The new [`NapiSettings::context`].
    pub context: Option<PollContext>,
}

impl NapiChange {
    /// Returns the change that gives an instance exactly these settings, except hold.
    pub const fn to(settings: &NapiSettings) -> Self {
        let NapiSettings { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, context, hold: _ } = *settings;
        Self {
            defer_hard_irqs: Some(defer_hard_irqs),
            gro_flush_timeout: Some(gro_flush_timeout),
            irq_suspend_timeout: Some(irq_suspend_timeout),
            context: Some(context),
        }
    }

    /// Returns the change from `old` to `new`: only the settings that differ, so that a setting which a kernel lacks is not
    /// written without need.
    pub fn between(old: &NapiSettings, new: &NapiSettings) -> Self {
        fn keep<T: PartialEq>(new: Option<T>, old: T) -> Option<T> {
            new.filter(|new| *new != old)
        }
        let Self { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, context } = Self::to(new);
        Self {
            defer_hard_irqs: keep(defer_hard_irqs, old.defer_hard_irqs),
            gro_flush_timeout: keep(gro_flush_timeout, old.gro_flush_timeout),
            irq_suspend_timeout: keep(irq_suspend_timeout, old.irq_suspend_timeout),
            context: keep(context, old.context),
        }
    }

    /// Returns `old` with the change made.
    pub fn applied_to(&self, old: &NapiSettings) -> NapiSettings {
        let Self { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, context } = *self;
        NapiSettings {
            defer_hard_irqs: defer_hard_irqs.unwrap_or(old.defer_hard_irqs),
            gro_flush_timeout: gro_flush_timeout.unwrap_or(old.gro_flush_timeout),
            irq_suspend_timeout: irq_suspend_timeout.unwrap_or(old.irq_suspend_timeout),
            context: context.unwrap_or(old.context),
            hold: old.hold,
        }
    }

    /// Returns this change with the settings that it leaves alone taken from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let Self { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, context } = self;
        Self {
            defer_hard_irqs: defer_hard_irqs.or(other.defer_hard_irqs),
            gro_flush_timeout: gro_flush_timeout.or(other.gro_flush_timeout),
            irq_suspend_timeout: irq_suspend_timeout.or(other.irq_suspend_timeout),
            context: context.or(other.context),
        }
    }

    /// Returns the settings that change, with their new values.
    pub fn settings(&self) -> impl Iterator<Item = (NapiSetting, SettingValue)> + use<> {
        let Self { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, context } = *self;
        [
            (NapiSetting::DeferHardIrqs, defer_hard_irqs.map(SettingValue::Count)),
            (NapiSetting::GroFlushTimeout, gro_flush_timeout.map(SettingValue::Time)),
            (NapiSetting::IrqSuspendTimeout, irq_suspend_timeout.map(SettingValue::Time)),
            (NapiSetting::Threaded, context.map(SettingValue::Context)),
        ]
        .into_iter()
        .filter_map(|(setting, value)| Some((setting, value?)))
    }

    /// Returns whether the change leaves every setting alone.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl PollContext {
    /// All contexts.
    pub const ALL: [Self; 4] = [Self::Softirq, Self::Thread, Self::BusyThread, Self::Workqueue];

    /// Returns the value of the setting `threaded` that stands for this context.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Softirq => "no",
            Self::Thread => "yes",
            Self::BusyThread => "busy",
            Self::Workqueue => "workqueue",
        }
    }
}

impl fmt::Display for PollContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text that is no value of the setting `threaded`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no value of threaded: write no, yes, busy or workqueue")]
pub struct ParseContextError(String);

impl FromStr for PollContext {
    type Err = ParseContextError;

    /// Reads a context's [name](PollContext::name).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|context| context.name() == text).ok_or_else(|| ParseContextError(text.to_owned()))
    }
}

impl Hold {
    /// Returns how long poll mode lasts after the last packet.
    pub const fn span(self) -> Nanos {
        match self {
            Self::Spin(span) | Self::Timer(span) => span,
        }
    }
}

impl fmt::Display for Hold {
    /// Writes the time, with `-timer` behind it if a timer polls: `50us`, `50us-timer`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spin(span) => span.fmt(f),
            Self::Timer(span) => f.pad(&format!("{span}-timer")),
        }
    }
}

/// Why a text is no hold time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseHoldError {
    /// The time is not a time.
    #[error(transparent)]
    Time(#[from] ParseNanosError),
    /// No hold is the absence of the setting, not a time of zero.
    #[error("write the time to stay in poll mode, such as \"50us\" or \"50us-timer\"")]
    Zero,
}

impl FromStr for Hold {
    type Err = ParseHoldError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (span, make): (_, fn(Nanos) -> Self) = match text.strip_suffix("-timer") {
            Some(span) => (span, Self::Timer),
            None => (text, Self::Spin),
        };
        let span: Nanos = span.parse()?;
        if span.is_zero() { Err(ParseHoldError::Zero) } else { Ok(make(span)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mode;

    #[test]
    fn a_change_leads_from_one_set_of_settings_to_another() {
        let all = Mode::EXAMPLES.map(|name| name.parse::<Mode>().expect(name).settings().napi);
        for old in all {
            for new in all {
                let change = NapiChange::between(&old, &new);
                assert_eq!(change.applied_to(&old), NapiSettings { hold: old.hold, ..new });
                assert_eq!(NapiChange::to(&new).applied_to(&old), NapiSettings { hold: old.hold, ..new });
                assert!(change.settings().all(|(setting, value)| value == setting.get(&new)));
                let differing = NapiSetting::ALL.into_iter().filter(|setting| setting.get(&old) != setting.get(&new));
                let differing = differing.filter(|setting| *setting != NapiSetting::Hold);
                assert!(change.settings().map(|(setting, _)| setting).eq(differing));
                assert_eq!(change.is_empty(), change.settings().next().is_none());
            }
        }
    }

    #[test]
    fn a_change_takes_what_it_leaves_alone_from_another() {
        let first = NapiChange { defer_hard_irqs: Some(7), ..NapiChange::default() };
        let second = NapiChange { defer_hard_irqs: Some(8), context: Some(PollContext::Thread), ..first };
        assert_eq!(first.or(second), NapiChange { defer_hard_irqs: Some(7), ..second });
    }

    #[test]
    fn contexts_and_hold_times_are_read_back() {
        for context in PollContext::ALL {
            assert_eq!(context.to_string().parse(), Ok(context));
        }
        assert!("maybe".parse::<PollContext>().expect_err("no context").to_string().contains("workqueue"));
        for hold in [Hold::Spin(Nanos::from_micros(50)), Hold::Timer(Nanos::from_millis(4))] {
            assert_eq!(hold.to_string().parse(), Ok(hold));
        }
        assert_eq!("0us-timer".parse::<Hold>(), Err(ParseHoldError::Zero));
        assert!(matches!("50".parse::<Hold>(), Err(ParseHoldError::Time(_))));
    }
}
