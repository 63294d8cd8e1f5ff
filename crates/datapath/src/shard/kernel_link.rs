//! A shard's connection to the kernel's control plane, for a device that is shared with the kernel (AF_XDP).

use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use abey_delivery::NapiIndex;

use super::port_owners::PortOwners;
use crate::parker::Parker;

/// What the shards of a shared device need of the [`Kernel`](crate::kernel::Kernel), which owns it.
#[derive(Debug)]
pub(crate) struct KernelLink {
    /// Which shard owns a port; `None` if the NIC's steering is known, and answers arrive in the right shard.
    pub(crate) port_owners: Option<PortOwners>,
    /// Neighbours that the shards need and the kernel has to resolve.
    neighbor_requests: Mutex<Vec<IpAddr>>,
    /// Ports whose listener in a shard has room again.
    resumed_listeners: Mutex<Vec<(u16, NapiIndex)>>,
    /// Wakes the kernel thread.
    pub(crate) parker: Parker,
}

impl KernelLink {
    pub(crate) fn new(port_owners: Option<PortOwners>) -> io::Result<Self> {
        Ok(Self {
            port_owners,
            neighbor_requests: Mutex::default(),
            resumed_listeners: Mutex::default(),
            parker: Parker::new()?,
        })
    }

    fn neighbor_requests(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.neighbor_requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the kernel thread, since something of a listener will be due for the kernel. The caller holds no shard's lock.
    pub(super) fn notify_overflow(&self) {
        self.parker.unpark();
    }

    /// Requests the resolution of neighbours. The caller holds no shard's lock.
    pub(super) fn request_neighbors(&self, addresses: &[IpAddr]) {
        self.neighbor_requests().extend_from_slice(addresses);
        self.parker.unpark();
    }

    fn resumed_listeners(&self) -> MutexGuard<'_, Vec<(u16, NapiIndex)>> {
        self.resumed_listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports ports whose listener in `shard` has room again. The caller holds no shard's lock.
    pub(super) fn report_resumed_listeners(&self, shard: NapiIndex, ports: &[u16]) {
        self.resumed_listeners().extend(ports.iter().map(|port| (*port, shard)));
        self.parker.unpark();
    }

    /// Returns and clears the reports of listeners that have room again.
    pub(crate) fn take_resumed_listeners(&self) -> Vec<(u16, NapiIndex)> {
        std::mem::take(&mut *self.resumed_listeners())
    }

    /// Returns and clears the requested neighbours.
    pub(crate) fn take_neighbor_requests(&self) -> Vec<IpAddr> {
        std::mem::take(&mut *self.neighbor_requests())
    }
}
