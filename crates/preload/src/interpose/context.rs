//! Whether a call is the program's and uses the datapath, and which addresses are the NIC's.

use std::cell::Cell;
use std::net::SocketAddr;

use abey_linux::library::DatapathConfig;

use super::process;
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

/// Returns the datapath's configuration.
///
/// `None` if no datapath is configured, if the runtime itself makes this call, or if this process was forked from the
/// one that has the runtime.
pub(super) fn datapath_config() -> Option<&'static DatapathConfig> {
    let config = config::get().datapath.as_ref()?;
    (!UNINTERPOSED.with(Cell::get) && !process::is_child()).then_some(config)
}

/// Returns whether `address` has one of the NIC's IP addresses.
pub(super) fn is_nic_addr(config: &DatapathConfig, address: SocketAddr) -> bool {
    config.addresses.iter().any(|(own, _)| *own == address.ip().to_canonical())
}

/// Returns whether the NIC is an AF_XDP one. The kernel then has the same addresses, routes and ports as the datapath;
/// on a shared-memory or TAP NIC the addresses are the datapath's alone.
pub(super) fn is_af_xdp(config: &DatapathConfig) -> bool {
    config.nic.starts_with("af_xdp:")
}
