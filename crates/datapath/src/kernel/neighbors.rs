//! The kernel's neighbour table, by netlink (`rtnetlink(7)`).
//!
//! The kernel resolves the neighbours of its own packets. The runtime's packets do not pass through it, so the runtime marks
//! an entry as used (`NTF_USE`). That makes the kernel resolve an unknown neighbour, and probe a stale one.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use abey_nic::broker::Broker;

use netlink_bindings::rt_neigh::{self, Ndmsg, NtfFlags, NudState, OpGetneighDo};
use netlink_socket2::NetlinkSocket;
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, setsockopt, socket, sockopt,
};

use super::interface::address_family;

/// An Ethernet address.
pub(super) type MacAddr = [u8; 6];

/// A change of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighborUpdate {
    /// The neighbour has this Ethernet address.
    Resolved(MacAddr),
    /// The neighbour does not answer.
    Failed,
    /// The kernel has removed the entry.
    Removed,
}

/// A connection to the kernel's neighbour table, for one interface.
pub struct Neighbors {
    netlink: NetlinkSocket,
    index: u32,
}

/// The neighbours of one interface, and a subscription to their changes.
pub(super) struct NeighborTable {
    neighbors: Neighbors,
    /// A netlink socket that receives changes.
    changes: OwnedFd,
    /// Marks entries as used for a process that may not.
    broker: Option<Arc<dyn Broker>>,
    buffer: Box<[u8]>,
}

/// Returns whether the kernel itself would send to an entry in this state (`NUD_VALID`).
fn is_valid(state: u16) -> bool {
    use NudState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    [Delay, Noarp, Permanent, Probe, Reachable, Stale].into_iter().any(|valid| state & valid as u16 != 0)
}

/// Returns the state of an entry; `None` while the kernel resolves it.
fn read(header: &Ndmsg, mac: &[u8]) -> Option<NeighborUpdate> {
    match MacAddr::try_from(mac) {
        Ok(mac) if is_valid(header.ndm_state) => Some(NeighborUpdate::Resolved(mac)),
        _ => (header.ndm_state & NudState::Failed as u16 != 0).then_some(NeighborUpdate::Failed),
    }
}

impl std::fmt::Debug for Neighbors {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Neighbors").field("index", &self.index).finish_non_exhaustive()
    }
}

impl Neighbors {
    /// Opens the table of the interface with this index, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn open(index: u32) -> io::Result<Self> {
        let mut this = Self { netlink: NetlinkSocket::new(), index };
        // The first request opens the socket, so it must be made in this namespace.
        let request = rt_neigh::Request::new().op_getneigh_dump(&this.header(IpAddr::from([0; 4]), 0));
        let mut replies = this.netlink.request(&request)?;
        while replies.recv().is_some() {}
        drop(replies);
        Ok(this)
    }

    fn header(&self, address: IpAddr, flags: u8) -> Ndmsg {
        Ndmsg {
            ndm_family: address_family(address.is_ipv4()),
            ndm_ifindex: self.index.cast_signed(),
            ndm_flags: flags,
            ..Ndmsg::default()
        }
    }

    /// Marks `address` as used (`NTF_USE`), so that the kernel resolves or probes it. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn mark_used(&mut self, address: IpAddr) -> io::Result<()> {
        let header = self.header(address, NtfFlags::Use as u8);
        let mut request = rt_neigh::Request::new().set_create().op_newneigh_do(&header);
        request.encode().push_dst(address);
        self.netlink.request(&request)?.recv_ack().map_err(|error| io_error(&error))
    }

    /// Returns an entry and its state (`NUD_*`), if there is one.
    fn get(&mut self, address: IpAddr) -> io::Result<Option<(Option<NeighborUpdate>, u16)>> {
        let header = self.header(address, 0);
        let mut request = rt_neigh::Request::new().op_getneigh_do(&header);
        request.encode().push_dst(address);
        let mut reply = self.netlink.request(&request)?;
        match reply.recv_one() {
            Ok((header, attributes)) => {
                let entry = read(&header, attributes.get_lladdr().unwrap_or_default());
                Ok(Some((entry, header.ndm_state)))
            }
            Err(error) if error.as_io_error().raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(io_error(&error)),
        }
    }
}

