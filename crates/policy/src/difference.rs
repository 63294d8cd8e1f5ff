//! What a device has against what is wanted of it: the changes in their order, and what cannot be.

mod work;

use std::collections::BTreeSet;
use std::fmt;

use abey_linux::apply::Change;
use abey_linux::cpu::CpuList;
use abey_linux::device::{Device, DeviceId};
use abey_linux::ethtool::PortFlow;
use abey_linux::machine::DeviceState;
use abey_linux::napi::NapiChange;
use abey_linux::probe::NapiCapabilities;

use self::work::Work;
use crate::error::PolicyError;
use crate::model::OnUnsupported;
use crate::resolve::DeviceWish;
use crate::said::Origin;

/// What has to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Settings of a NAPI instance.
    Settings {
        /// The device.
        device: Device,
        /// The instance's ID.
        napi: u32,
        /// What is changed.
        change: NapiChange,
    },
    /// One change of anything else.
    Change(Change),
    /// An RSS context over these queues, and rules that send these flows to it.
    Steer {
        /// The device.
        device: DeviceId,
        /// The queues.
        queues: BTreeSet<u32>,
        /// The flows that do not go there yet.
        flows: Vec<PortFlow>,
    },
}

impl Act {
    /// Whether it makes queues, NAPI instances and interrupts anew, so that nothing that was known of them holds.
    pub fn renews_queues(&self) -> bool {
        matches!(self, Self::Change(Change::Channels { .. }))
    }
}

/// One thing to do, and on whose behalf.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What.
    pub act: Act,
    /// Where it is asked for.
    pub origin: Origin,
    /// What becomes of it if it turns out that the driver cannot do it.
    pub on_unsupported: OnUnsupported,
}

/// A wish that the driver or the kernel cannot fulfil.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The device.
    pub device: String,
    /// What is wanted, in words.
    pub what: String,
    /// Why it cannot be.
    pub reason: String,
    /// Where it is asked for.
    pub origin: Origin,
    /// Whether it ends the apply.
    pub on_unsupported: OnUnsupported,
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, what, reason, origin, .. } = self;
        write!(f, "{device}: {what}: {reason}; asked for in {origin}")
    }
}

/// What leads from a device's state to what is wanted of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// What can be done now, in this order. After one that [renews queues](Act::renews_queues), look again.
    pub planned: Vec<Planned>,
    /// What shall follow once queues or threads are there that are not yet, in words.
    pub later: Vec<String>,
    /// What cannot be.
    pub unsupported: Vec<Unsupported>,
    /// Why nothing can be said yet of the device's NAPI instances: it is down.
    pub waiting: Option<String>,
}

impl Difference {
    /// Whether everything that can be is as it is wanted.
    pub fn is_empty(&self) -> bool {
        self.planned.is_empty() && self.later.is_empty() && self.waiting.is_none()
    }
}

impl DeviceWish {
    /// What has to change on the device.
    ///
    /// # Errors
    /// Two rules that want different things of what is one thing on this device, such as the NAPI instance of two queues.
    pub fn difference(
        &self,
        state: &DeviceState,
        able: NapiCapabilities,
        online: &CpuList,
    ) -> Result<Difference, PolicyError> {
        let mut work = Work { state, able, online, found: Difference::default() };
        work.channels(self.channels.as_ref());
        let ready = work.check_instances(self);
        if ready {
            work.settings(&self.queues)?;
        }
        for flows in &self.flows {
            work.flows(flows);
        }
        if let Some(rss) = &self.rss {
            work.rss(rss);
        }
        if ready {
            work.interrupts(&self.queues)?;
        }
        for (queue, wish) in &self.queues {
            if let Some(xps) = &wish.xps {
                work.xps(*queue, xps);
            }
        }
        if ready {
            work.threads(&self.queues)?;
        }
        Ok(work.found)
    }
}
