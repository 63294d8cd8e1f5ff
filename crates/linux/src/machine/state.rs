//! The snapshot: plain values, so that whoever decides over it needs no machine.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::interrupts::IrqSource;
use super::lack::{Able, Lack};
use crate::cpu::{CpuList, Scheduling};
use crate::device::{Device, DeviceId};
use crate::ethtool::{Channels, Driver, FlowRule, RssContext};
use crate::napi::Napi;
use crate::probe::NapiCapabilities;

/// The devices of one network namespace as they are set now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The namespace in words.
    pub place: String,
    /// The inode number of the namespace.
    pub network_namespace: u64,
    /// Which settings this kernel keeps per NAPI instance.
    pub able: NapiCapabilities,
    /// The devices, by ifindex.
    pub devices: Vec<DeviceState>,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceState {
    /// The device itself.
    pub device: Device,
    /// Its hardware address, as `aa:bb:cc:dd:ee:ff`; `None` for one that has none.
    pub address: Option<String>,
    /// The PCI function it sits on, as `0000:3b:00.0`; of a virtio device that of its transport.
    pub pci: Option<String>,
    /// Who drives it.
    pub driver: Able<Driver>,
    /// The numbers of its queues.
    pub channels: Able<Channels>,
    /// How flows are spread that no rule sends elsewhere.
    pub rss: Able<RssContext>,
    /// The additional RSS contexts.
    pub contexts: Able<Vec<RssContext>>,
    /// The rules that steer flows, by place.
    pub rules: Able<Vec<FlowRule>>,
    /// The receive queues there are now, by number.
    pub queues: Vec<QueueState>,
    /// The CPUs that use each transmit queue; an empty list where it has no map of its own.
    pub xps: Able<BTreeMap<u32, CpuList>>,
    /// Its NAPI instances, by ID.
    pub napis: Vec<NapiState>,
}

/// One receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// Its number.
    pub queue: u32,
    /// The NAPI instance that serves it.
    pub napi: Option<u32>,
    /// How that is known.
    pub link: Link,
}

/// How it is known which NAPI instance serves a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Link {
    /// The driver says so.
    Driver,
    /// The driver names none; instances are taken to have been registered in the order of the queues, as veth does.
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
    pub irq: Able<IrqState>,
    /// The thread that polls it; `None` where it is not threaded.
    pub thread: Option<Able<ThreadState>>,
}

/// One interrupt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IrqState {
    /// Its number.
    pub irq: u32,
    /// The CPUs it may go to.
    pub cpus: Able<CpuList>,
    /// The CPUs it really goes to.
    pub effective: Able<CpuList>,
    /// How it is known whose it is.
    pub source: IrqSource,
}

/// Where and how a thread runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadState {
    /// Its number.
    pub tid: u32,
    /// The CPUs it may run on.
    pub cpus: CpuList,
    /// Class, priority and niceness.
    pub scheduling: Scheduling,
}

impl Snapshot {
    /// The device called `name`.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&DeviceState> {
        self.devices.iter().find(|state| state.device.name == name)
    }
}

impl DeviceState {
    /// What identifies it.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.device.id()
    }

    /// The NAPI instance that serves a receive queue.
    #[must_use]
    pub fn napi_of_queue(&self, queue: u32) -> Option<&NapiState> {
        let id = self.queues.iter().find(|state| state.queue == queue)?.napi?;
        self.napis.iter().find(|state| state.napi.id == id)
    }

    /// Everything that it, its driver or the kernel cannot do or does not tell, each once.
    #[must_use]
    pub fn lacks(&self) -> Vec<&Lack> {
        let mut found: Vec<&Lack> = Vec::new();
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
        for lack in found {
            if !once.contains(&lack) {
                once.push(lack);
            }
        }
        once
    }
}
