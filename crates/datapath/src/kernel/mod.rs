//! The kernel as the control plane of a device that is shared with it (AF_XDP).
//!
//! The interface keeps its addresses, and the kernel answers ARP, neighbour discovery and ping for them. The runtime takes
//! from the kernel what both must agree on:
//!
//! - addresses and gateways, if the program gave none, as they are when the runtime is built ([`interface`]). Packets are
//!   redirected only to those that the host still has ([`addresses`]);
//! - ports, each reserved by a kernel socket that is bound and never listens ([`ports`]). While a port is reserved, the
//!   XDP program redirects its packets. Packets that reach the kernel after the program has ended are answered with resets;
//! - neighbours ([`neighbors`]), which a thread of its own ([`thread`]) requests by netlink when a stack has a packet for an
//!   unknown neighbour. Packets do not pass through this module.
//!
//! ICMP errors about the runtime's packets arrive here too, because the XDP program reads the packet that an error quotes.
//! The kernel receives, and drops, fragments, and errors that quote a fragment or IPv6 extension headers.

mod addresses;
pub(crate) mod interface;
mod neighbors;
pub(crate) mod ports;
mod route;
pub(crate) mod thread;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abey_nic::broker::Broker;

pub use addresses::HostAddresses;
pub use neighbors::Neighbors;
pub use route::Route;

use self::ports::Reservations;
use crate::error::{BuildError, SystemError};
use crate::shard::{KernelLink, PortOwners};

/// The state that a runtime shares with the kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) ports: Arc<Reservations>,
    /// The shards' connection to this.
    pub(crate) link: Arc<KernelLink>,
    /// Makes the privileged calls for a process that has only claimed some of the device's queues.
    broker: Option<Arc<dyn Broker>>,
    is_shut_down: AtomicBool,
}

impl Kernel {
    /// Creates the state for the interface `device`. `steers` is whether the queue of a flow's frames is known in advance,
    /// or there is only one queue.
    pub(crate) fn new(device: &str, ports: abey_nic::Ports, steers: bool) -> Result<Self, BuildError> {
        let owners = (!steers).then(PortOwners::new);
        let link = Arc::new(KernelLink::new(owners).map_err(SystemError::Sleep)?);
        Ok(Self {
            broker: ports.broker().cloned(),
            ports: Arc::new(Reservations::new(device, ports, link.clone())),
            link,
            is_shut_down: AtomicBool::new(false),
        })
    }

    fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::Acquire)
    }

    /// Releases every port, even those of sockets that the program still holds: the runtime was dropped.
    pub(crate) fn shut_down(&self) {
        self.is_shut_down.store(true, Ordering::Release);
        self.ports.shut_down();
        self.link.parker.unpark();
    }
}
