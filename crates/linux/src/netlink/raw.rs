//! A netlink socket that reads whole datagrams of any size: for notifications, and for answers larger than the buffer of
//! the bindings' socket (8 KiB, less than the RSS table of a large NIC).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use netlink_bindings::nlctrl;
use netlink_bindings::traits::{NetlinkRequest, Protocol};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

use super::{Netlink, NetlinkError};
use crate::netns::NetNs;

/// The numbers that this kernel gave a generic netlink family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    /// The message type of its messages.
    pub(crate) id: u16,
    /// Its multicast groups.
    pub(crate) groups: Vec<(String, u32)>,
}

impl Family {
    pub(crate) fn find(netlink: &mut Netlink, name: &'static str) -> Result<Self, NetlinkError> {
        let action = format!("find the `{name}` netlink interface");
        let mut request = nlctrl::Request::new().op_getfamily_do();
        request.encode().push_family_name_bytes(name.as_bytes());
        let found = netlink.dump(&action, &request, |attrs| {
            let groups = attrs.get_mcast_groups().into_iter().flatten();
            let group = |group: nlctrl::IterableMcastGroupAttrs<'_>| {
                Some((group.get_name().ok()?.to_string_lossy().into_owned(), group.get_id().ok()?))
            };
            Some(Self { id: attrs.get_family_id().ok()?, groups: groups.filter_map(group).collect() })
        });
        match found {
            Ok(mut found) => found.pop().ok_or(NetlinkError::Missing { action, family: name }),
            Err(NetlinkError::Refused { errno: Some(libc::ENOENT), .. }) => {
                Err(NetlinkError::Missing { action, family: name })
            }
            Err(error) => Err(error),
        }
    }
}

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct RawSocket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    /// `nlmsg_type`: a generic family, a route message, or one of the control messages.
    pub(crate) kind: u16,
    /// The bytes after the header.
    pub(crate) payload: &'a [u8],
}

/// Sizes and numbers of `linux/netlink.h`.
mod abi {
    pub(super) const HEADER: usize = 16;
    pub(super) const ERROR: u16 = 2;
    pub(super) const DONE: u16 = 3;
    /// The most bytes that the kernel puts into one answer to a dump.
    pub(super) const LONGEST: usize = 32 * 1024;
}

impl RawSocket {
    /// Returns the cookie of the socket's network namespace (`SO_NETNS_COOKIE`); `None` before Linux 5.14.
    pub(crate) fn namespace_cookie(&self) -> Option<u64> {
        let (mut cookie, mut size) = (0_u64, size_of::<u64>() as libc::socklen_t);
        let (value, length) = ((&raw mut cookie).cast(), &raw mut size);
        // SAFETY: both pointers are valid for the call, and `size` is the size of the value.
        let got =
            unsafe { libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, value, length) };
        (got == 0).then_some(cookie)
    }

    /// Opens a socket in a namespace. `None` is protocol 0, which is rtnetlink.
    pub(crate) fn open(netns: &NetNs, protocol: Option<rustix::net::Protocol>) -> Result<Self, NetlinkError> {
        let open = || {
            let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
            bind(&fd, &SocketAddrNetlink::new(0, 0))?;
            Ok(fd)
        };
        let fd = netns.run(open)?.map_err(|errno: rustix::io::Errno| refused("open a netlink socket", errno.into()))?;
        Ok(Self { fd, buffer: vec![0; abi::LONGEST] })
    }

    /// Subscribes to a multicast group.
    pub(crate) fn join(&self, group: u32) -> Result<(), NetlinkError> {
        let length = size_of::<u32>() as libc::socklen_t;
        // SAFETY: the kernel reads `length` bytes of `group`, which is valid for the call.
        let status = unsafe {
            let (level, option) = (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP);
            libc::setsockopt(self.fd.as_raw_fd(), level, option, (&raw const group).cast(), length)
        };
        match status {
            0 => Ok(()),
            _ => Err(refused("subscribe to the kernel's notifications", io::Error::last_os_error())),
        }
    }

    /// Receives the messages of the next datagram; `None` if there is none. `ENOBUFS` means that some were lost.
    pub(crate) fn receive(&mut self, flags: RecvFlags) -> io::Result<Option<Messages<'_>>> {
        let length = loop {
            match recv(&self.fd, &mut self.buffer[..], flags) {
                Ok((_, length)) => break length,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        };
        // A longer one was truncated.
        if length > self.buffer.len() {
            return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
        }
        Ok(Some(Messages { rest: &self.buffer[..length] }))
    }

    /// Sends a dump request of a generic family and passes every answer to `read`.
    pub(crate) fn dump<R: NetlinkRequest>(
        &mut self,
        family: &Family,
        request: &R,
        mut read: impl FnMut(R::ReplyType<'_>),
    ) -> io::Result<()> {
        debug_assert!(matches!(request.protocol(), Protocol::Generic(_)));
        let flags = request.flags() | (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
        let payload = request.payload();
        let mut message = Vec::with_capacity(abi::HEADER + payload.len());
        message.extend_from_slice(&((abi::HEADER + payload.len()) as u32).to_ne_bytes());
        message.extend_from_slice(&family.id.to_ne_bytes());
        message.extend_from_slice(&flags.to_ne_bytes());
        // Sequence number and port are 0: the socket has one request at a time, and the kernel fills in the port.
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(payload);
        send(&self.fd, &message, SendFlags::empty())?;
        loop {
            let messages = self.receive(RecvFlags::TRUNC)?.into_iter().flatten();
            for Message { kind, payload } in messages {
                match kind {
                    abi::DONE | abi::ERROR => return outcome(payload),
                    _ => read(R::decode_reply(payload)),
                }
            }
        }
    }
}

/// Returns how a dump ended: both closing messages begin with 0 or a negative error number.
fn outcome(payload: &[u8]) -> io::Result<()> {
    let code = payload.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) }
}

fn refused(action: &str, error: io::Error) -> NetlinkError {
    NetlinkError::Refused { action: action.to_owned(), errno: error.raw_os_error(), reason: error.to_string() }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The messages of one datagram, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    #[cfg(test)]
    pub(crate) const fn of(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let length = u32::from_ne_bytes(*self.rest.first_chunk()?) as usize;
        if length < abi::HEADER || length > self.rest.len() {
            return None;
        }
        let (message, rest) = self.rest.split_at(length);
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        // Each message begins at a multiple of four bytes.
        self.rest = rest.get(length.next_multiple_of(4) - length..).unwrap_or_default();
        Some(Message { kind, payload: &message[abi::HEADER..] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((abi::HEADER + payload.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn a_datagram_is_split_into_messages_up_to_a_malformed_one() {
        let mut datagram = message(20, &[1, 2, 3]);
        datagram.push(0);
        datagram.extend(message(21, &[]));
        let found: Vec<(u16, usize)> = Messages::of(&datagram).map(|one| (one.kind, one.payload.len())).collect();
        assert_eq!(found, [(20, 3), (21, 0)]);
        datagram.extend([200, 0, 0, 0, 1]);
        assert_eq!(Messages::of(&datagram).count(), 2);
        assert_eq!(Messages::of(&[0; 16]).count(), 0);
    }
}
