//! A test network: a veth pair whose ends live in two namespaces, set up so that TCP reaches the receiver's NAPI.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_bindings::rt_addr::{self, Ifaddrmsg};
use netlink_bindings::rt_link::{self, Ifinfomsg};
use netlink_bindings::traits::Pusher;
use netlink_bindings::utils::{finalize_nested_header, push_header, push_nested_header};

use crate::features::{RX_GRO, TX_CHECKSUMS, TX_TCP_SEGMENTATION_FAMILY, set_features};
use crate::netlink::{Netlink, NetlinkError};
use crate::netns::NetNs;

/// Numbers of `linux/if_link.h` that the peer's nested attributes need.
mod abi {
    pub(super) const IFLA_INFO_DATA: u16 = 2;
    pub(super) const VETH_INFO_PEER: u16 = 1;
    pub(super) const IFLA_IFNAME: u16 = 3;
    pub(super) const IFLA_NET_NS_FD: u16 = 28;
    pub(super) const IFLA_NUM_TX_QUEUES: u16 = 31;
    pub(super) const IFLA_NUM_RX_QUEUES: u16 = 32;
}

/// One end of a pair to be made.
#[derive(Debug)]
pub struct End<'a> {
    /// Where it shall live.
    pub netns: &'a NetNs,
    /// Its name, at most 15 bytes.
    pub name: &'a str,
    /// Its address and the length of the prefix in bits.
    pub address: (IpAddr, u8),
}

/// Makes a veth pair with `queues` queues in each direction, gives the ends their addresses and brings them up.
///
/// Each end gets GRO, without which a veth has no NAPI instance, and no TCP segmentation offload, with which its
/// packets would bypass the other end's NAPI and reach the per-CPU backlog instead.
///
/// The pair goes when either namespace does.
///
/// # Errors
/// When the kernel refuses, most often for lack of `CAP_NET_ADMIN`.
pub fn create(near: &End<'_>, far: &End<'_>, queues: u32) -> Result<(), NetlinkError> {
    let mut netlink = Netlink::open(near.netns)?;
    let action = format!("make the veth pair {} and {}", near.name, far.name);
    let mut request = rt_link::Request::new().set_create().set_excl().op_newlink_do(&Ifinfomsg::default());
    let mut info = request
        .encode()
        .push_ifname_bytes(near.name.as_bytes())
        .push_num_tx_queues(queues)
        .push_num_rx_queues(queues)
        .nested_linkinfo()
        .push_kind(c"veth");
    push_peer(info.as_vec_mut(), far, queues);
    drop(info);
    netlink.change(&action, &request)?;
    for end in [near, far] {
        let mut netlink = Netlink::open(end.netns)?;
        let mut wanted = vec![(RX_GRO, true)];
        wanted.extend(TX_TCP_SEGMENTATION_FAMILY.map(|name| (name, false)));
        set_features(&mut netlink, end.name, &wanted)?;
        add_address(&mut netlink, end.name, end.address)?;
        set_up(&mut netlink, end.name)?;
    }
    Ok(())
}

/// Makes the kernel compute the checksums of what it sends over a veth device, for a receiver that is a stack in user space.
///
/// A veth leaves checksums to a NIC that is not there: the receiving kernel knows that, and whoever reads the packets by
/// AF_XDP gets them with checksums that are wrong.
///
/// # Errors
/// When the namespace cannot be entered or the kernel refuses, most often for lack of `CAP_NET_ADMIN`.
pub fn compute_checksums(netns: &NetNs, device: &str) -> Result<(), NetlinkError> {
    set_features(&mut Netlink::open(netns)?, device, &[(TX_CHECKSUMS, false)])
}

/// Keeps each TCP connection that begins in the namespace on one transmit queue, and so on one receive queue of a veth
/// peer. Linux moves a connection to another path when a segment had to be repeated (`net.core.txrehash`,
/// Linux `Documentation/admin-guide/sysctl/net.rst`); NICs at the other end of a wire do not see that, a veth peer does.
///
/// For namespaces of one's own: nothing puts it back.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel has no such setting (before Linux 5.18).
pub fn keep_queues(netns: &NetNs) -> std::io::Result<()> {
    // The kernel shows the network settings of the thread that looks.
    netns.run(|| std::fs::write("/proc/sys/net/core/txrehash", "0")).map_err(std::io::Error::other)?
}

/// The link data of a veth: the other end as a whole link message of its own.
fn push_peer(message: &mut Vec<u8>, far: &End<'_>, queues: u32) {
    let data = push_nested_header(message, abi::IFLA_INFO_DATA);
    let peer = push_nested_header(message, abi::VETH_INFO_PEER);
    message.extend_from_slice(Ifinfomsg::default().as_slice());
    push_header(message, abi::IFLA_IFNAME, far.name.len() as u16 + 1);
    message.extend_from_slice(far.name.as_bytes());
    message.push(0);
    let fd = far.netns.as_fd().as_raw_fd() as u32;
    for (kind, value) in
        [(abi::IFLA_NUM_TX_QUEUES, queues), (abi::IFLA_NUM_RX_QUEUES, queues), (abi::IFLA_NET_NS_FD, fd)]
    {
        push_header(message, kind, 4);
        message.extend_from_slice(&value.to_ne_bytes());
    }
    finalize_nested_header(message, peer);
    finalize_nested_header(message, data);
}

fn ifindex(netlink: &mut Netlink, name: &str) -> Result<i32, NetlinkError> {
    let mut request = rt_link::Request::new().op_getlink_do(&Ifinfomsg::default());
    request.encode().push_ifname_bytes(name.as_bytes());
    let action = format!("find {name}");
    let found = netlink.dump(&action, &request, |(header, _)| Some(header.ifi_index))?;
    found.first().copied().ok_or(NetlinkError::Refused { action, reason: "no answer".to_owned(), errno: None })
}

/// Gives a device an address.
///
/// # Errors
/// When the kernel refuses.
pub fn add_address(netlink: &mut Netlink, device: &str, (address, prefix): (IpAddr, u8)) -> Result<(), NetlinkError> {
    let index = ifindex(netlink, device)?.cast_unsigned();
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let header = Ifaddrmsg {
        ifa_family: family as u8,
        ifa_index: index,
        ifa_prefixlen: prefix,
        // An IPv6 address is unusable until duplicate detection is over, which on a pair of our own is pure delay.
        ifa_flags: libc::IFA_F_NODAD as u8,
        ..Ifaddrmsg::default()
    };
    let mut request = rt_addr::Request::new().set_create().set_excl().op_newaddr_do(&header);
    request.encode().push_local(address).push_address(address);
    netlink.change(&format!("give {device} the address {address}"), &request)
}

/// Brings a device up.
///
/// # Errors
/// When the kernel refuses.
pub fn set_up(netlink: &mut Netlink, device: &str) -> Result<(), NetlinkError> {
    let up = libc::IFF_UP as u32;
    let header =
        Ifinfomsg { ifi_index: ifindex(netlink, device)?, ifi_flags: up, ifi_change: up, ..Ifinfomsg::default() };
    let request = rt_link::Request::new().op_setlink_do(&header);
    netlink.change(&format!("bring {device} up"), &request)
}
