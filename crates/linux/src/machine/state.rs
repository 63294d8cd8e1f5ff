//! The snapshot: plain values, so that decisions over it can be tested without a machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::interrupts::IrqSource;
use super::unavailable::{Available, Unavailable};
use crate::cpu::{CpuList, Scheduling};
use crate::device::{Device, DeviceId};
use crate::ethtool::{Channels, Driver, FlowRule, RssContext};
use crate::napi::Napi;
use crate::probe::NapiCapabilities;

/// The current settings of the devices of one network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The namespace in words.
    pub place: String,
    /// The inode number of the namespace.
    pub network_namespace: u64,
    /// The settings that this kernel has per NAPI instance.
    pub capabilities: NapiCapabilities,
    /// The devices, by ifindex.
    pub devices: Vec<DeviceState>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// The device itself.
    pub device: Device,
    /// Its hardware address, as `aa:bb:cc:dd:ee:ff`; `None` if it has none.
    pub address: Option<String>,
    /// Its PCI function, as `0000:3b:00.0`; for a virtio device that of its transport.
    pub pci: Option<String>,
    /// Its driver.
    pub driver: Available<Driver>,
    /// The number of its queues.
    pub channels: Available<Channels>,
    /// The default RSS context, for flows that no rule steers.
    pub rss: Available<RssContext>,
    /// The additional RSS contexts.
    pub contexts: Available<Vec<RssContext>>,
    /// The rules that steer flows, by location.
    pub rules: Available<Vec<FlowRule>>,
    /// The current receive queues, by index.
    pub queues: Vec<QueueState>,
    /// The CPUs that use each transmit queue; an empty list if it has no XPS map.
    pub xps: Available<BTreeMap<u32, CpuList>>,
    /// Its NAPI instances, by ID.
    pub napis: Vec<NapiState>,
}

/// One receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// Its index.
    pub queue: u32,
    /// The NAPI instance that serves it.
    pub napi: Option<u32>,
    /// How the NAPI instance was found.
    pub link: Link,
}

/// How the NAPI instance of a queue was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// The driver reports it.
    Driver,
    /// The driver reports none; the instances are assumed to be in the order of the queues, as in veth.
    Order,
}

/// One NAPI instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NapiState {
    /// The instance and its settings.
    pub napi: Napi,
    /// The receive queues it serves.
    pub rx_queues: Vec<u32>,
    /// Its interrupt.
    pub irq: Available<IrqState>,
    /// The thread that polls it; `None` if it is not threaded.
    pub thread: Option<Available<ThreadState>>,
}

/// One interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IrqState {
    /// Its number.
    pub irq: u32,
    /// The CPUs that it may be delivered to.
    pub cpus: Available<CpuList>,
    /// The CPUs that it is delivered to.
    pub effective: Available<CpuList>,
    /// How it was found.
    pub source: IrqSource,
}

/// The CPUs and scheduling of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadState {
    /// Its ID.
    pub tid: u32,
    /// The CPUs it may run on.
    pub cpus: CpuList,
    /// Class, priority and niceness.
    pub scheduling: Scheduling,
}

impl Snapshot {
    /// Returns the device called `name`.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&DeviceState> {
        self.devices.iter().find(|state| state.device.name == name)
    }
}

impl DeviceState {
    /// Returns its identity.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.device.id()
    }

    /// Returns the NAPI instance that serves a receive queue.
    #[must_use]
    pub fn napi_of_queue(&self, queue: u32) -> Option<&NapiState> {
        let id = self.queues.iter().find(|state| state.queue == queue)?.napi?;
        self.napis.iter().find(|state| state.napi.id == id)
    }

    /// Returns the missing values, each once.
    #[must_use]
    pub fn unavailable(&self) -> Vec<&Unavailable> {
        let mut found: Vec<&Unavailable> = Vec::new();
        found.extend(self.driver.as_ref().err());
        found.extend(self.channels.as_ref().err());
        found.extend(self.rss.as_ref().err());
        found.extend(self.contexts.as_ref().err());
        found.extend(self.rules.as_ref().err());
        found.extend(self.xps.as_ref().err());
        for napi in &self.napis {
            found.extend(napi.irq.as_ref().err());
            if let Ok(irq) = &napi.irq {
                found.extend(irq.cpus.as_ref().err());
            }
            found.extend(napi.thread.as_ref().and_then(|thread| thread.as_ref().err()));
        }
        let mut once = Vec::new();
        for one in found {
            if !once.contains(&one) {
                once.push(one);
            }
        }
        once
    }
}
