//! Who a packet is for: flows and ports, each found by one hash.
//!
//! A flow is the four-tuple of a connection. Its hash is seeded, so a peer cannot choose ports that collide. Sockets that
//! listen are found by address and port, then by port alone; a socket on `[::]` takes IPv4 too unless a socket on
//! `0.0.0.0` has the port, as dual-stack sockets do (RFC 3493, section 3.7).

use core::{
    hash::{Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};
use std::collections::HashMap;

use foldhash::quality::FixedState;
use siphasher::sip::SipHasher13;

use crate::{event::SocketId, tcp::time_wait::TimeWaitId};

/// One connection's four-tuple, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub local: IpAddr,
    pub remote: IpAddr,
    pub local_port: u16,
    pub remote_port: u16,
}

impl Flow {
    pub(crate) const fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }

    pub(crate) const fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote, self.remote_port)
    }

    /// Bytes of the IP header.
    pub(crate) const fn ip_header(&self) -> usize {
        if self.local.is_ipv4() { 20 } else { 40 }
    }
}

/// Keys for the hashes an attacker must not predict.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret([u64; 2]);

impl Secret {
    /// Derives the `index`-th secret of a stack from its seed.
    pub(crate) fn derive(seed: u64, index: u64) -> Self {
        let half = |number: u64| {
            let mut hasher = SipHasher13::new_with_keys(seed, index);
            hasher.write_u64(number);
            hasher.finish()
        };
        Self([half(0), half(1)])
    }

    /// SipHash of `value`.
    pub(crate) fn hash(&self, value: impl Hash) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        value.hash(&mut hasher);
        hasher.finish()
    }
}

/// What a flow leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Connection(SocketId),
    TimeWait(TimeWaitId),
}

/// A flow of IPv4 in 12 bytes: with ten thousand connections every byte of the table competes for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ShortFlow {
    local: u32,
    remote: u32,
    ports: u32,
}

impl ShortFlow {
    fn of(flow: &Flow) -> Option<Self> {
        let (IpAddr::V4(local), IpAddr::V4(remote)) = (flow.local, flow.remote) else { return None };
        let ports = u32::from(flow.local_port) << 16 | u32::from(flow.remote_port);
        Some(Self { local: local.to_bits(), remote: remote.to_bits(), ports })
    }
}

/// Connections by flow.
#[derive(Debug)]
pub(crate) struct FlowTable {
    short: HashMap<ShortFlow, Target, FixedState>,
    long: HashMap<Flow, Target, FixedState>,
}

impl FlowTable {
    pub(crate) fn new(seed: u64) -> Self {
        let state = || FixedState::with_seed(seed);
        Self { short: HashMap::with_hasher(state()), long: HashMap::with_hasher(state()) }
    }

    pub(crate) fn find(&self, flow: &Flow) -> Option<Target> {
        match ShortFlow::of(flow) {
            Some(short) => self.short.get(&short),
            None => self.long.get(flow),
        }
        .copied()
    }

    pub(crate) fn insert(&mut self, flow: Flow, target: Target) {
        match ShortFlow::of(&flow) {
            Some(short) => self.short.insert(short, target),
            None => self.long.insert(flow, target),
        };
    }

    /// Forgets `flow` if it still leads to `target`.
    pub(crate) fn remove(&mut self, flow: &Flow, target: Target) {
        if self.find(flow) == Some(target) {
            match ShortFlow::of(flow) {
                Some(short) => self.short.remove(&short),
                None => self.long.remove(flow),
            };
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.short.len() + self.long.len()
    }

    /// The own port of every flow.
    pub(crate) fn local_ports(&self) -> impl Iterator<Item = u16> {
        let short = self.short.keys().map(|flow| (flow.ports >> 16) as u16);
        short.chain(self.long.keys().map(|flow| flow.local_port))
    }
}

/// Sockets that wait for anyone, by local address and port.
#[derive(Debug, Default)]
pub(crate) struct PortTable {
    bound: HashMap<(IpAddr, u16), SocketId, FixedState>,
}

impl PortTable {
    /// The socket that packets to `address` and `port` are for.
    pub(crate) fn find(&self, address: IpAddr, port: u16) -> Option<SocketId> {
        let any_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let any = if address.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { any_v6 };
        [address, any, any_v6].into_iter().find_map(|address| self.bound.get(&(address, port)).copied())
    }

    /// Whether exactly this address and port is taken.
    pub(crate) fn is_taken(&self, at: SocketAddr) -> bool {
        self.bound.contains_key(&(at.ip(), at.port()))
    }

    pub(crate) fn insert(&mut self, at: SocketAddr, socket: SocketId) {
        self.bound.insert((at.ip(), at.port()), socket);
    }

    pub(crate) fn remove(&mut self, at: SocketAddr) {
        self.bound.remove(&(at.ip(), at.port()));
    }

    /// Forgets an address if it is still that socket's.
    pub(crate) fn remove_if(&mut self, at: SocketAddr, socket: SocketId) {
        if self.bound.get(&(at.ip(), at.port())) == Some(&socket) {
            self.remove(at);
        }
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

    #[test]
    fn secrets_of_one_seed_differ_and_repeat() {
        assert_ne!(Secret::derive(1, 0).hash(7), Secret::derive(1, 1).hash(7));
        assert_eq!(Secret::derive(1, 0).hash(7), Secret::derive(1, 0).hash(7));
    }
}
