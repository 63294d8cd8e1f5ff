//! The held flows: connections that are being handed over to the kernel.
//!
//! The kernel finds the socket of such a connection before the socket may receive: until its queues are filled, a segment
//! would be taken for the beginning of them. An entry begins before the socket becomes one of the connection, and ends when it
//! is complete, or after the attempt was undone. From then on the program finds the socket in the kernel's own tables.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use aya::maps::{HashMap, MapData, MapError};

use super::filter::{self, FlowKey};
use super::program::map_error;

/// The held flows: the map, and their number by local port.
#[derive(Debug)]
pub(super) struct HeldFlows {
    map: HashMap<MapData, FlowKey, u32>,
    by_port: BTreeMap<u16, usize>,
}

impl HeldFlows {
    pub(super) fn new(map: HashMap<MapData, FlowKey, u32>) -> Self {
        Self { map, by_port: BTreeMap::new() }
    }

    /// Returns whether a flow with this local port is held.
    pub(super) fn has_port(&self, port: u16) -> bool {
        self.by_port.contains_key(&port)
    }

    /// Adds an entry, if there is none.
    pub(super) fn insert(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        let key = filter::flow_key(local, remote);
        if self.map.get(&key, 0).is_err() {
            self.map.insert(key, 0, 0).map_err(map_error)?;
            *self.by_port.entry(local.port()).or_default() += 1;
        }
        Ok(())
    }

    /// Removes an entry, if there is one.
    pub(super) fn remove(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        match self.map.remove(&filter::flow_key(local, remote)) {
            Ok(()) => {}
            Err(MapError::KeyNotFound) => return Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            Err(error) => return Err(map_error(error)),
        }
        if let Some(count) = self.by_port.get_mut(&local.port()) {
            *count -= 1;
            if *count == 0 {
                self.by_port.remove(&local.port());
            }
        }
        Ok(())
    }
}
