//! What a device cannot do, or would not tell, and why: in place of an absent value.

use std::fmt;

use serde::Serialize;

use super::capability::Capability;
use super::error::MachineError;

/// Something that was read, or why it is not there.
pub type Able<T> = Result<T, Lack>;

/// What a device cannot do, or would not tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lack {
    /// What it is about.
    pub feature: Feature,
    /// Why it is not there.
    pub why: Why,
}

/// What may be lacking.
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
    /// Which NAPI instance serves which queue.
    QueueNapi,
    /// The interrupt of a NAPI instance.
    Irq,
    /// The CPUs of an interrupt.
    IrqAffinity,
    /// The thread that polls a NAPI instance.
    Thread,
}

/// Why it is lacking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Why {
    /// The driver or this kernel cannot do it.
    Unsupported {
        /// Who cannot, in words.
        reason: String,
    },
    /// The caller may not look.
    Denied {
        /// What it lacks.
        capability: Capability,
    },
    /// Reading it failed.
    Failed {
        /// What the kernel said.
        reason: String,
    },
}

impl Lack {
    /// What the driver or kernel does not have.
    pub(crate) fn unsupported(feature: Feature, reason: impl Into<String>) -> Self {
        Self { feature, why: Why::Unsupported { reason: reason.into() } }
    }

    pub(crate) fn from_error(feature: Feature, error: MachineError) -> Self {
        let why = match error {
            MachineError::Unsupported { reason, .. } => Why::Unsupported { reason },
            MachineError::Denied { capability, .. } => Why::Denied { capability },
            other => Why::Failed { reason: other.to_string() },
        };
        Self { feature, why }
    }

    /// Whether the driver or kernel cannot do it, as against somebody who may not look, or a reading that failed.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self.why, Why::Unsupported { .. })
    }
}

impl Feature {
    /// In words.
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

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let feature = self.feature;
        match &self.why {
            Why::Unsupported { reason } => write!(f, "{feature}: {reason}"),
            Why::Denied { capability } => {
                write!(f, "{feature}: reading it needs {capability}; {}", capability.advice())
            }
            Why::Failed { reason } => write!(f, "{feature}: {reason}"),
        }
    }
}
