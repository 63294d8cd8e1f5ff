//! Reading of the snapshot.

use std::collections::BTreeMap;

use super::capability::Capability;
use super::error::MachineError;
use super::interrupts::{IrqSource, Names, irq_of_queue};
use super::state::{DeviceState, IrqState, Link, NapiState, QueueState, Snapshot};
use super::unavailable::{Available, Feature, Unavailable};
use crate::counters::Interrupts;
use crate::cpu::{CpuError, CpuList, effective_irq_affinity, irq_affinity};
use crate::device::{Device, DeviceId, devices, hardware_addresses};
use crate::ethtool::rss::DEFAULT_CONTEXT;
use crate::kernel::{Kernel, NetnsHandle};
use crate::napi::{Napi, QueueNapi, napis, queue_napis};
use crate::netlink::NetlinkError;
use crate::netns::NetNs;
use crate::probe::napi_capabilities;

impl Snapshot {
    /// Reads the devices of `netns`.
    ///
    /// # Errors
    /// The namespace cannot be entered, or the kernel refuses to list its devices.
    pub fn read(netns: &NetNs) -> Result<Self, NetlinkError> {
        Self::read_at(&mut NetnsHandle::open(netns)?)
    }

    /// Reads the devices of a namespace through an open handle, which saves opening the sockets.
    ///
    /// # Errors
    /// The kernel refuses to list its devices.
    pub fn read_at(place: &mut NetnsHandle) -> Result<Self, NetlinkError> {
        let capabilities = napi_capabilities(&mut place.netlink)?;
        let addresses = hardware_addresses(&mut place.netlink)?;
        let all = devices(&mut place.netlink)?;
        let mut instances = BTreeMap::<u32, Vec<Napi>>::new();
        if capabilities.list {
            for napi in napis(&mut place.netlink, None)? {
                instances.entry(napi.ifindex).or_default().push(napi);
            }
        }
        // Without it, interrupts that the kernel does not report are unavailable, with a reason for each.
        let interrupts = Interrupts::read().unwrap_or_default();
        let mut found = Vec::new();
        for device in all {
            let napis = instances.remove(&device.ifindex).unwrap_or_default();
            let address = addresses.get(&device.ifindex).cloned();
            found.push(read_device(place, device, napis, address, &interrupts));
        }
        Ok(Self {
            place: place.description().to_owned(),
            network_namespace: place.network_namespace(),
            capabilities,
            devices: found,
        })
    }
}

fn read_device(
    place: &mut NetnsHandle,
    device: Device,
    napis: Vec<Napi>,
    address: Option<String>,
    interrupts: &Interrupts,
) -> DeviceState {
    let id = device.id();
    let unavailable = |feature| move |error| Unavailable::from_error(feature, error);
    let links = queue_napis(&mut place.netlink, device.ifindex).unwrap_or_default();
    let parent = place.link_of(&id, "device").ok();
    let parent = parent.as_deref().and_then(|path| path.rsplit('/').next());
    let names = Names { device: &device.name, parent };
    let read_napi = |napi: &Napi| read_napi(place, &id, napi, &links, interrupts, &names);
    let napis = napis.iter().map(read_napi).collect();
    DeviceState {
        pci: pci_of(place, &id),
        address,
        driver: place.ethtool.driver(&id).map_err(unavailable(Feature::Driver)),
        channels: place.channels(&id).map_err(unavailable(Feature::Channels)),
        rss: place.rss(&id, DEFAULT_CONTEXT).map_err(unavailable(Feature::Rss)),
        contexts: place.rss_contexts(&id).map_err(unavailable(Feature::RssContexts)),
        rules: place.rules(&id).map_err(unavailable(Feature::FlowRules)),
        xps: read_xps(place, &id).map_err(unavailable(Feature::Xps)),
        queues: links.iter().map(queue_state).collect(),
        napis,
        device,
    }
}

fn queue_state(link: &QueueNapi) -> QueueState {
    QueueState { queue: link.queue, napi: link.napi, link: if link.named { Link::Driver } else { Link::Order } }
}

/// Returns the PCI function of a device: the last PCI address in its sysfs path (a virtio device has that of its transport).
fn pci_of(place: &NetnsHandle, id: &DeviceId) -> Option<String> {
    let real = place.real_path_of(id, "device").ok()?;
    let is_pci = |part: &&str| {
        let fields: Vec<&str> = part.split([':', '.']).collect();
        let hexadecimal = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        part.matches(':').count() == 2 && fields.len() == 4 && fields.iter().all(hexadecimal)
    };
    real.rsplit('/').find(is_pci).map(str::to_owned)
}

fn read_xps(place: &mut NetnsHandle, id: &DeviceId) -> Result<BTreeMap<u32, CpuList>, MachineError> {
    let names = place.names_of(id, "queues").unwrap_or_default();
    let queues = names.iter().filter_map(|name| name.strip_prefix("tx-")?.parse().ok());
    let mut found = BTreeMap::new();
    for queue in queues {
        match place.xps(id, queue) {
            Ok(cpus) => drop(found.insert(queue, cpus)),
            // The queue was removed while the others were read.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn read_napi(
    place: &mut NetnsHandle,
    id: &DeviceId,
    napi: &Napi,
    links: &[QueueNapi],
    interrupts: &Interrupts,
    names: &Names<'_>,
) -> NapiState {
    let rx_queues: Vec<u32> = links.iter().filter(|link| link.napi == Some(napi.id)).map(|link| link.queue).collect();
    let named = || rx_queues.iter().find_map(|queue| irq_of_queue(interrupts, names, *queue));
    let irq = match napi.irq {
        Some(irq) => Ok(read_irq(id, irq, IrqSource::Kernel)),
        None => named().map(|(irq, name)| read_irq(id, irq, IrqSource::Name(name))).ok_or_else(|| {
            let reason = "its driver reports none, and no name in /proc/interrupts matches";
            Unavailable::unsupported(Feature::Irq, reason)
        }),
    };
    let thread = napi.thread.map(|tid| {
        let read = place.thread(&id.name, tid);
        read.map_err(|error| Unavailable::from_error(Feature::Thread, error))
    });
    NapiState { napi: *napi, irq, thread, rx_queues }
}

fn read_irq(id: &DeviceId, irq: u32, source: IrqSource) -> IrqState {
    let action = format!("read the CPUs of IRQ {irq} of {id}");
    let available = |read: Result<CpuList, CpuError>| -> Available<CpuList> {
        let error = |error| MachineError::from_cpu(&id.name, &action, Capability::DacOverride, &error);
        read.map_err(|failed| Unavailable::from_error(Feature::IrqAffinity, error(failed)))
    };
    IrqState { irq, cpus: available(irq_affinity(irq)), effective: available(effective_irq_affinity(irq)), source }
}
