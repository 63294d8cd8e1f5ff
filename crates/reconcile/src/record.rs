//! The serialised form of NAPI settings: plain numbers with the units in their names, independent of the types in memory.

use abey_delivery::{Nanos, NapiSetting, NapiSettings, PollContext, SettingValue};
use serde::{Deserialize, Serialize};

use abey_linux::napi::NapiChange;

/// The context that polls, in a journal or state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ContextRecord {
    /// [`PollContext::Softirq`].
    Softirq,
    /// [`PollContext::Thread`].
    Thread,
    /// [`PollContext::BusyThread`].
    BusyThread,
}

impl From<PollContext> for ContextRecord {
    fn from(context: PollContext) -> Self {
        match context {
            PollContext::Thread => Self::Thread,
            PollContext::BusyThread => Self::BusyThread,
            PollContext::Softirq | PollContext::Workqueue => Self::Softirq,
        }
    }
}

impl From<ContextRecord> for PollContext {
    fn from(record: ContextRecord) -> Self {
        match record {
            ContextRecord::Softirq => Self::Softirq,
            ContextRecord::Thread => Self::Thread,
            ContextRecord::BusyThread => Self::BusyThread,
        }
    }
}

/// The settings of a NAPI instance, in a journal or state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsRecord {
    defer_hard_irqs: u32,
    gro_flush_timeout_ns: u64,
    irq_suspend_timeout_ns: u64,
    threaded: ContextRecord,
}

impl From<&NapiSettings> for SettingsRecord {
    fn from(settings: &NapiSettings) -> Self {
        Self {
            defer_hard_irqs: settings.defer_hard_irqs,
            gro_flush_timeout_ns: settings.gro_flush_timeout.as_nanos(),
            irq_suspend_timeout_ns: settings.irq_suspend_timeout.as_nanos(),
            threaded: settings.context.into(),
        }
    }
}

impl From<&SettingsRecord> for NapiSettings {
    fn from(record: &SettingsRecord) -> Self {
        Self {
            defer_hard_irqs: record.defer_hard_irqs,
            gro_flush_timeout: Nanos::from_nanos(record.gro_flush_timeout_ns),
            irq_suspend_timeout: Nanos::from_nanos(record.irq_suspend_timeout_ns),
            context: record.threaded.into(),
            hold: None,
        }
    }
}

/// A change of NAPI settings, in a journal or state file; absent settings do not change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRecord {
    #[serde(skip_serializing_if = "Option::is_none")]
    defer_hard_irqs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gro_flush_timeout_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    irq_suspend_timeout_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    threaded: Option<ContextRecord>,
}

impl From<&NapiChange> for ChangeRecord {
    fn from(change: &NapiChange) -> Self {
        Self {
            defer_hard_irqs: change.defer_hard_irqs,
            gro_flush_timeout_ns: change.gro_flush_timeout.map(Nanos::as_nanos),
            irq_suspend_timeout_ns: change.irq_suspend_timeout.map(Nanos::as_nanos),
            threaded: change.context.map(Into::into),
        }
    }
}

impl From<&ChangeRecord> for NapiChange {
    fn from(record: &ChangeRecord) -> Self {
        Self {
            defer_hard_irqs: record.defer_hard_irqs,
            gro_flush_timeout: record.gro_flush_timeout_ns.map(Nanos::from_nanos),
            irq_suspend_timeout: record.irq_suspend_timeout_ns.map(Nanos::from_nanos),
            context: record.threaded.map(Into::into),
        }
    }
}

impl ChangeRecord {
    /// Formats the change as (setting, before, after).
    pub(crate) fn against(&self, before: &SettingsRecord) -> Vec<(&'static str, String, String)> {
        let old = NapiSettings::from(before);
        let line = |(setting, new): (NapiSetting, SettingValue)| {
            (setting.name(), setting.get(&old).to_string(), new.to_string())
        };
        NapiChange::from(self).settings().map(line).collect()
    }

    /// Returns the change from `now` back to `before`, of those settings that still have the value this change gave them.
    pub(crate) fn back(&self, before: &SettingsRecord, now: &NapiSettings) -> NapiChange {
        let (before, change) = (NapiSettings::from(before), NapiChange::from(self));
        fn undo<T: PartialEq>(changed: Option<T>, now: T, before: T) -> Option<T> {
            (changed == Some(now)).then_some(before)
        }
        NapiChange {
            defer_hard_irqs: undo(change.defer_hard_irqs, now.defer_hard_irqs, before.defer_hard_irqs),
            gro_flush_timeout: undo(change.gro_flush_timeout, now.gro_flush_timeout, before.gro_flush_timeout),
            irq_suspend_timeout: undo(change.irq_suspend_timeout, now.irq_suspend_timeout, before.irq_suspend_timeout),
            context: undo(change.context, now.context, before.context),
        }
    }
}
