//! The difference between a device's state and its desired settings: actions in order, and what is unsupported.

mod comparison;

use std::collections::BTreeSet;
use std::fmt;

use crate::change::Change;
use abey_linux::cpu::CpuList;
use abey_linux::device::{Device, DeviceId};
use abey_linux::ethtool::PortFlow;
use abey_linux::machine::DeviceState;
use abey_linux::napi::NapiChange;
use abey_linux::probe::NapiCapabilities;

use self::comparison::Comparison;
use crate::desired::DesiredDevice;
use crate::error::PolicyError;
use crate::model::OnUnsupported;
use crate::spanned::Origin;

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Change settings of a NAPI instance.
    Settings {
        /// The device.
        device: Device,
        /// The instance's ID.
        napi: u32,
        /// The change.
        change: NapiChange,
    },
    /// Change another setting.
    Change(Change),
    /// Create an RSS context over these queues, and rules that steer these flows to it.
    Steer {
        /// The device.
        device: DeviceId,
        /// The queues.
        queues: BTreeSet<u32>,
        /// The flows that are not steered there yet.
        flows: Vec<PortFlow>,
    },
}

impl Action {
    /// Whether the action recreates queues, NAPI instances and interrupts, so that a new comparison is needed after it.
    pub fn recreates_queues(&self) -> bool {
        matches!(self, Self::Change(Change::Channels { .. }))
    }
}

/// An action, and the rule it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The action.
    pub action: Action,
    /// The position of the rule.
    pub origin: Origin,
    /// What to do if the driver turns out not to support the action.
    pub on_unsupported: OnUnsupported,
}

/// A desired setting that the driver or the kernel does not support.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The device.
    pub device: String,
    /// The setting, in words.
    pub what: String,
    /// Why it is unsupported.
    pub reason: String,
    /// The position of the rule.
    pub origin: Origin,
    /// Whether the apply fails.
    pub on_unsupported: OnUnsupported,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, what, reason, origin, .. } = self;
        write!(f, "{device}: {what}: {reason}; asked for in {origin}")
    }
}

/// The difference between a device's state and its desired settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// The actions that are possible now, in order. After one that [recreates queues](Action::recreates_queues), compare
    /// again.
    pub planned: Vec<Planned>,
    /// Changes that follow once queues or threads exist that do not exist yet, in words.
    pub later: Vec<String>,
    /// The settings that are unsupported.
    pub unsupported: Vec<Unsupported>,
    /// Why the NAPI instances cannot be compared: the device is down.
    pub waiting: Option<String>,
}

impl Difference {
    /// Whether every supported setting has its desired value.
    pub fn is_empty(&self) -> bool {
        self.planned.is_empty() && self.later.is_empty() && self.waiting.is_none()
    }
}

impl DesiredDevice {
    /// Compares the device's state with its desired settings.
    ///
    /// # Errors
    /// When two rules give different values to something that their queues share, such as a NAPI instance.
    pub fn difference(
        &self,
        state: &DeviceState,
        capabilities: NapiCapabilities,
        online: &CpuList,
    ) -> Result<Difference, PolicyError> {
        let mut comparison = Comparison { state, capabilities, online, found: Difference::default() };
        comparison.channels(self.channels.as_ref());
        let ready = comparison.check_instances(self);
        if ready {
            comparison.settings(&self.queues)?;
        }
        for flows in &self.flows {
            comparison.flows(flows);
        }
        if let Some(rss) = &self.rss {
            comparison.rss(rss);
        }
        if ready {
            comparison.interrupts(&self.queues)?;
        }
        for (queue, desired) in &self.queues {
            if let Some(xps) = &desired.xps {
                comparison.xps(*queue, xps);
            }
        }
        if ready {
            comparison.threads(&self.queues)?;
        }
        Ok(comparison.found)
    }
}
