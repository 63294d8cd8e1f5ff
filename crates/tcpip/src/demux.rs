//! Tables from packets to sockets: flows and ports, each found with one hash.
//!
//! The hash of a flow is seeded, so that a peer cannot choose ports that collide. Listening and bound sockets are found
//! by address and port, then by port alone. A socket on `[::]` also receives IPv4 unless a socket on `0.0.0.0` has the
//! port, as dual-stack sockets do (RFC 3493, section 3.7).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::HashMap;

use foldhash::quality::FixedState;

use crate::{event::SocketId, flow::Flow, tcp::time_wait::TimeWaitId, time::Instant};

/// Owner of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Connection(SocketId),
    TimeWait(TimeWaitId),
    /// Moved to another owner, until this time; see [`export`](crate::stack::export).
    Moved(Instant),
}

/// IPv4 flow in 12 bytes. With ten thousand connections every byte of the table competes for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowV4 {
    local: u32,
    remote: u32,
    ports: u32,
}

impl FlowV4 {
    fn of(flow: &Flow) -> Option<Self> {
        let (IpAddr::V4(local), IpAddr::V4(remote)) = (flow.local, flow.remote) else { return None };
        let ports = u32::from(flow.local_port) << 16 | u32::from(flow.remote_port);
        Some(Self { local: local.to_bits(), remote: remote.to_bits(), ports })
    }
}

/// Connections, and entries in TIME-WAIT, by flow.
#[derive(Debug)]
pub(crate) struct FlowTable {
    v4: HashMap<FlowV4, Target, FixedState>,
    other: HashMap<Flow, Target, FixedState>,
}

impl FlowTable {
    pub(crate) fn new(seed: u64) -> Self {
        let state = || FixedState::with_seed(seed);
        Self { v4: HashMap::with_hasher(state()), other: HashMap::with_hasher(state()) }
    }

    pub(crate) fn find(&self, flow: &Flow) -> Option<Target> {
        match FlowV4::of(flow) {
            Some(v4) => self.v4.get(&v4),
            None => self.other.get(flow),
        }
        .copied()
    }

    pub(crate) fn insert(&mut self, flow: Flow, target: Target) {
        match FlowV4::of(&flow) {
            Some(v4) => self.v4.insert(v4, target),
            None => self.other.insert(flow, target),
        };
    }

    /// Removes `flow` if it still belongs to `target`.
    pub(crate) fn remove(&mut self, flow: &Flow, target: Target) {
        if self.find(flow) == Some(target) {
            match FlowV4::of(flow) {
                Some(v4) => self.v4.remove(&v4),
                None => self.other.remove(flow),
            };
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.v4.len() + self.other.len()
    }

    /// Returns the local port of every flow that is not moved.
    pub(crate) fn local_ports(&self) -> impl Iterator<Item = u16> {
        let is_here = |target: &Target| !matches!(target, Target::Moved(_));
        let v4 = self.v4.iter().filter(move |(_, target)| is_here(target)).map(|(flow, _)| (flow.ports >> 16) as u16);
        v4.chain(self.other.iter().filter(move |(_, target)| is_here(target)).map(|(flow, _)| flow.local_port))
    }
}

/// Sockets without a fixed peer, by local address and port.
#[derive(Debug, Default)]
pub(crate) struct PortTable {
    bound: HashMap<(IpAddr, u16), SocketId, FixedState>,
}

/// Returns the local addresses of the sockets that receive packets for `address`, the most specific first.
pub(crate) fn local_addresses(address: IpAddr) -> [IpAddr; 3] {
    let any_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let any = if address.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { any_v6 };
    [address, any, any_v6]
}

impl PortTable {
    /// Returns the socket that receives packets for `address` and `port`.
    pub(crate) fn find(&self, address: IpAddr, port: u16) -> Option<SocketId> {
        local_addresses(address).into_iter().find_map(|address| self.bound.get(&(address, port)).copied())
    }

    /// Returns whether a socket has exactly this address and port.
    pub(crate) fn is_taken(&self, at: SocketAddr) -> bool {
        self.bound.contains_key(&(at.ip(), at.port()))
    }

    pub(crate) fn insert(&mut self, at: SocketAddr, socket: SocketId) {
        self.bound.insert((at.ip(), at.port()), socket);
    }

    pub(crate) fn remove(&mut self, at: SocketAddr) {
        self.bound.remove(&(at.ip(), at.port()));
    }
}

#[cfg(test)]
mod tests {
    use slotmap::SlotMap;

    use super::*;

    #[test]
    fn the_most_specific_socket_gets_the_packet() {
        let mut names: SlotMap<SocketId, ()> = SlotMap::with_key();
        let (exact, v4, v6) = (names.insert(()), names.insert(()), names.insert(()));
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut ports = PortTable::default();
        ports.insert("[::]:80".parse().unwrap(), v6);
        assert_eq!(ports.find(ip("10.0.0.1"), 80), Some(v6));
        ports.insert("0.0.0.0:80".parse().unwrap(), v4);
        assert_eq!(ports.find(ip("10.0.0.1"), 80), Some(v4));
        ports.insert("10.0.0.1:80".parse().unwrap(), exact);
        assert_eq!(ports.find(ip("10.0.0.1"), 80), Some(exact));
        assert_eq!(ports.find(ip("10.0.0.2"), 80), Some(v4));
        assert_eq!(ports.find(ip("fd00::1"), 80), Some(v6));
        assert_eq!(ports.find(ip("fd00::1"), 81), None);
    }
}
