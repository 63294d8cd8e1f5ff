//! Network devices of a namespace: names, addresses, kinds and links.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use netlink_bindings::rt_addr::{self, Ifaddrmsg};
use netlink_bindings::rt_link::{self, Ifinfomsg};

use serde::{Deserialize, Serialize};

use crate::netlink::{Netlink, NetlinkError};

/// The identity of a device: a device that was deleted and made again under the same name is another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId {
    /// Its name.
    pub name: String,
    /// Its index, unique within its namespace.
    pub ifindex: u32,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its index, unique within its namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it is the loopback device, which has no NAPI instance of its own.
    pub loopback: bool,
    /// The kind of a virtual device (`veth`, `bridge`), `None` for hardware.
    pub kind: Option<String>,
    /// The index of the linked device (the peer of a veth device, the parent of a VLAN), in the namespace of that device.
    pub link: Option<u32>,
    /// Whether the linked device is in another namespace.
    pub link_elsewhere: bool,
    /// The number of receive queues it was created with.
    pub rx_queues: u32,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

impl Device {
    /// Returns its identity.
    pub fn id(&self) -> DeviceId {
        DeviceId { name: self.name.clone(), ifindex: self.ifindex }
    }

    /// Returns whether it is one end of a veth pair.
    pub fn is_veth(&self) -> bool {
        self.kind.as_deref() == Some("veth")
    }
}

const IFF_UP: u32 = libc::IFF_UP as u32;
const IFF_LOOPBACK: u32 = libc::IFF_LOOPBACK as u32;

/// Lists the devices of the namespace, by index.
///
/// # Errors
/// The kernel refuses.
pub fn devices(netlink: &mut Netlink) -> Result<Vec<Device>, NetlinkError> {
    let request = rt_link::Request::new().op_getlink_dump(&Ifinfomsg::default());
    let mut found = netlink.dump("list network devices", &request, |(header, attrs)| {
        let kind =
            attrs.get_linkinfo().ok().and_then(|info| Some(info.get_kind().ok()?.to_string_lossy().into_owned()));
        Some(Device {
            ifindex: u32::try_from(header.ifi_index).ok()?,
            name: attrs.get_ifname().ok()?.to_string_lossy().into_owned(),
            up: header.ifi_flags & IFF_UP != 0,
            loopback: header.ifi_flags & IFF_LOOPBACK != 0,
            kind,
            link: attrs.get_link().ok(),
            link_elsewhere: attrs.get_link_netnsid().is_ok(),
            rx_queues: attrs.get_num_rx_queues().unwrap_or(1),
            addresses: Vec::new(),
        })
    })?;
    let mut addresses = addresses(netlink)?;
    for device in &mut found {
        let own = addresses.remove(&device.ifindex).unwrap_or_default();
        device.addresses = own.into_iter().map(|(address, _)| address).collect();
    }
    Ok(found)
}

/// Lists the hardware addresses of the devices of the namespace, by index, as `aa:bb:cc:dd:ee:ff`. Devices without one are
/// omitted.
///
/// # Errors
/// The kernel refuses.
pub fn hardware_addresses(netlink: &mut Netlink) -> Result<BTreeMap<u32, String>, NetlinkError> {
    let request = rt_link::Request::new().op_getlink_dump(&Ifinfomsg::default());
    let found = netlink.dump("list network devices", &request, |(header, attrs)| {
        let address = attrs.get_address().ok().filter(|address| address.iter().any(|byte| *byte != 0))?;
        let digits: Vec<String> = address.iter().map(|byte| format!("{byte:02x}")).collect();
        Some((u32::try_from(header.ifi_index).ok()?, digits.join(":")))
    })?;
    Ok(found.into_iter().collect())
}

/// Returns whether an XDP program is attached to the device.
///
/// # Errors
/// The kernel refuses, or there is no such device.
pub fn has_xdp(netlink: &mut Netlink, ifindex: u32) -> Result<bool, NetlinkError> {
    let header = Ifinfomsg { ifi_index: ifindex.cast_signed(), ..Ifinfomsg::default() };
    let request = rt_link::Request::new().op_getlink_do(&header);
    let attached =
        netlink.dump("read the XDP program", &request, |(_, attrs)| attrs.get_xdp().ok()?.get_attached().ok())?;
    // XDP_ATTACHED_NONE
    Ok(attached.first().is_some_and(|mode| *mode != 0))
}

/// Returns how many packets the device has received since it was created (`rtnetlink(7)`, IFLA_STATS64).
///
/// # Errors
/// The kernel refuses, or there is no such device.
pub fn received_packets(netlink: &mut Netlink, ifindex: u32) -> Result<u64, NetlinkError> {
    let header = Ifinfomsg { ifi_index: ifindex.cast_signed(), ..Ifinfomsg::default() };
    let request = rt_link::Request::new().op_getlink_do(&header);
    let action = "count received packets";
    let counted = netlink.dump(action, &request, |(_, attrs)| Some(attrs.get_stats64().ok()?.rx_packets))?;
    let none = || NetlinkError::Refused {
        action: action.to_owned(),
        reason: "the kernel gave no statistics".to_owned(),
        errno: None,
    };
    counted.first().copied().ok_or_else(none)
}

/// Lists the addresses of a device, with the lengths of their prefixes.
///
/// # Errors
/// The kernel refuses.
pub fn prefixes(netlink: &mut Netlink, device: &Device) -> Result<Vec<(IpAddr, u8)>, NetlinkError> {
    Ok(addresses(netlink)?.remove(&device.ifindex).unwrap_or_default())
}

fn addresses(netlink: &mut Netlink) -> Result<BTreeMap<u32, Vec<(IpAddr, u8)>>, NetlinkError> {
    let request = rt_addr::Request::new().op_getaddr_dump(&Ifaddrmsg::default());
    let found = netlink.dump("list addresses", &request, |(header, attrs)| {
        // On a point-to-point link `address` is that of the peer.
        let address = attrs.get_local().or_else(|_| attrs.get_address()).ok()?;
        Some((header.ifa_index, (address, header.ifa_prefixlen)))
    })?;
    let mut by_device = BTreeMap::<u32, Vec<(IpAddr, u8)>>::new();
    for (ifindex, address) in found {
        by_device.entry(ifindex).or_default().push(address);
    }
    Ok(by_device)
}

/// Why a device was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The kernel refused to list them.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// No device has that name.
    #[error("there is no network device `{name}` in {netns}: the devices are {known}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// A description of the namespace.
        netns: String,
        /// The names of the existing devices.
        known: String,
    },
}

/// Returns the device called `name`. `netns` describes the namespace for the error.
///
/// # Errors
/// There is none; the message lists the existing ones.
pub fn device_named(netlink: &mut Netlink, name: &str, netns: &str) -> Result<Device, DeviceError> {
    let all = devices(netlink)?;
    let known = all.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|device| device.name == name).ok_or_else(|| DeviceError::Unknown {
        name: name.to_owned(),
        netns: netns.to_owned(),
        known,
    })
}
