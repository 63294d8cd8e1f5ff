//! The reason why a value of a device is missing.

use std::fmt;

use serde::Serialize;

use super::capability::Capability;
use super::error::MachineError;

/// A value, or why it is unavailable.
pub type Available<T> = Result<T, Unavailable>;

/// A missing value of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// The missing value.
    pub feature: Feature,
    /// The cause.
    pub why: Cause,
}

/// A value that may be unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Feature {
    /// The name of the driver.
    Driver,
    /// The numbers of its queues.
    Channels,
    /// The RSS indirection table.
    Rss,
    /// Additional RSS contexts.
    RssContexts,
    /// Rules that steer flows (ntuple).
    FlowRules,
    /// Transmit queues chosen by CPU (XPS).
    Xps,
    /// NAPI instances.
    Napi,
    /// The NAPI instance of each queue.
    QueueNapi,
    /// The interrupt of a NAPI instance.
    Irq,
    /// The CPUs of an interrupt.
    IrqAffinity,
    /// The thread that polls a NAPI instance.
    Thread,
}

/// Why a value is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Cause {
    /// The driver or this kernel cannot do it.
    Unsupported {
        /// The explanation.
        reason: String,
    },
    /// The caller lacks the privilege.
    Denied {
        /// The required capability.
        capability: Capability,
    },
    /// Reading it failed.
    Failed {
        /// The kernel's explanation.
        reason: String,
    },
}

impl Unavailable {
    /// Returns the value for a feature that the driver or kernel does not have.
    pub(crate) fn unsupported(feature: Feature, reason: impl Into<String>) -> Self {
        Self { feature, why: Cause::Unsupported { reason: reason.into() } }
    }

    pub(crate) fn from_error(feature: Feature, error: MachineError) -> Self {
        let why = match error {
            MachineError::Unsupported { reason, .. } => Cause::Unsupported { reason },
            MachineError::Denied { capability, .. } => Cause::Denied { capability },
            other => Cause::Failed { reason: other.to_string() },
        };
        Self { feature, why }
    }

    /// Returns whether the driver or kernel lacks the feature, rather than a lack of privilege or a failure.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self.why, Cause::Unsupported { .. })
    }
}

impl Feature {
    /// Returns its name in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver name",
            Self::Channels => "channels",
            Self::Rss => "RSS indirection table",
            Self::RssContexts => "RSS contexts",
            Self::FlowRules => "flow steering (ntuple)",
            Self::Xps => "XPS",
            Self::Napi => "NAPI instances",
            Self::QueueNapi => "queue to NAPI link",
            Self::Irq => "interrupt of a NAPI instance",
            Self::IrqAffinity => "IRQ affinity",
            Self::Thread => "NAPI thread",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let feature = self.feature;
        match &self.why {
            Cause::Unsupported { reason } => write!(f, "{feature}: {reason}"),
            Cause::Denied { capability } => {
                write!(f, "{feature}: reading it needs {capability}; {}", capability.advice())
            }
            Cause::Failed { reason } => write!(f, "{feature}: {reason}"),
        }
    }
}
