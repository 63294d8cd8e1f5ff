//! A veth pair between two namespaces, set up so that TCP reaches the receiver's NAPI instance.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use netlink_bindings::ethtool;
use netlink_bindings::rt_addr::{self, Ifaddrmsg};
use netlink_bindings::rt_link::{self, Ifinfomsg};
use netlink_bindings::traits::{NetlinkRequest, Pusher};
use netlink_bindings::utils::{finalize_nested_header, push_header, push_nested_header};
use netlink_socket2::NetlinkSocket;

use crate::TestbedError;
use crate::namespace::enter;

/// Numbers of `linux/if_link.h` that the peer's nested attributes need, and of `linux/ethtool_netlink_generated.h`.
mod abi {
    pub(super) const IFLA_INFO_DATA: u16 = 2;
    pub(super) const VETH_INFO_PEER: u16 = 1;
    pub(super) const IFLA_IFNAME: u16 = 3;
    pub(super) const IFLA_NET_NS_FD: u16 = 28;
    pub(super) const IFLA_NUM_TX_QUEUES: u16 = 31;
    pub(super) const IFLA_NUM_RX_QUEUES: u16 = 32;
    /// The bindings number requests and replies in one sequence, which gives another number than the kernel's.
    pub(super) const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
}

/// Generic receive offload, without which a veth device has no NAPI instance.
const RX_GRO: &str = "rx-gro";
/// Checksums that the device is expected to compute.
const TX_CHECKSUMS: &str = "tx-checksum-ip-generic";
/// What `ethtool -K DEV tso off` turns off.
const TX_TCP_SEGMENTATION: [&str; 4] =
    ["tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"];

/// One end of a pair to be made.
pub struct End<'a> {
    /// The namespace of this end.
    pub netns: &'a dyn AsFd,
    /// The name of the device, at most 15 bytes.
    pub name: &'a str,
    /// The address of the device and the length of the prefix in bits.
    pub address: (IpAddr, u8),
}

/// Makes a veth pair with `queues` queues in each direction, gives the ends their addresses and brings them up.
///
/// Each end has GRO, without which a veth device has no NAPI instance, and no TCP segmentation offload, with which its
/// packets would bypass the NAPI instance of the other end and reach the per-CPU backlog instead.
///
/// The pair vanishes with either namespace.
///
/// # Errors
/// The kernel refuses, most often for lack of `CAP_NET_ADMIN`.
pub fn create(near: &End<'_>, far: &End<'_>, queues: u32) -> Result<(), TestbedError> {
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
    in_namespace(near.netns, |netlink| change(netlink, &action, &request))?;
    for end in [near, far] {
        let (name, address) = (end.name, end.address);
        in_namespace(end.netns, |netlink| {
            let mut features = vec![(RX_GRO, true)];
            features.extend(TX_TCP_SEGMENTATION.map(|name| (name, false)));
            set_features(netlink, name, &features)?;
            add_address(netlink, name, address)?;
            bring_up(netlink, name)
        })?;
    }
    Ok(())
}

/// Makes the kernel compute the checksums of what it sends over a veth device, for a receiver that is a stack in user space.
///
/// A veth device leaves checksums to the hardware although it has none. The receiving kernel accepts such packets; a program
/// that reads them from an AF_XDP socket finds wrong checksums.
///
/// # Errors
/// The namespace cannot be entered, or the kernel refuses, most often for lack of `CAP_NET_ADMIN`.
pub fn compute_checksums(netns: &dyn AsFd, device: &str) -> Result<(), TestbedError> {
    in_namespace(netns, |netlink| set_features(netlink, device, &[(TX_CHECKSUMS, false)]))
}

/// Makes each TCP connection that begins in the namespace stay on one transmit queue, and so on one receive queue of a veth
/// peer. Linux moves a connection to another path when a segment had to be repeated (`net.core.txrehash`,
/// Linux `Documentation/admin-guide/sysctl/net.rst`). That does not change the queue of a NIC at the other end of a wire,
/// but does change that of a veth peer.
///
/// For namespaces made for the purpose: the setting is not restored.
///
/// # Errors
/// The namespace cannot be entered, or the kernel has no such setting (before Linux 5.18).
pub fn keep_queues(netns: &dyn AsFd) -> std::io::Result<()> {
    // `/proc/sys/net` shows the settings of the calling thread's namespace.
    enter(netns, || std::fs::write("/proc/sys/net/core/txrehash", "0")).map_err(std::io::Error::other)?
}

