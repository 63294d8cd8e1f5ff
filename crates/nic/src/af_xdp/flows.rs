//! The flow exceptions: connections that were handed over to the kernel.
//!
//! An entry lives as long as the kernel has a socket of the connection, in any process and in any state. A process may have
//! ended meanwhile, and others share its socket, so no handle says when that is. The owner of the program asks the kernel
//! instead, every few seconds while there are entries (`sock_diag(7)`). Until then a stale entry does no harm: the SYN of a new
//! connection removes it, and another segment gets the kernel's reset.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, MapData, MapError};

use super::filter::{self, FlowKey};
use super::program::map_error;
use crate::sock_diag::SockDiag;

/// How long an entry stays although the kernel has no socket yet: its SYN may be on the way.
const MIN_AGE: Duration = Duration::from_secs(2);

/// The exceptions: the map, and a copy of its keys.
#[derive(Debug)]
pub(super) struct Flows {
    map: HashMap<MapData, FlowKey, u32>,
    /// The peers and local addresses by local port, and when they were added.
    by_port: BTreeMap<u16, BTreeMap<(SocketAddr, SocketAddr), Instant>>,
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
        self.by_port.values().map(BTreeMap::len).sum()
    }

    pub(super) fn insert(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        self.map.insert(filter::flow_key(local, remote), 0, 0).map_err(map_error)?;
        self.by_port.entry(local.port()).or_default().insert((local, remote), Instant::now());
        Ok(())
    }

    pub(super) fn remove(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<()> {
        let Some(flows) = self.by_port.get_mut(&local.port()) else { return Ok(()) };
        if flows.remove(&(local, remote)).is_none() {
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
        let aged = self.by_port.values().flatten().filter(|(_, added)| added.elapsed() >= MIN_AGE);
        for ((local, remote), _) in aged {
            if !kernel.has_connection(*local, *remote)? {
                gone.push((*local, *remote));
            }
        }
        Ok(gone)
    }
}
