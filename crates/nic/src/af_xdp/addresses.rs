//! The served addresses: those for which packets are redirected, per queue.
//!
//! The stack behind a queue has some of the host's addresses. What is sent to others is not for it, although the port may be
//! the same: it is forwarded (a router, a node of a cluster), or for a socket of the kernel (a virtual address on `lo`, another
//! device, an address that was added later). The user of the program says which addresses a queue's stack has, and takes away
//! those that leave the host.

use std::io;
use std::net::IpAddr;

use aya::maps::{HashMap, MapData, MapError};

use super::filter::{self, AddressKey, Queues};
use super::program::map_error;

/// The map of served addresses.
#[derive(Debug)]
pub(super) struct Addresses(HashMap<MapData, AddressKey, Queues>);

impl Addresses {
    pub(super) fn new(map: HashMap<MapData, AddressKey, Queues>) -> Self {
        Self(map)
    }

    /// Changes the queues where an address is served.
    pub(super) fn change(&mut self, address: IpAddr, change: impl FnOnce(&mut Queues)) -> io::Result<()> {
        let key = filter::address_key(address);
        let before = match self.0.get(&key, 0) {
            Ok(queues) => queues,
            Err(MapError::KeyNotFound) => filter::NO_QUEUE,
            Err(error) => return Err(map_error(error)),
        };
        let mut queues = before;
        change(&mut queues);
        if queues == before {
            Ok(())
        } else if queues == filter::NO_QUEUE {
            self.0.remove(&key).map_err(map_error)
        } else {
            self.0.insert(key, queues, 0).map_err(map_error)
        }
    }
}
