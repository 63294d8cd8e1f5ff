//! The delivery settings of the devices of a namespace, and the contexts that poll them: the facts of a
//! [verdict](crate::verdict).
//!
//! Most of it is readable without privilege. A value that cannot be read is an error of its own.

mod measure;
mod peer;

pub use measure::{Measured, Measurement, own_device};
pub use peer::{NetnsDevices, Peer, all_netns_devices};

use std::collections::BTreeMap;

use crate::cpu::{CpuList, irq_affinity, thread_affinity};
use crate::device::{Device, DeviceError, devices};
use crate::features::{RX_GRO, features};
use crate::napi::{Napi, napis, rx_queues};
use crate::netlink::{Netlink, NetlinkError};
use crate::netns::NetNs;
use crate::verdict::DeviceFacts;

/// A value, or why it could not be read.
pub type Known<T> = Result<T, String>;

/// The devices of one namespace.
#[derive(Clone, Debug)]
pub struct Overview {
    /// The namespace in words.
    pub netns: String,
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
    /// The other end of the pair; `None` if it is not a veth device.
    pub peer: Option<Known<Peer>>,
    /// Its NAPI instances, by ID.
    pub napis: Vec<NapiOverview>,
    /// Other namespaces with a device of the same name. Tracepoints identify devices by name only, so the polls of these
    /// devices are counted too.
    pub namesakes: Vec<String>,
}

/// One NAPI instance.
#[derive(Clone, Debug)]
pub struct NapiOverview {
    /// The instance and its settings.
    pub napi: Napi,
    /// The receive queues it serves.
    pub rx_queues: Vec<u32>,
    /// The CPUs of its interrupt; `None` if it has no interrupt.
    pub irq_cpus: Option<Known<CpuList>>,
    /// The CPUs of its thread; `None` if it is not threaded.
    pub thread_cpus: Option<Known<CpuList>>,
}

impl Overview {
    /// Reads the devices of `netns`. The peers of its veth devices are searched in `others`.
    ///
    /// # Errors
    /// The kernel has no netlink interface for NAPI instances, or the namespace cannot be entered.
    pub fn read(netns: &NetNs, others: &[NetnsDevices]) -> Result<Self, NetlinkError> {
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
                peer: device.is_veth().then(|| peer::find(&mut netlink, netns, device, &all, others)),
                napis: read_napis(&mut netlink, device, napis),
                namesakes: peer::namesakes(here, &device.name, others),
                device: device.clone(),
            });
        }
        Ok(Self { netns: netns.description().to_owned(), network_namespace: here, devices: found })
    }

    /// Returns the device called `name`.
    ///
    /// # Errors
    /// There is none; the message lists the existing ones.
    pub fn device(&self, name: &str) -> Result<&DeviceOverview, DeviceError> {
        let known = || self.devices.iter().map(|one| one.device.name.as_str()).collect::<Vec<_>>().join(", ");
        self.devices.iter().find(|one| one.device.name == name).ok_or_else(|| DeviceError::Unknown {
            name: name.to_owned(),
            netns: self.netns.clone(),
            known: known(),
        })
    }

    /// Returns the devices that have NAPI instances.
    pub fn with_napi(&self) -> impl Iterator<Item = &DeviceOverview> {
        self.devices.iter().filter(|one| !one.napis.is_empty())
    }
}

impl DeviceOverview {
    /// Returns the facts that a verdict depends on. `network_namespace` is the inode number of its namespace.
    #[must_use]
    pub fn facts(&self, network_namespace: u64) -> DeviceFacts {
        let tso_peer = match &self.peer {
            Some(Ok(Peer { name, netns, tso: Ok(true) })) => Some((name.clone(), netns.clone())),
            _ => None,
        };
        DeviceFacts {
            name: self.device.name.clone(),
            network_namespace,
            loopback: self.device.loopback,
            veth: self.device.is_veth(),
            gro: self.gro.as_ref().ok().copied(),
            tso_peer,
            tso_peer_off: matches!(&self.peer, Some(Ok(Peer { tso: Ok(false), .. }))),
            napis: self.napis.iter().map(|one| (one.napi.id, one.napi.settings())).collect(),
        }
    }

    /// Returns the thread IDs of its NAPI threads.
    #[must_use]
    pub fn kthreads(&self) -> Vec<u32> {
        self.napis.iter().filter_map(|one| one.napi.thread).collect()
    }
}

fn read_napis(netlink: &mut Netlink, device: &Device, napis: Vec<Napi>) -> Vec<NapiOverview> {
    if napis.is_empty() {
        return Vec::new();
    }
    // The instances are worth showing even without their queues.
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

/// Returns whether any of these features is active on the device.
fn is_on(netlink: &mut Netlink, device: &str, names: &[&str]) -> Known<bool> {
    let active = features(netlink, device).map_err(|error| error.to_string())?;
    Ok(names.iter().any(|name| active.get(*name) == Some(&true)))
}
