//! Which destinations the NIC reaches.
//!
//! A shared-memory or TAP NIC reaches the prefixes of its addresses, and every destination if it has a gateway. Under
//! AF_XDP the kernel's routing table decides: the NIC reaches a destination if the kernel's route uses this device, directly
//! or through the gateway that the datapath uses (that of the device's best default route). Loopback, other devices and
//! other routers are left to the kernel.
//!
//! # The NIC's own addresses
//!
//! The datapath loops back what this process sends to them. Where the kernel has the address too (loopback, AF_XDP), another
//! program may have the port, and only the kernel knows all of them. So a loopback destination is the datapath's if a socket
//! of this process receives there, and otherwise the kernel's, which connects to another process or refuses. Sockets on a
//! loopback address receive from both. Under AF_XDP the kernel connects a program to itself.

use std::net::{IpAddr, SocketAddr};

use abey_datapath::Route;
use abey_linux::library::DatapathConfig;
use libc::c_int;

use super::context::{is_af_xdp, is_in_prefix, is_kernel_addr, is_nic_addr, uninterposed};
use super::listen;
use super::runtime::runtime;
use super::socket_options::get;

/// The route to a destination that the NIC reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NicRoute {
    /// The local address that the kernel's route prefers.
    pub(crate) source: Option<IpAddr>,
}

/// Returns the name of the kernel's device, if the NIC is an AF_XDP one.
fn device(config: &DatapathConfig) -> Option<&str> {
    config.nic.strip_prefix("af_xdp:")
}

/// Returns whether the socket is not bound to another device (SO_BINDTODEVICE), and has no option that only the kernel has.
pub(crate) fn may_use_device(config: &DatapathConfig, fd: c_int) -> bool {
    is_of_device(config, fd) && !(is_af_xdp(config) && super::unknown_options::is_for_kernel(fd))
}

/// Returns whether the socket is not bound to another device (SO_BINDTODEVICE).
pub(super) fn is_of_device(config: &DatapathConfig, fd: c_int) -> bool {
    let bound = get::<[u8; libc::IFNAMSIZ]>(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE).unwrap_or_default();
    let name = bound.split(|byte| *byte == 0).next().unwrap_or_default();
    name.is_empty() || device(config).is_some_and(|device| device.as_bytes() == name)
}

/// Returns the NIC's route to `to`, or `None` if the kernel shall send there.
pub(crate) fn lookup(config: &DatapathConfig, to: SocketAddr) -> Option<NicRoute> {
    let ip = to.ip().to_canonical();
    if is_nic_addr(config, to) {
        let is_ours = !is_af_xdp(config) && (listen::open_at(to) || !is_kernel_addr(config, to));
        return is_ours.then_some(NicRoute { source: None });
    }
    if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() {
        return None;
    }
    if is_link_local(ip) && !scope_matches(config, to) {
        return None;
    }
    let on_link = config.addresses.iter().any(|(own, prefix)| is_in_prefix(ip, *own, *prefix));
    let Some(device) = device(config) else {
        let gateway = config.gateways.iter().any(|gateway| gateway.is_ipv4() == ip.is_ipv4());
        return (on_link || gateway).then_some(NicRoute { source: None });
    };
    if !config.addresses.iter().any(|(own, _)| own.is_ipv4() == ip.is_ipv4()) {
        return None;
    }
    let route = crate::errno::preserve_errno(|| uninterposed(|| Route::look_up(ip))).ok()?;
    if Some(route.device) != interface_index(device) || route.is_local {
        return None;
    }
    let agrees = match route.gateway {
        None => on_link,
        Some(gateway) => !on_link && runtime(config)?.gateway(ip.is_ipv4()) == Some(gateway),
    };
    agrees.then_some(NicRoute { source: route.source })
}

/// Returns whether the datapath sends datagrams to `to`. `has_receiver` is whether a socket of this process receives there.
pub(crate) fn takes_datagrams(config: &DatapathConfig, to: SocketAddr, has_receiver: impl FnOnce() -> bool) -> bool {
    if !is_nic_addr(config, to) {
        return is_on_link(config, to);
    }
    !is_af_xdp(config) && (!is_kernel_addr(config, to) || has_receiver())
}

/// Returns whether `to` is in a prefix of the NIC's addresses. Does not query the kernel's routes.
fn is_on_link(config: &DatapathConfig, to: SocketAddr) -> bool {
    let ip = to.ip().to_canonical();
    !is_nic_addr(config, to) && config.addresses.iter().any(|(own, prefix)| is_in_prefix(ip, *own, *prefix))
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Returns whether the scope of a link-local address is the NIC's link.
fn scope_matches(config: &DatapathConfig, to: SocketAddr) -> bool {
    match (device(config), to) {
        (Some(device), SocketAddr::V6(to)) => interface_index(device) == Some(to.scope_id()),
        _ => true,
    }
}

/// Returns the kernel's index of a device.
pub(super) fn interface_index(device: &str) -> Option<u32> {
    let name = std::ffi::CString::new(device).ok()?;
    // SAFETY: the name is a C string.
    let index = crate::errno::preserve_errno(|| unsafe { libc::if_nametoindex(name.as_ptr()) });
    (index != 0).then_some(index)
}
