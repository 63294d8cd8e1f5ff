//! The other end of a veth pair, which may live in another namespace.

use netlink_bindings::rt_link::{self, Ifinfomsg};

use super::{Known, is_on};
use crate::device::{Device, devices};
use crate::features::TX_TCP_SEGMENTATION_FAMILY;
use crate::netlink::Netlink;
use crate::netns::{self, NetNs};

/// The other end of a veth pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name there.
    pub name: String,
    /// Its namespace in words.
    pub place: String,
    /// Whether it has TCP segmentation offload on, with which everything it sends, UDP too, bypasses this end's NAPI.
    pub tso: Known<bool>,
}

/// A namespace that peers may live in, with its devices.
#[derive(Debug)]
pub struct Neighbour {
    netns: NetNs,
    devices: Vec<Device>,
}

impl Neighbour {
    /// The namespace; `None` when it may not be looked at or is gone.
    #[must_use]
    pub fn read(netns: NetNs) -> Option<Self> {
        let devices = devices(&mut Netlink::open(&netns).ok()?).ok()?;
        Some(Self { netns, devices })
    }
}

/// Every namespace that can be found and entered.
#[must_use]
pub fn neighbours() -> Vec<Neighbour> {
    netns::all().into_iter().filter_map(Neighbour::read).collect()
}

/// The namespaces other than `here` that have a device called `name`.
pub(super) fn namesakes(here: u64, name: &str, neighbours: &[Neighbour]) -> Vec<String> {
    let others = neighbours.iter().filter(|other| other.netns.inode() != here);
    let with = others.filter(|other| other.devices.iter().any(|device| device.name == name && !device.loopback));
    with.map(|other| other.netns.description().to_owned()).collect()
}

/// The peer of `device`, which is one of `all` in `netns`.
pub(super) fn find(
    netlink: &mut Netlink,
    netns: &NetNs,
    device: &Device,
    all: &[Device],
    neighbours: &[Neighbour],
) -> Known<Peer> {
    let link = device.link.ok_or_else(|| format!("the kernel names no peer of {}", device.name))?;
    if !device.link_elsewhere {
        let peer = all.iter().find(|other| other.ifindex == link && other.is_veth());
        let peer = peer.ok_or_else(|| format!("the peer of {} has gone", device.name))?;
        let tso = is_on(netlink, &peer.name, &TX_TCP_SEGMENTATION_FAMILY);
        return Ok(Peer { name: peer.name.clone(), place: netns.description().to_owned(), tso });
    }
    let expected = identity_across(netlink, device.ifindex, link);
    let mut found = Vec::new();
    for other in neighbours.iter().filter(|other| other.netns.inode() != netns.inode()) {
        let points_back = |peer: &&Device| {
            peer.is_veth() && peer.link_elsewhere && (peer.ifindex, peer.link) == (link, Some(device.ifindex))
        };
        let Some(peer) = other.devices.iter().find(points_back) else { continue };
        let Ok(mut there) = Netlink::open(&other.netns) else { continue };
        // The same pair of numbers is common: every namespace counts its devices from 1.
        if expected.is_none() || expected == identity(&mut there, link, None) {
            let tso = is_on(&mut there, &peer.name, &TX_TCP_SEGMENTATION_FAMILY);
            found.push(Peer { name: peer.name.clone(), place: other.netns.description().to_owned(), tso });
        }
    }
    match (found.pop(), found.len()) {
        (Some(peer), 0) => Ok(peer),
        (None, _) => Err(format!(
            "the peer of {} is in a namespace that has no name and no process, or may not be looked at without root",
            device.name
        )),
        (Some(_), more) => Err(format!("cannot tell which of {} devices is the peer of {}", more + 1, device.name)),
    }
}

/// The name and hardware address of a device.
type Identity = (Vec<u8>, Vec<u8>);

/// The identity of the device that `ifindex` is tied to, asked from this side of the pair (`IFLA_TARGET_NETNSID` of
/// rtnetlink(7)); `None` where the caller may not ask.
fn identity_across(netlink: &mut Netlink, ifindex: u32, link: u32) -> Option<Identity> {
    let header = Ifinfomsg { ifi_index: ifindex.cast_signed(), ..Ifinfomsg::default() };
    let request = rt_link::Request::new().op_getlink_do(&header);
    let netnsid = netlink.dump("find the peer", &request, |(_, attrs)| attrs.get_link_netnsid().ok()).ok()?.pop()?;
    // A negative number: the other namespace has none here.
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
