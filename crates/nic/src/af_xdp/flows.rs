//! The flow exceptions: connections that were handed over to the kernel.
//!
//! An entry lives as long as the kernel has a socket of the connection, in any process and in any state. A process may have
//! ended meanwhile, and others share its socket, so no handle says when that is. The owner of the program asks the kernel
//! instead, every few seconds while there are entries (`sock_diag(7)`). Until then a stale entry does no harm: the SYN of a new
//! connection removes it, and another segment gets the kernel's reset.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use aya::maps::{HashMap, MapData, MapError};

use super::filter::{self, FlowKey};
use super::program::map_error;
use crate::sock_diag::SockDiag;

/// The exceptions: the map, and a copy of its keys.
#[derive(Debug)]
pub(super) struct Flows {
    map: HashMap<MapData, FlowKey, u32>,
    /// The peers and local addresses by local port.
    by_port: BTreeMap<u16, BTreeSet<(SocketAddr, SocketAddr)>>,
}

impl Flows {
    pub(super) fn new(map: HashMap<MapData, FlowKey, u32>) -> Self {
        Self { map, by_port: BTreeMap::new() }
    }

    /// Returns whether a connection at this local port has an exception.
    pub(super) fn has_port(&self, port: u16) -> bool {
        self.by_port.contains_key(&port)
    }

    pub(super) fn len(&self) -> usize {
        self.by_port.values().map(BTreeSet::len).sum()
    }

    pub(super) fn insert(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        self.map.insert(filter::flow_key(local, remote), 0, 0).map_err(map_error)?;
        self.by_port.entry(local.port()).or_default().insert((local, remote));
        Ok(())
    }

    pub(super) fn remove(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        let Some(flows) = self.by_port.get_mut(&local.port()) else { return Ok(()) };
        if !flows.remove(&(local, remote)) {
            return Ok(());
        }
        if flows.is_empty() {
            self.by_port.remove(&local.port());
        }
        match self.map.remove(&filter::flow_key(local, remote)) {
            // A SYN has removed it.
            Err(MapError::KeyNotFound) => Ok(()),
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map_err(map_error),
        }
    }

    /// Returns the connections of which the kernel has no socket any more.
    pub(super) fn gone(&self) -> io::Result<Vec<(SocketAddr, SocketAddr)>> {
        if self.by_port.is_empty() {
            return Ok(Vec::new());
        }
        let mut kernel = SockDiag::open()?;
        let mut gone = Vec::new();
        for (local, remote) in self.by_port.values().flatten() {
            if !kernel.has_connection(*local, *remote)? {
                gone.push((*local, *remote));
            }
        }
        Ok(gone)
    }
}
