//! UDP sockets by the datagrams that they receive: bound ones by local address and port, connected ones by flow.
//!
//! # Sockets that share an address
//!
//! As in Linux (`socket(7)`), several sockets may be bound to one address if each of them has SO_REUSEADDR, or each has
//! SO_REUSEPORT. The socket that was bound last decides. If it has SO_REUSEPORT, the flow's hash chooses one of those that
//! have it, so that the datagrams of one peer go to one socket while the group stays the same. Otherwise it receives all
//! datagrams, and the earlier sockets none until it is closed.
//!
//! The hash is seeded: a peer cannot choose the member of the group that it reaches. It is independent of the NIC's hash, so
//! the flows of one queue are spread over the whole group.

use core::hash::BuildHasher;
use core::net::{IpAddr, SocketAddr};
use std::collections::HashMap;

use foldhash::quality::FixedState;

use crate::{demux::local_addresses, event::SocketId, flow::Flow, udp::UdpSocket};

/// With which other sockets a UDP socket shares its address. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// With sockets that have this too; the one that was bound last receives (SO_REUSEADDR).
    pub reuse_address: bool,
    /// With sockets that have this too; the flow's hash decides which one receives (SO_REUSEPORT).
    pub reuse_port: bool,
    /// Leaves IPv4 to other sockets of the port, if it is bound to `[::]` (IPV6_V6ONLY).
    pub v6_only: bool,
}

impl Sharing {
    /// Returns whether sockets with these settings may be bound to one address.
    fn allows(self, other: Self) -> bool {
        self.reuse_address && other.reuse_address || self.reuse_port && other.reuse_port
    }
}

/// A socket that is bound to an address.
#[derive(Clone, Copy, Debug)]
struct Member {
    socket: SocketId,
    sharing: Sharing,
}

/// UDP sockets: bound ones by local address and port, connected ones by flow.
#[derive(Debug)]
pub(crate) struct DatagramTable {
    /// The sockets of each address, in the order in which they were bound. No list is empty.
    bound: HashMap<(IpAddr, u16), Vec<Member>, FixedState>,
    connected: HashMap<Flow, SocketId, FixedState>,
}

impl DatagramTable {
    pub(crate) fn new(seed: u64) -> Self {
        Self { bound: HashMap::default(), connected: HashMap::with_hasher(FixedState::with_seed(seed)) }
    }

    /// Returns the socket that receives `flow`: one connected to that peer, else one bound to the local address.
    pub(crate) fn find(&self, flow: &Flow) -> Option<SocketId> {
        let connected = if self.connected.is_empty() { None } else { self.connected.get(flow).copied() };
        connected.or_else(|| {
            let mut addresses = local_addresses(flow.local).into_iter();
            addresses.find_map(|address| self.choose(self.bound.get(&(address, flow.local_port))?, flow))
        })
    }

    /// Returns the member of a group that receives `flow`.
    fn choose(&self, members: &[Member], flow: &Flow) -> Option<SocketId> {
        let eligible = || members.iter().filter(|member| !member.sharing.v6_only || flow.local.is_ipv6());
        let last = eligible().next_back()?;
        if members.len() == 1 || !last.sharing.reuse_port {
            return Some(last.socket);
        }
        let group = || eligible().filter(|member| member.sharing.reuse_port);
        // The high half of the product is uniform in 0..count.
        let hash = self.connected.hasher().hash_one(flow);
        let chosen = ((u128::from(hash) * group().count() as u128) >> 64) as usize;
        group().nth(chosen).map(|member| member.socket)
    }

    /// Returns whether a socket is bound to exactly this address.
    pub(crate) fn is_bound(&self, at: SocketAddr) -> bool {
        self.bound.contains_key(&(at.ip(), at.port()))
    }

    /// Returns whether a socket may be bound to this address beside those that are.
    pub(crate) fn may_bind(&self, at: SocketAddr, sharing: Sharing) -> bool {
        let members = self.bound.get(&(at.ip(), at.port()));
        members.is_none_or(|members| members.iter().all(|member| member.sharing.allows(sharing)))
    }

    /// Returns whether a socket is bound to exactly this address, or connected from this port.
    pub(crate) fn is_used(&self, at: SocketAddr) -> bool {
        self.is_bound(at) || self.connected.keys().any(|flow| flow.local_port == at.port())
    }

    /// Returns the socket that is connected with `flow`.
    pub(crate) fn connected(&self, flow: &Flow) -> Option<SocketId> {
        self.connected.get(flow).copied()
    }

    pub(crate) fn bind(&mut self, at: SocketAddr, socket: SocketId, sharing: Sharing) {
        self.bound.entry((at.ip(), at.port())).or_default().push(Member { socket, sharing });
    }

    pub(crate) fn connect(&mut self, flow: Flow, id: SocketId) {
        self.connected.insert(flow, id);
    }

