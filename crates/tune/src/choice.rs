//! A choice: a family of settings and the value of its timeout.

use abey_delivery::{Family, Mode, ModeSettings, Nanos};

/// A family of settings with the figures that are tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Choice {
    pub(crate) family: Family,
    /// gro-flush-timeout; zero in `base`, which has none.
    pub(crate) flush: Nanos,
    /// irq-suspend-timeout; zero except in `suspend`.
    pub(crate) suspend: Nanos,
}

impl Choice {
    /// Returns the choice with these settings, or `None` if their family is not tuned.
    pub(crate) fn of(settings: &ModeSettings) -> Option<Self> {
        let family = Family::of(settings);
        let napi = &settings.napi;
        let choice = Self { family, flush: napi.gro_flush_timeout, suspend: napi.irq_suspend_timeout };
        (is_tuned(family) && choice.settings() == *settings).then_some(choice)
    }

    /// Returns whether two choices differ at most in irq-suspend-timeout, which does not affect the price.
    pub(crate) fn is_alike(self, other: Self) -> bool {
        self.family == other.family && self.flush == other.flush
    }

    pub(crate) fn settings(self) -> ModeSettings {
        let mut settings = match self.family {
            Family::Defer => Mode::Defer(self.flush).settings(),
            Family::Suspend => Mode::Suspend(self.flush).settings(),
            Family::NapiBusy => Mode::NapiBusy.settings(),
            Family::FullBusy => Mode::FullBusy.settings(),
            _ => Mode::Base.settings(),
        };
        settings.napi.gro_flush_timeout = self.flush;
        settings.napi.irq_suspend_timeout = self.suspend;
        settings
    }
}

/// Returns whether a controller chooses settings of this family.
pub(crate) const fn is_tuned(family: Family) -> bool {
    matches!(family, Family::Base | Family::Defer | Family::NapiBusy | Family::FullBusy | Family::Suspend)
}
