//! The other end of a veth pair, which may be in another namespace.

use netlink_bindings::rt_link::{self, Ifinfomsg};

use super::{Known, is_on};
use crate::device::{Device, devices};
use crate::features::TX_TCP_SEGMENTATION_FAMILY;
use crate::netlink::Netlink;
use crate::netns::{self, NetNs};

/// The other end of a veth pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name in its namespace.
    pub name: String,
    /// Its namespace in words.
    pub netns: String,
    /// Whether its TCP segmentation offload is on. If so, all its packets, also UDP, bypass the NAPI instance of this end.
    pub tso: Known<bool>,
}

/// A namespace and its devices, among which a peer may be.
#[derive(Debug)]
pub struct NetnsDevices {
    netns: NetNs,
    devices: Vec<Device>,
}

impl NetnsDevices {
    /// Reads the devices of a namespace; `None` if it does not exist any more or the caller lacks the privilege.
    #[must_use]
    pub fn read(netns: NetNs) -> Option<Self> {
        let devices = devices(&mut Netlink::open(&netns).ok()?).ok()?;
        Some(Self { netns, devices })
    }
}

/// Reads the devices of every namespace that can be found and entered.
#[must_use]
pub fn all_netns_devices() -> Vec<NetnsDevices> {
    netns::all().into_iter().filter_map(NetnsDevices::read).collect()
}

/// Returns the namespaces other than `here` that have a device called `name`.
pub(super) fn namesakes(here: u64, name: &str, others: &[NetnsDevices]) -> Vec<String> {
    let others = others.iter().filter(|other| other.netns.inode() != here);
    let with = others.filter(|other| other.devices.iter().any(|device| device.name == name && !device.loopback));
    with.map(|other| other.netns.description().to_owned()).collect()
}

/// Finds the peer of `device`, which is one of `all` in `netns`.
pub(super) fn find(
    netlink: &mut Netlink,
    netns: &NetNs,
    device: &Device,
    all: &[Device],
    others: &[NetnsDevices],
) -> Known<Peer> {
    let link = device.link.ok_or_else(|| format!("the kernel names no peer of {}", device.name))?;
    if !device.link_elsewhere {
        let peer = all.iter().find(|other| other.ifindex == link && other.is_veth());
        let peer = peer.ok_or_else(|| format!("the peer of {} does not exist any more", device.name))?;
        let tso = is_on(netlink, &peer.name, &TX_TCP_SEGMENTATION_FAMILY);
        return Ok(Peer { name: peer.name.clone(), netns: netns.description().to_owned(), tso });
    }
    let expected = identity_across(netlink, device.ifindex, link);
    let mut found = Vec::new();
    for other in others.iter().filter(|other| other.netns.inode() != netns.inode()) {
        let points_back = |peer: &&Device| {
            peer.is_veth() && peer.link_elsewhere && (peer.ifindex, peer.link) == (link, Some(device.ifindex))
        };
        let Some(peer) = other.devices.iter().find(points_back) else { continue };
        let Ok(mut there) = Netlink::open(&other.netns) else { continue };
        // The same pair of indices is common: every namespace numbers its devices from 1.
        if expected.is_none() || expected == identity(&mut there, link, None) {
            let tso = is_on(&mut there, &peer.name, &TX_TCP_SEGMENTATION_FAMILY);
            found.push(Peer { name: peer.name.clone(), netns: other.netns.description().to_owned(), tso });
        }
    }
    match (found.pop(), found.len()) {
        (Some(peer), 0) => Ok(peer),
        (None, _) => Err(format!(
            "the peer of {} is in a namespace that has no name and no process, or that only root can read",
            device.name
        )),
        (Some(_), more) => Err(format!("any of {} devices could be the peer of {}", more + 1, device.name)),
    }
}

/// The name and hardware address of a device.
type Identity = (Vec<u8>, Vec<u8>);

/// Returns the identity of the peer of `ifindex`, read from this side of the pair (`IFLA_TARGET_NETNSID` of
/// rtnetlink(7)); `None` if the caller lacks the privilege.
fn identity_across(netlink: &mut Netlink, ifindex: u32, link: u32) -> Option<Identity> {
    let header = Ifinfomsg { ifi_index: ifindex.cast_signed(), ..Ifinfomsg::default() };
    let request = rt_link::Request::new().op_getlink_do(&header);
    let netnsid = netlink.dump("find the peer", &request, |(_, attrs)| attrs.get_link_netnsid().ok()).ok()?.pop()?;
    // Negative if the other namespace has no ID in this one.
    (netnsid >= 0).then(|| identity(netlink, link, Some(netnsid)))?
}

fn identity(netlink: &mut Netlink, ifindex: u32, netnsid: Option<i32>) -> Option<Identity> {
    let header = Ifinfomsg { ifi_index: ifindex.cast_signed(), ..Ifinfomsg::default() };
    let mut request = rt_link::Request::new().op_getlink_do(&header);
    if let Some(netnsid) = netnsid {
        request.encode().push_target_netnsid(netnsid);
    }
    let read = netlink.dump("identify a device", &request, |(_, attrs)| {
        Some((attrs.get_ifname().ok()?.to_bytes().to_vec(), attrs.get_address().ok()?.to_vec()))
    });
    read.ok()?.pop()
}
