//! The sockets of a network namespace that accept new peers, from the kernel's socket diagnostics (`sock_diag(7)`): their cost
//! depends on the number of listeners, not on that of connections.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_bindings::inet_diag::{IterableReplyAttrs, Msg, ReqV2, Request, TcpState};
use netlink_bindings::traits::NetlinkRequest;
use netlink_socket2::NetlinkSocket;

use crate::netlink::NetlinkError;
use crate::netns::NetNs;
use crate::process::Protocol;

/// A listening TCP socket, or a UDP socket that is bound to a port and not connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its address, with an IPv4-mapped IPv6 address as the IPv4 address.
    pub local: SocketAddr,
    /// Whether it is on an IPv6 address and accepts no IPv4 peers.
    pub v6_only: bool,
    /// The ifindex of the device that it is bound to (`SO_BINDTODEVICE`).
    pub device: Option<u32>,
}

/// Reader of the listeners of one network namespace.
pub struct ListenerReader {
    socket: NetlinkSocket,
    ephemeral: (u16, u16),
}

impl std::fmt::Debug for ListenerReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ListenerReader").field("ephemeral", &self.ephemeral).finish_non_exhaustive()
    }
}

impl ListenerReader {
    /// Opens the reader.
    ///
    /// # Errors
    /// The namespace cannot be entered, or the kernel has no socket diagnostics.
    pub fn open(netns: &NetNs) -> Result<Self, NetlinkError> {
        // The socket type opens lazily, so the first request has to be sent inside the namespace.
        netns.run(|| {
            let mut reader = Self { socket: NetlinkSocket::new(), ephemeral: ephemeral_ports() };
            reader.read().map(|_| reader)
        })?
    }

    /// Reads the listeners, by the inode numbers of their sockets. UDP sockets on a port of the range from which the kernel
    /// chooses are left out: nothing distinguishes them from sockets that only send.
    ///
    /// # Errors
    /// The kernel has no socket diagnostics for TCP.
    pub fn read(&mut self) -> Result<BTreeMap<u64, Listener>, NetlinkError> {
        let mut found = BTreeMap::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let tcp = Request::new().op_tcp_diag_dump(&sockets_in(TcpState::Listen, libc::IPPROTO_TCP, family));
            found.extend(self.dump(&tcp, Protocol::Tcp)?);
            let udp = Request::new().op_udp_diag_dump(&sockets_in(TcpState::Close, libc::IPPROTO_UDP, family));
            // A kernel can be built without those of UDP.
            let (first, last) = self.ephemeral;
            let is_chosen = |listener: &Listener| (first..=last).contains(&listener.local.port());
            let udp = self.dump(&udp, Protocol::Udp).unwrap_or_default();
            found.extend(udp.into_iter().filter(|(_, listener)| listener.local.port() != 0 && !is_chosen(listener)));
        }
        Ok(found)
    }

    fn dump<R>(&mut self, request: &R, protocol: Protocol) -> Result<Vec<(u64, Listener)>, NetlinkError>
    where
        R: for<'a> NetlinkRequest<ReplyType<'a> = (Msg, IterableReplyAttrs<'a>)>,
    {
        let refused = |error: io::Error| NetlinkError::Refused {
            action: "list the listening sockets".to_owned(),
            errno: error.raw_os_error(),
            reason: error.to_string(),
        };
        let mut replies = self.socket.request(request).map_err(refused)?;
        let mut found = Vec::new();
        while let Some(reply) = replies.recv() {
            let (message, attributes) =
                reply.map_err(|error| NetlinkError::from_reply("list the listening sockets", &error))?;
            found.extend(describe(&message, protocol, attributes.get_skv6only().is_ok()));
        }
        Ok(found)
    }
}

fn describe(message: &Msg, protocol: Protocol, v6_only: bool) -> Option<(u64, Listener)> {
    let source = message.sockid.src;
    let ip = if i32::from(message.family) == libc::AF_INET {
        IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(&source[..4]).ok()?))
    } else {
        IpAddr::V6(Ipv6Addr::from(source)).to_canonical()
    };
    let device = Some(message.sockid.r#if).filter(|index| *index != 0);
    let local = SocketAddr::new(ip, message.sockid.sport());
    Some((u64::from(message.inode), Listener { protocol, local, v6_only, device }))
}

fn sockets_in(state: TcpState, protocol: libc::c_int, family: libc::c_int) -> ReqV2 {
    ReqV2 { family: family as u8, protocol: protocol as u8, states: 1 << (state as u32), ..ReqV2::new() }
}

/// Returns the ports from which the kernel chooses (`ip_local_port_range`, ip(7)) in the namespace of the calling thread.
fn ephemeral_ports() -> (u16, u16) {
    const DEFAULT: (u16, u16) = (32_768, 60_999);
    let Ok(text) = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range") else { return DEFAULT };
    let mut words = text.split_whitespace().map(str::parse);
    match (words.next(), words.next()) {
        (Some(Ok(first)), Some(Ok(last))) => (first, last),
        _ => DEFAULT,
    }
}
