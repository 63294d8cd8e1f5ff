//! The kernel's neighbour table, by netlink (`rtnetlink(7)`).
//!
//! The kernel resolves whom its own packets go to. Ours do not pass through it, so it is told that an entry is used
//! (`NTF_USE`): that makes it ask for a neighbour it does not know, and probe one it has not heard of for a while.

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

use super::interface::libc_family;

pub(super) type Station = [u8; 6];

/// What the kernel says of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It is there.
    Station(Station),
    /// It does not answer.
    Failed,
    /// Nothing is known any more.
    Forgotten,
}

/// Asks the kernel about the neighbours of one interface.
pub struct Neighbors {
    netlink: NetlinkSocket,
    index: u32,
}

/// The neighbours of one interface, and what becomes of them.
pub(super) struct Table {
    questions: Neighbors,
    /// Subscribed to changes.
    changes: OwnedFd,
    /// Who tells the kernel that an entry is used, where this process may not.
    broker: Option<Arc<dyn Broker>>,
    buffer: Box<[u8]>,
}

/// Whether the kernel itself would send to an entry in this state (`NUD_VALID`).
fn is_valid(state: u16) -> bool {
    use NudState::{Delay, Noarp, Permanent, Probe, Reachable, Stale};
    [Delay, Noarp, Permanent, Probe, Reachable, Stale].into_iter().any(|valid| state & valid as u16 != 0)
}

/// What an entry says.
fn read(header: &Ndmsg, station: &[u8]) -> Option<News> {
    match Station::try_from(station) {
        Ok(station) if is_valid(header.ndm_state) => Some(News::Station(station)),
        _ => (header.ndm_state & NudState::Failed as u16 != 0).then_some(News::Failed),
    }
}

impl std::fmt::Debug for Neighbors {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Neighbors").field("index", &self.index).finish_non_exhaustive()
    }
}

impl Neighbors {
    /// Those of the interface with this number in the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(index: u32) -> io::Result<Self> {
        let mut this = Self { netlink: NetlinkSocket::new(), index };
        // The socket for questions is opened by the first one, which so is asked in this namespace.
        let request = rt_neigh::Request::new().op_getneigh_dump(&this.header(IpAddr::from([0; 4]), 0));
        let mut replies = this.netlink.request(&request)?;
        while replies.recv().is_some() {}
        drop(replies);
        Ok(this)
    }

    fn header(&self, address: IpAddr, flags: u8) -> Ndmsg {
        Ndmsg {
            ndm_family: libc_family(address.is_ipv4()),
            ndm_ifindex: self.index.cast_signed(),
            ndm_flags: flags,
            ..Ndmsg::default()
        }
    }

    /// Tells the kernel that `address` is used (`NTF_USE`), so that it looks for it or after it. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn say_used(&mut self, address: IpAddr) -> io::Result<()> {
        let header = self.header(address, NtfFlags::Use as u8);
        let mut request = rt_neigh::Request::new().set_create().op_newneigh_do(&header);
        request.encode().push_dst(address);
        self.netlink.request(&request)?.recv_ack().map_err(|error| in_words(&error))
    }

    /// What an entry says, and its state.
    fn look(&mut self, address: IpAddr) -> io::Result<Option<(Option<News>, u16)>> {
        let header = self.header(address, 0);
        let mut request = rt_neigh::Request::new().op_getneigh_do(&header);
        request.encode().push_dst(address);
        let mut reply = self.netlink.request(&request)?;
        match reply.recv_one() {
            Ok((header, attributes)) => {
                let news = read(&header, attributes.get_lladdr().unwrap_or_default());
                Ok(Some((news, header.ndm_state)))
            }
            Err(error) if error.as_io_error().raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(in_words(&error)),
        }
    }
}