impl NeighborTable {
    /// Opens the table of the interface with this index, in the network namespace of the calling thread.
    pub(super) fn open(index: u32, broker: Option<Arc<dyn Broker>>) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let changes = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        // A burst of changes on a large network should fit. If it does not, all neighbours are requested again.
        let _ = setsockopt(&changes, sockopt::RcvBuf, &(1 << 20));
        bind(changes.as_raw_fd(), &NetlinkAddr::new(0, 1 << (libc::RTNLGRP_NEIGH - 1)))?;
        let buffer = vec![0; 32 << 10].into_boxed_slice();
        Ok(Self { neighbors: Neighbors::open(index)?, changes, broker, buffer })
    }

    /// Marks `address` as used, and returns its entry; `None` while the kernel resolves it, which a change will report.
    pub(super) fn request(&mut self, address: IpAddr) -> io::Result<Option<NeighborUpdate>> {
        // A permanent entry is only read: marking it as used would make it a dynamic one (Linux 5.16 and later).
        if let Some((entry, state)) = self.neighbors.get(address)?
            && state & NudState::Permanent as u16 != 0
        {
            return Ok(entry);
        }
        let used = match &self.broker {
            Some(broker) => broker.use_neighbor(address),
            None => self.neighbors.mark_used(address),
        };
        let found = self.neighbors.get(address)?.and_then(|(entry, _)| entry);
        // A resolved entry is valid even if marking it failed.
        if found.is_none() {
            used?;
        }
        Ok(found)
    }

    /// Calls `each` for every change since the last call. Returns `false` if changes were lost.
    pub(super) fn changes(&mut self, mut each: impl FnMut(IpAddr, NeighborUpdate)) -> bool {
        loop {
            match recv(self.changes.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(length) => parse_changes(&self.buffer[..length], self.neighbors.index, &mut each),
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => return false,
                Err(_) => return true,
            }
        }
    }
}

impl AsFd for NeighborTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

fn io_error(error: &netlink_socket2::ReplyError) -> io::Error {
    let number = error.as_io_error().raw_os_error();
    number.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// Calls `each` for every change in a netlink datagram (`struct nlmsghdr`: length, type, flags, sequence number, port).
fn parse_changes(mut datagram: &[u8], index: u32, each: &mut impl FnMut(IpAddr, NeighborUpdate)) {
    const HEADER: usize = 16;
    while let Some(header) = datagram.get(..HEADER) {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let Some(body) = datagram.get(HEADER..length) else { return };
        let (entry, attributes) = OpGetneighDo::decode_request(body);
        if entry.ndm_ifindex == index.cast_signed()
            && let Ok(address) = attributes.get_dst()
        {
            let update = match kind {
                libc::RTM_NEWNEIGH => read(&entry, attributes.get_lladdr().unwrap_or_default()),
                libc::RTM_DELNEIGH => Some(NeighborUpdate::Removed),
                _ => None,
            };
            if let Some(update) = update {
                each(address, update);
            }
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a message about 10.0.0.9 on interface 7.
    fn message(kind: u16, state: u16, mac: Option<MacAddr>) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        body.extend(7_i32.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([0, 0]);
        for (attribute, value) in [(1_u16, Some(vec![10, 0, 0, 9])), (2, mac.map(Vec::from))] {
            let Some(value) = value else { continue };
            body.extend((4 + value.len() as u16).to_ne_bytes());
            body.extend(attribute.to_ne_bytes());
            body.extend(&value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut message = (16 + body.len() as u32).to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message
    }

    fn updates(datagram: &[u8], index: u32) -> Vec<NeighborUpdate> {
        let mut found = Vec::new();
        parse_changes(datagram, index, &mut |address, update| {
            assert_eq!(address, IpAddr::from([10, 0, 0, 9]));
            found.push(update);
        });
        found
    }

    #[test]
    fn changes_are_parsed_and_truncated_messages_are_ignored() {
        let mac = [2, 0, 0, 0, 0, 9];
        let datagram = [
            message(libc::RTM_NEWNEIGH, NudState::Incomplete as u16, None),
            message(libc::RTM_NEWNEIGH, NudState::Reachable as u16, Some(mac)),
            message(libc::RTM_NEWNEIGH, NudState::Failed as u16, None),
            message(libc::RTM_DELNEIGH, NudState::Failed as u16, None),
        ]
        .concat();
        use NeighborUpdate::{Failed, Removed, Resolved};
        assert_eq!(updates(&datagram, 7), [Resolved(mac), Failed, Removed]);
        assert_eq!(updates(&datagram, 8), []);
        for cut in 0..datagram.len() {
            assert!(updates(&datagram[..cut], 7).len() < 3);
        }
        let mut endless = datagram;
        endless[..4].fill(0);
        assert_eq!(updates(&endless, 7), []);
    }
}