    /// Removes socket `id`, which then receives nothing.
    pub(crate) fn remove(&mut self, socket: &UdpSocket, id: SocketId) {
        let key = (socket.bound.ip(), socket.bound.port());
        if let Some(members) = self.bound.get_mut(&key) {
            members.retain(|member| member.socket != id);
            if members.is_empty() {
                self.bound.remove(&key);
            }
        }
        if let Some(peer) = socket.peer {
            let (local, remote) = (socket.local, peer.ip());
            let flow = Flow { local: local.ip(), remote, local_port: local.port(), remote_port: peer.port() };
            if self.connected(&flow) == Some(id) {
                self.connected.remove(&flow);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use slotmap::SlotMap;

    use super::*;

    const NONE: Sharing = Sharing { reuse_address: false, reuse_port: false, v6_only: false };
    const ADDRESS: Sharing = Sharing { reuse_address: true, reuse_port: false, v6_only: false };
    const PORT: Sharing = Sharing { reuse_address: false, reuse_port: true, v6_only: false };
    const BOTH: Sharing = Sharing { reuse_address: true, reuse_port: true, v6_only: false };

    fn at() -> SocketAddr {
        "0.0.0.0:53".parse().unwrap()
    }

    fn flow(remote_port: u16) -> Flow {
        let (local, remote) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        Flow { local, remote, local_port: 53, remote_port }
    }

    fn table(members: &[Sharing]) -> (DatagramTable, Vec<SocketId>) {
        let (mut names, mut table) = (SlotMap::<SocketId, ()>::with_key(), DatagramTable::new(1));
        let ids: Vec<_> = members.iter().map(|_| names.insert(())).collect();
        members.iter().zip(&ids).for_each(|(sharing, id)| table.bind(at(), *id, *sharing));
        (table, ids)
    }

    /// Returns how many of 1,000 flows each socket receives.
    fn spread(table: &DatagramTable, ids: &[SocketId]) -> Vec<usize> {
        let found: Vec<_> = (0..1000).filter_map(|port| table.find(&flow(port))).collect();
        assert_eq!(found.len(), 1000);
        ids.iter().map(|id| found.iter().filter(|one| *one == id).count()).collect()
    }

    #[test]
    fn an_address_is_shared_only_by_sockets_that_all_allow_it() {
        for (before, allowed) in [
            (&[][..], [true, true, true, true]),
            (&[NONE], [false, false, false, false]),
            (&[ADDRESS], [false, true, false, true]),
            (&[PORT], [false, false, true, true]),
            (&[BOTH, BOTH], [false, true, true, true]),
            (&[BOTH, PORT], [false, false, true, true]),
        ] {
            let (table, _) = table(before);
            assert_eq!([NONE, ADDRESS, PORT, BOTH].map(|new| table.may_bind(at(), new)), allowed, "{before:?}");
        }
    }

    #[test]
    fn a_group_shares_the_flows_and_another_socket_bound_last_takes_all() {
        let (mut group, ids) = table(&[PORT, PORT, BOTH, PORT]);
        let before = spread(&group, &ids);
        assert!(before.iter().all(|count| (150..350).contains(count)), "{before:?}");
        // A flow keeps its member.
        assert!((0..100).all(|port| group.find(&flow(port)) == group.find(&flow(port))));
        group.remove(&UdpSocket::new(at(), NONE, 1000), ids[1]);
        let after = spread(&group, &ids);
        assert!(after[1] == 0 && [0, 2, 3].into_iter().all(|one| after[one] > 200), "{after:?}");

        let (mut both, ids) = table(&[BOTH, BOTH, ADDRESS]);
        assert_eq!(spread(&both, &ids), [0, 0, 1000]);
        both.remove(&UdpSocket::new(at(), NONE, 1000), ids[2]);
        let after = spread(&both, &ids);
        assert!(after[0] > 350 && after[1] > 350, "{after:?}");
        assert_eq!(spread(&table(&[ADDRESS, ADDRESS]).0, &ids)[..2], [0, 1000]);
    }

    #[test]
    fn with_ipv6_only_the_wildcard_receives_no_ipv4() {
        let mut names: SlotMap<SocketId, ()> = SlotMap::with_key();
        let (v6, dual) = (names.insert(()), names.insert(()));
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let flow = |local, remote| Flow { local: ip(local), remote: ip(remote), local_port: 53, remote_port: 9 };
        let (over_v4, over_v6) = (flow("10.0.0.1", "10.0.0.2"), flow("fd00::1", "fd00::2"));
        let mut table = DatagramTable::new(1);
        let any = "[::]:53".parse().unwrap();
        table.bind(any, v6, Sharing { v6_only: true, ..ADDRESS });
        assert_eq!((table.find(&over_v4), table.find(&over_v6)), (None, Some(v6)));
        table.bind(any, dual, ADDRESS);
        assert_eq!((table.find(&over_v4), table.find(&over_v6)), (Some(dual), Some(dual)));
    }
}
