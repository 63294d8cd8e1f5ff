//! The kernel as control plane of a device that is shared with it (AF_XDP).
//!
//! The interface keeps its addresses, and the kernel answers ARP, neighbour discovery and ping for them. From it the
//! runtime takes what it must agree on:
//!
//! - addresses and gateways, when none were given ([`interface`]), as they were when the runtime was built;
//! - ports, each reserved by a kernel socket that is bound and never listens ([`ports`]). While a port is reserved the XDP
//!   program redirects it; what still reaches the kernel when the program is gone it answers with resets;
//! - neighbours ([`neighbors`]), by netlink and in a thread of its own ([`control`]), which is asked when a stack has a
//!   packet for somebody it does not know. No packet's way leads through here.
//!
//! What routers and hosts say of our packets by ICMP comes to us too, as the program looks into what an error quotes. What
//! the kernel gets and has no use for: fragments, and errors that quote one or IPv6 extension headers.

mod control;
mod handover;
mod interface;
mod lease;
mod neighbors;
mod ports;
mod route;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use abey_nic::broker::Broker;

pub(crate) use control::Control;
pub(crate) use handover::Handover;
pub(crate) use interface::Interface;
pub(crate) use lease::{Lease, Users};
pub use neighbors::Neighbors;
pub use route::Route;

use crate::error::{BuildError, SystemError};
use crate::sleeper::Sleeper;

/// What a runtime shares with the kernel. The NIC's shards ask it for neighbours, sockets for ports.
#[derive(Debug)]
pub(crate) struct Kernel {
    ports: ports::Reservations,
    /// Who does what this process may not, where it has only claimed some of the device's queues.
    broker: Option<Arc<dyn Broker>>,
    /// Which shard has a port whose answers may arrive anywhere; where nobody knows how the NIC steers.
    pub(crate) handover: Option<Handover>,
    /// Whom the shards want to know.
    wanted: Mutex<Vec<IpAddr>>,
    sleeper: Sleeper,
    over: AtomicBool,
}

impl Kernel {
    /// `device`: the interface's name. `steers`: it is known on which queue a flow's frames arrive, or there is only one.
    pub(crate) fn new(device: &str, ports: abey_nic::Ports, steers: bool) -> Result<Self, BuildError> {
        let sleeper = Sleeper::new().map_err(SystemError::Sleep)?;
        Ok(Self {
            broker: ports.broker().cloned(),
            ports: ports::Reservations::new(device, ports),
            handover: (!steers).then(Handover::new),
            wanted: Mutex::new(Vec::new()),
            sleeper,
            over: AtomicBool::new(false),
        })
    }

    /// Asks for neighbours. Called with no shard's lock held.
    pub(crate) fn ask(&self, wanted: &[IpAddr]) {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(wanted);
        self.sleeper.wake();
    }

    fn take_wanted(&self) -> Vec<IpAddr> {
        std::mem::take(&mut *self.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// How many ports are reserved.
    pub(crate) fn reserved_ports(&self) -> usize {
        self.ports.count()
    }

    /// The runtime ends, its connections are reset: every port goes back to the kernel, whoever still has a socket.
    pub(crate) fn shut_down(&self) {
        self.over.store(true, Ordering::Release);
        self.ports.shut_down();
        self.sleeper.wake();
    }
}
