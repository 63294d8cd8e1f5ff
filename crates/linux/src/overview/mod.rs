//! Reads how the devices of a namespace deliver, and watches who polls them: the facts a [verdict](crate::verdict) needs.
//!
//! Reading needs no privilege except where the kernel asks for it; what could not be read says why.

mod peer;
mod watch;

pub use peer::{Neighbour, Peer, neighbours};
pub use watch::{Watch, Watched, own_device};

use std::collections::BTreeMap;

use crate::cpu::{CpuList, irq_affinity, thread_affinity};
use crate::device::{Device, DeviceError, devices};
use crate::features::{RX_GRO, features};
use crate::napi::{Napi, napis, rx_queues};
use crate::netlink::{Netlink, NetlinkError};
use crate::netns::NetNs;
use crate::verdict::DeviceFacts;

/// Something that was read, or why it could not be.
pub type Known<T> = Result<T, String>;

/// Every device of one namespace.
#[derive(Clone, Debug)]
pub struct Overview {
    /// The namespace in words.
    pub place: String,
    /// The inode number of the namespace.
    pub network_namespace: u64,
    /// The devices, by ifindex.
    pub devices: Vec<DeviceOverview>,
}

/// One device.
#[derive(Clone, Debug)]
pub struct DeviceOverview {
    /// The device itself.
    pub device: Device,
    /// Whether generic receive offload is on.
    pub gro: Known<bool>,
    /// The other end, for a veth.
    pub peer: Option<Known<Peer>>,
    /// Its NAPI instances, by ID.
    pub napis: Vec<NapiOverview>,
    /// Other namespaces with a device of the same name, whose polls cannot be told from those of this one.
    pub namesakes: Vec<String>,
}

/// One NAPI instance.
#[derive(Clone, Debug)]
pub struct NapiOverview {
    /// The instance and its settings.
    pub napi: Napi,
    /// The receive queues it serves.
    pub rx_queues: Vec<u32>,
    /// The CPUs its interrupt may go to; `None` when it has no interrupt.
    pub irq_cpus: Option<Known<CpuList>>,
    /// The CPUs its thread may run on; `None` when it is not threaded.
    pub thread_cpus: Option<Known<CpuList>>,
}

impl Overview {
    /// Reads the devices of `netns`. The peers of its veth devices are looked for among `neighbours`.
    ///
    /// # Errors
    /// When the kernel has no netlink interface for NAPI instances, or the namespace cannot be entered.
    pub fn read(netns: &NetNs, neighbours: &[Neighbour]) -> Result<Self, NetlinkError> {
        let mut netlink = Netlink::open(netns)?;
        let all = devices(&mut netlink)?;
        let mut instances = BTreeMap::<u32, Vec<Napi>>::new();
        for napi in napis(&mut netlink, None)? {
            instances.entry(napi.ifindex).or_default().push(napi);
        }
        let here = netns.inode();
        let mut found = Vec::new();
        for device in &all {
            let napis = instances.remove(&device.ifindex).unwrap_or_default();
            found.push(DeviceOverview {
                gro: is_on(&mut netlink, &device.name, &[RX_GRO]),
                peer: device.is_veth().then(|| peer::find(&mut netlink, netns, device, &all, neighbours)),
                napis: read_napis(&mut netlink, device, napis),
                namesakes: peer::namesakes(here, &device.name, neighbours),
                device: device.clone(),
            });
        }
        Ok(Self { place: netns.description().to_owned(), network_namespace: here, devices: found })
    }

    /// The device called `name`.
    ///
    /// # Errors
    /// When there is none; the message lists those there are.
    pub fn device(&self, name: &str) -> Result<&DeviceOverview, DeviceError> {
        let known = || self.devices.iter().map(|one| one.device.name.as_str()).collect::<Vec<_>>().join(", ");
        self.devices.iter().find(|one| one.device.name == name).ok_or_else(|| DeviceError::Unknown {
            name: name.to_owned(),
            place: self.place.clone(),
            known: known(),
        })
    }

    /// The devices that have NAPI instances.
    pub fn with_napi(&self) -> impl Iterator<Item = &DeviceOverview> {
        self.devices.iter().filter(|one| !one.napis.is_empty())
    }
}

impl DeviceOverview {
    /// The part of it that a verdict depends on; `network_namespace` is the inode number of its namespace.
    #[must_use]
    pub fn facts(&self, network_namespace: u64) -> DeviceFacts {
        let tso_peer = match &self.peer {
            Some(Ok(Peer { name, place, tso: Ok(true) })) => Some((name.clone(), place.clone())),
            _ => None,
        };
        DeviceFacts {
            name: self.device.name.clone(),
            network_namespace,
            loopback: self.device.loopback,
            veth: self.device.is_veth(),
            gro: self.gro.as_ref().ok().copied(),
            tso_peer,
            napis: self.napis.iter().map(|one| (one.napi.id, one.napi.settings())).collect(),
        }
    }

    /// The threads that poll it.
    #[must_use]
    pub fn kthreads(&self) -> Vec<u32> {
        self.napis.iter().filter_map(|one| one.napi.thread).collect()
    }
}

fn read_napis(netlink: &mut Netlink, device: &Device, napis: Vec<Napi>) -> Vec<NapiOverview> {
    if napis.is_empty() {
        return Vec::new();
    }
    // Which queue an instance serves is a detail: without it, the instances are still worth showing.
    let queues = rx_queues(netlink, device.ifindex).unwrap_or_default();
    let cpus = |result: Result<CpuList, crate::cpu::CpuError>| result.map_err(|error| error.to_string());
    napis
        .into_iter()
        .map(|napi| NapiOverview {
            rx_queues: queues.iter().filter(|&(_, id)| *id == napi.id).map(|(queue, _)| *queue).collect(),
            irq_cpus: napi.irq.map(|irq| cpus(irq_affinity(irq))),
            thread_cpus: napi.thread.map(|thread| cpus(thread_affinity(thread))),
            napi,
        })
        .collect()
}

/// Whether any of these features is active on the device.
fn is_on(netlink: &mut Netlink, device: &str, names: &[&str]) -> Known<bool> {
    let active = features(netlink, device).map_err(|error| error.to_string())?;
    Ok(names.iter().any(|name| active.get(*name) == Some(&true)))
}