/// Brings a device up.
///
/// # Errors
/// The namespace cannot be entered, or the kernel refuses.
pub fn set_up(netns: &dyn AsFd, device: &str) -> Result<(), TestbedError> {
    in_namespace(netns, |netlink| bring_up(netlink, device))
}

/// Runs `work` with netlink sockets of a namespace. The sockets are opened by the first request of each protocol.
fn in_namespace<T: Send>(
    netns: &dyn AsFd,
    work: impl FnOnce(&mut NetlinkSocket) -> Result<T, TestbedError> + Send,
) -> Result<T, TestbedError> {
    enter(netns, || work(&mut NetlinkSocket::new())).map_err(TestbedError::Namespace)?
}

/// Sends a request and waits for the kernel's acknowledgement.
fn change<R: NetlinkRequest>(netlink: &mut NetlinkSocket, action: &str, request: &R) -> Result<(), TestbedError> {
    let mut reply = netlink.request(request).map_err(|error| TestbedError::from_io(action, &error))?;
    reply.recv_ack().map_err(|error| TestbedError::from_reply(action, &error))
}

/// Sends a request and reads all replies through `read`.
fn query<R: NetlinkRequest, T>(
    netlink: &mut NetlinkSocket,
    action: &str,
    request: &R,
    mut read: impl FnMut(R::ReplyType<'_>) -> Option<T>,
) -> Result<Vec<T>, TestbedError> {
    let mut replies = netlink.request(request).map_err(|error| TestbedError::from_io(action, &error))?;
    let mut found = Vec::new();
    while let Some(reply) = replies.recv() {
        found.extend(read(reply.map_err(|error| TestbedError::from_reply(action, &error))?));
    }
    Ok(found)
}

/// Appends the link data of a veth device: the other end as a whole link message.
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

/// Turns offload features on or off, by their ethtool names.
fn set_features(netlink: &mut NetlinkSocket, device: &str, features: &[(&str, bool)]) -> Result<(), TestbedError> {
    let mut request = ethtool::Request::new().op_features_set_do();
    request.header_mut().cmd = abi::ETHTOOL_MSG_FEATURES_SET;
    let mut bits = request
        .encode()
        .nested_header()
        .push_dev_name_bytes(device.as_bytes())
        .end_nested()
        .nested_wanted()
        .nested_bits();
    for (name, on) in features {
        let bit = bits.nested_bit().push_name_bytes(name.as_bytes());
        bits = if *on { bit.push_value(()).end_nested() } else { bit.end_nested() };
    }
    bits.end_nested().end_nested();
    // The kernel may answer with the difference between wanted and active before it acknowledges.
    query(netlink, &format!("change the offload features of {device}"), &request, |_| None::<()>)?;
    Ok(())
}

fn ifindex(netlink: &mut NetlinkSocket, device: &str) -> Result<i32, TestbedError> {
    let mut request = rt_link::Request::new().op_getlink_do(&Ifinfomsg::default());
    request.encode().push_ifname_bytes(device.as_bytes());
    let action = format!("find {device}");
    let found = query(netlink, &action, &request, |(header, _)| Some(header.ifi_index))?;
    found.first().copied().ok_or(TestbedError::Refused { action, reason: "no answer".to_owned() })
}

fn add_address(netlink: &mut NetlinkSocket, device: &str, (address, prefix): (IpAddr, u8)) -> Result<(), TestbedError> {
    let index = ifindex(netlink, device)?.cast_unsigned();
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let header = Ifaddrmsg {
        ifa_family: family as u8,
        ifa_index: index,
        ifa_prefixlen: prefix,
        // An IPv6 address is unusable until duplicate detection ends, which between two namespaces is only delay.
        ifa_flags: libc::IFA_F_NODAD as u8,
        ..Ifaddrmsg::default()
    };
    let mut request = rt_addr::Request::new().set_create().set_excl().op_newaddr_do(&header);
    request.encode().push_local(address).push_address(address);
    change(netlink, &format!("give {device} the address {address}"), &request)
}

fn bring_up(netlink: &mut NetlinkSocket, device: &str) -> Result<(), TestbedError> {
    let up = libc::IFF_UP as u32;
    let header =
        Ifinfomsg { ifi_index: ifindex(netlink, device)?, ifi_flags: up, ifi_change: up, ..Ifinfomsg::default() };
    change(netlink, &format!("bring {device} up"), &rt_link::Request::new().op_setlink_do(&header))
}
