//! Which destinations are reached by the NIC.
//!
//! On a shared-memory NIC and a TAP one on a prefix of the NIC's, and any other one when a gateway was given. Under AF_XDP
//! the kernel is asked for its route: one that it sends by that device, directly or through the gateway that the datapath
//! uses (the interface's best default route's). What goes by another device, another router or loopback is the kernel's.

use std::net::{IpAddr, SocketAddr};

use abey_datapath::Route;
use abey_linux::library::DatapathConfig;
use libc::c_int;

use super::kept::get;
use super::{inside, is_own, runtime};

/// How a destination is reached by the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The own address that the kernel's route prefers.
    pub(crate) source: Option<IpAddr>,
}

/// The interface that the kernel has of the NIC.
fn device(config: &DatapathConfig) -> Option<&str> {
    config.nic.strip_prefix("af_xdp:")
}

/// Whether the socket is not bound to another device (SO_BINDTODEVICE).
pub(crate) fn may_use_device(config: &DatapathConfig, fd: c_int) -> bool {
    let bound = get::<[u8; libc::IFNAMSIZ]>(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE).unwrap_or_default();
    let name = bound.split(|byte| *byte == 0).next().unwrap_or_default();
    name.is_empty() || device(config).is_some_and(|device| device.as_bytes() == name)
}

/// How `to` is reached by the NIC; `None`: by the kernel.
pub(crate) fn to(config: &DatapathConfig, to: SocketAddr) -> Option<Way> {
    let ip = to.ip().to_canonical();
    if ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_own(config, to) {
        return None;
    }
    if is_link_local(ip) && !scope_is(config, to) {
        return None;
    }
    let on_link = config.addresses.iter().any(|(own, prefix)| is_on(ip, *own, *prefix));
    let Some(device) = device(config) else {
        let gateway = config.gateways.iter().any(|gateway| gateway.is_ipv4() == ip.is_ipv4());
        return (on_link || gateway).then_some(Way { source: None });
    };
    if !config.addresses.iter().any(|(own, _)| own.is_ipv4() == ip.is_ipv4()) {
        return None;
    }
    let route = crate::state::keep_errno(|| inside(|| Route::look_up(ip))).ok()?;
    if Some(route.device) != index_of(device) || route.is_local {
        return None;
    }
    let agrees = match route.gateway {
        None => on_link,
        Some(gateway) => !on_link && runtime(config)?.gateway(ip.is_ipv4()) == Some(gateway),
    };
    agrees.then_some(Way { source: route.source })
}

/// Whether `to` is on the NIC's own network, whatever the kernel's routes say. Asks nobody.
pub(crate) fn is_on_link(config: &DatapathConfig, to: SocketAddr) -> bool {
    let ip = to.ip().to_canonical();
    !is_own(config, to) && config.addresses.iter().any(|(own, prefix)| is_on(ip, *own, *prefix))
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Whether an address of a link is one of the NIC's link.
fn scope_is(config: &DatapathConfig, to: SocketAddr) -> bool {
    match (device(config), to) {
        (Some(device), SocketAddr::V6(to)) => index_of(device) == Some(to.scope_id()),
        _ => true,
    }
}

/// The kernel's number of a device.
pub(super) fn index_of(device: &str) -> Option<u32> {
    let name = std::ffi::CString::new(device).ok()?;
    // SAFETY: the name is a C string.
    let index = crate::state::keep_errno(|| unsafe { libc::if_nametoindex(name.as_ptr()) });
    (index != 0).then_some(index)
}

fn is_on(address: IpAddr, own: IpAddr, prefix: u8) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let differ = bits(address) ^ bits(own);
    address.is_ipv4() == own.is_ipv4() && (prefix == 0 || differ >> (128 - u32::from(prefix.min(128))) == 0)
}
