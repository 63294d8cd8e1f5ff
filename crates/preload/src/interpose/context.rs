//! Whether a call is the program's and uses the datapath, and which addresses are the NIC's.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

use abey_linux::library::DatapathConfig;

use super::{process, sandbox};
use crate::config;

thread_local! {
    /// True while this thread runs code of the runtime, whose calls go to the kernel.
    static UNINTERPOSED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with every interposed call of this thread passed on to the C library.
pub(super) fn uninterposed<R>(work: impl FnOnce() -> R) -> R {
    UNINTERPOSED.with(|uninterposed| {
        let before = uninterposed.replace(true);
        let result = work();
        uninterposed.set(before);
        result
    })
}

/// Returns whether this thread runs code of the runtime.
pub(super) fn is_uninterposed() -> bool {
    UNINTERPOSED.with(Cell::get)
}

/// Returns the datapath's configuration.
///
/// `None` if no datapath is configured, if the runtime itself makes this call, if this process was forked from the
/// one that has the runtime, or if it has forbidden itself what the datapath needs.
pub(super) fn datapath_config() -> Option<&'static DatapathConfig> {
    let config = config::get().datapath.as_ref()?;
    (!is_uninterposed() && !process::is_child() && !sandbox::is_off()).then_some(config)
}

/// Returns whether `address` has one of the NIC's IP addresses: a loopback address is the NIC's with its whole prefix, as in
/// the kernel's local routing table.
pub(super) fn is_nic_addr(config: &DatapathConfig, address: SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    config.addresses.iter().any(|(own, prefix)| *own == ip || own.is_loopback() && is_in_prefix(ip, *own, *prefix))
}

/// Returns whether the kernel has this address of the NIC as well, and other programs may use it.
pub(super) fn is_kernel_addr(config: &DatapathConfig, address: SocketAddr) -> bool {
    is_af_xdp(config) || address.ip().to_canonical().is_loopback()
}

/// Returns whether `address` is in the prefix of `own`.
pub(super) fn is_in_prefix(address: IpAddr, own: IpAddr, prefix: u8) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let differ = bits(address) ^ bits(own);
    address.is_ipv4() == own.is_ipv4() && (prefix == 0 || differ >> (128 - u32::from(prefix.min(128))) == 0)
}

/// Returns whether the NIC is an AF_XDP one. The kernel then has the same addresses, routes and ports as the datapath;
/// on a shared-memory or TAP NIC the addresses are the datapath's alone.
pub(super) fn is_af_xdp(config: &DatapathConfig) -> bool {
    config.nic.starts_with("af_xdp:")
}