impl Table {
    /// In the network namespace of the calling thread.
    pub(super) fn open(index: u32, broker: Option<Arc<dyn Broker>>) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let changes = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        // A burst of changes on a large network is to fit; where it does not, everybody is asked for again.
        let _ = setsockopt(&changes, sockopt::RcvBuf, &(1 << 20));
        bind(changes.as_raw_fd(), &NetlinkAddr::new(0, 1 << (libc::RTNLGRP_NEIGH - 1)))?;
        let buffer = vec![0; 32 << 10].into_boxed_slice();
        Ok(Self { questions: Neighbors::open(index)?, changes, broker, buffer })
    }

    /// Says that `address` is used, and looks what is known. `None`: the kernel is asking, and will tell.
    pub(super) fn ask(&mut self, address: IpAddr) -> io::Result<Option<News>> {
        // One that the administrator has fixed is only looked at: saying that it is used would make it an ordinary one
        // (Linux 5.16 and later).
        if let Some((news, state)) = self.questions.look(address)?
            && state & NudState::Permanent as u16 != 0
        {
            return Ok(news);
        }
        let used = match &self.broker {
            Some(broker) => broker.use_neighbor(address),
            None => self.questions.say_used(address),
        };
        let found = self.questions.look(address)?.and_then(|(news, _)| news);
        // What is known is good even if it could not be said that it is used.
        if found.is_none() {
            used?;
        }
        Ok(found)
    }

    /// What has changed since the last look. False: some changes were lost.
    pub(super) fn changes(&mut self, mut each: impl FnMut(IpAddr, News)) -> bool {
        loop {
            match recv(self.changes.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(length) => messages(&self.buffer[..length], self.questions.index, &mut each),
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => return false,
                Err(_) => return true,
            }
        }
    }
}

impl AsFd for Table {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

fn in_words(error: &netlink_socket2::ReplyError) -> io::Error {
    let number = error.as_io_error().raw_os_error();
    number.map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// The changes to neighbours in a netlink datagram (`struct nlmsghdr`: length, type, flags, sequence number, port).
fn messages(mut datagram: &[u8], index: u32, each: &mut impl FnMut(IpAddr, News)) {
    const HEADER: usize = 16;
    while let Some(header) = datagram.get(..HEADER) {
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let Some(body) = datagram.get(HEADER..length) else { return };
        let (entry, attributes) = OpGetneighDo::decode_request(body);
        if entry.ndm_ifindex == index.cast_signed()
            && let Ok(address) = attributes.get_dst()
        {
            let news = match kind {
                libc::RTM_NEWNEIGH => read(&entry, attributes.get_lladdr().unwrap_or_default()),
                libc::RTM_DELNEIGH => Some(News::Forgotten),
                _ => None,
            };
            if let Some(news) = news {
                each(address, news);
            }
        }
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message about 10.0.0.9 on interface 7.
    fn message(kind: u16, state: u16, station: Option<Station>) -> Vec<u8> {
        let mut body = vec![2, 0, 0, 0];
        body.extend(7_i32.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([0, 0]);
        for (attribute, value) in [(1_u16, Some(vec![10, 0, 0, 9])), (2, station.map(Vec::from))] {
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

    fn news(datagram: &[u8], index: u32) -> Vec<News> {
        let mut found = Vec::new();
        messages(datagram, index, &mut |address, news| {
            assert_eq!(address, IpAddr::from([10, 0, 0, 9]));
            found.push(news);
        });
        found
    }

    #[test]
    fn changes_are_read_and_what_is_cut_short_is_left() {
        let station = [2, 0, 0, 0, 0, 9];
        let datagram = [
            message(libc::RTM_NEWNEIGH, NudState::Incomplete as u16, None),
            message(libc::RTM_NEWNEIGH, NudState::Reachable as u16, Some(station)),
            message(libc::RTM_NEWNEIGH, NudState::Failed as u16, None),
            message(libc::RTM_DELNEIGH, NudState::Failed as u16, None),
        ]
        .concat();
        assert_eq!(news(&datagram, 7), [News::Station(station), News::Failed, News::Forgotten]);
        assert_eq!(news(&datagram, 8), []);
        for cut in 0..datagram.len() {
            assert!(news(&datagram[..cut], 7).len() < 3);
        }
        let mut endless = datagram;
        endless[..4].fill(0);
        assert_eq!(news(&endless, 7), []);
    }
}
