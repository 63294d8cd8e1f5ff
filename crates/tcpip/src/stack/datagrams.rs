//! UDP sockets: delivery of received datagrams, and the application's operations.

use core::net::{IpAddr, SocketAddr};

use super::{Entry, Socket, Stack};
use crate::{
    datagram_table::Sharing,
    error::{IoError, OpenError},
    event::SocketId,
    flow::Flow,
    packet::Packet,
    udp::{self, Datagram, UdpSocket},
};

/// Received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Source address.
    pub peer: SocketAddr,
    /// Destination address, one of the host's own.
    pub local: IpAddr,
    /// Whole payload.
    pub payload: &'a [u8],
}

/// Returns the length of the IP and UDP headers.
const fn headers(address: IpAddr) -> usize {
    udp::HEADER_LEN + if address.is_ipv4() { 20 } else { 40 }
}

/// Returns the longest payload of a datagram, in fragments or not.
const fn longest_datagram(address: IpAddr) -> usize {
    // The length field of IPv4 includes its header.
    if address.is_ipv4() { 65_535 - headers(address) } else { 65_535 - udp::HEADER_LEN }
}

impl Stack {
    /// Sets whether datagrams that are longer than a packet are sent in fragments (IP_MTU_DISCOVER), or refused.
    ///
    /// # Errors
    ///
    /// The id is stale or not a UDP socket.
    pub fn set_fragmentation(&mut self, id: SocketId, on: bool) -> Result<(), IoError> {
        self.datagram_mut(id)?.may_fragment = on;
        Ok(())
    }

    /// Sets the traffic class of the datagrams that are sent: IP_TOS for IPv4, IPV6_TCLASS for IPv6.
    ///
    /// # Errors
    ///
    /// The id is stale or not a UDP socket.
    pub fn set_traffic_classes(&mut self, id: SocketId, v4: u8, v6: u8) -> Result<(), IoError> {
        self.datagram_mut(id)?.traffic_classes = (v4, v6);
        Ok(())
    }

    /// Delivers a datagram to its socket. Returns false if no socket receives it.
    pub(super) fn deliver_datagram(&mut self, packet: &Packet<'_>, parsed: &udp::Parsed<'_>) -> bool {
        let flow = Flow {
            local: packet.destination,
            remote: packet.source,
            local_port: parsed.destination_port,
            remote_port: parsed.source_port,
        };
        let Some(id) = self.datagrams.find(&flow) else { return false };
        let Some(Entry { socket: Socket::Datagram(socket), .. }) = self.sockets.get_mut(id) else { return false };
        let peer = flow.remote();
        if !socket.accepts_from(peer) {
            return false;
        }
        let datagram = Datagram { peer, local: packet.destination, payload: parsed.payload.into() };
        if socket.deliver(datagram) {
            self.counters.udp_in_datagrams += 1;
            self.enqueue(id);
        } else {
            self.counters.udp_receive_buffer_errors += 1;
        }
        true
    }

    /// Returns whether a UDP socket receives datagrams of `from` to `to`.
    #[must_use]
    pub fn has_receiver(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let flow = Flow { local: to.ip(), remote: from.ip(), local_port: to.port(), remote_port: from.port() };
        let Some(id) = self.datagrams.find(&flow) else { return false };
        matches!(self.sockets.get(id), Some(Entry { socket: Socket::Datagram(socket), .. }) if socket.accepts_from(from))
    }

    /// Binds a UDP socket to `at`, or to an ephemeral port if the port is 0. A connected socket owns only its flow,
    /// so another socket can bind the same address.
    ///
    /// # Errors
    ///
    /// The address is in use or is not the host's, no port is free, or there are too many sockets.
    pub fn bind(&mut self, at: SocketAddr) -> Result<SocketId, OpenError> {
        self.bind_filtered(at, |_| true)
    }

    /// Like [`Stack::bind`], beside other sockets with which the new one shares its address.
    ///
    /// # Errors
    ///
    /// As [`Stack::bind`].
    pub fn bind_shared(&mut self, at: SocketAddr, sharing: Sharing) -> Result<SocketId, OpenError> {
        self.bind_as(at, sharing, |_| true)
    }

    /// Like [`Stack::bind`], with an ephemeral port for which `accepts` returns true.
    ///
    /// # Errors
    ///
    /// As [`Stack::bind`].
    pub fn bind_filtered(&mut self, at: SocketAddr, accepts: impl FnMut(u16) -> bool) -> Result<SocketId, OpenError> {
        self.bind_as(at, Sharing::default(), accepts)
    }

    fn bind_as(
        &mut self,
        at: SocketAddr,
        sharing: Sharing,
        mut accepts: impl FnMut(u16) -> bool,
    ) -> Result<SocketId, OpenError> {
        self.check_room()?;
        self.check_local(at.ip())?;
        let mut local = at;
        if at.port() == 0 {
            let mut ports = self.ephemeral.candidates(at.ip());
            let free = ports.find(|&port| accepts(port) && !self.datagrams.is_used(SocketAddr::new(at.ip(), port)));
            local.set_port(free.ok_or(OpenError::NoPort(at))?);
            self.ephemeral.advance(1);
        } else if !self.datagrams.may_bind(at, sharing) {
            return Err(OpenError::AddressInUse(at));
        }
        let limit = self.config().settings().datagram_buffer;
        let id = self.insert(Socket::Datagram(Box::new(UdpSocket::new(local, sharing, limit))));
        self.datagrams.bind(local, id, sharing);
        Ok(id)
    }

    fn datagram_mut(&mut self, id: SocketId) -> Result<&mut UdpSocket, IoError> {
        match self.sockets.get_mut(id) {
            Some(Entry { socket: Socket::Datagram(socket), .. }) => Ok(socket),
            Some(Entry { socket: Socket::Moved(_), .. }) => Err(IoError::Moved),
            Some(_) => Err(IoError::WrongKind),
            None => Err(IoError::NoSuchSocket),
        }
    }

    /// Connects a UDP socket to `peer`, or disconnects it. A connected socket sends to and receives from its peer
    /// only. Datagrams that were received before stay readable. A socket that is bound to no address gets the source
    /// address that leads to `peer`.
    ///
    /// # Errors
    ///
    /// The id is stale or not a UDP socket, there is no route, or another socket is connected to the same peer from
    /// the same address.
    pub fn connect_datagram(&mut self, id: SocketId, peer: Option<SocketAddr>) -> Result<(), IoError> {
        let UdpSocket { bound, sharing, .. } = *self.datagram_mut(id)?;
        let flow = match peer {
            None => None,
            Some(peer) => {
                let to = peer.ip();
                let is_broadcast = to.is_multicast() || self.config().is_broadcast(to);
                if !is_broadcast {
                    self.config().next_hop(to).ok_or(IoError::NoRoute(to))?;
                }
                let source = self.config().source_for(to).ok_or(IoError::NoRoute(to));
                let local = if bound.ip().is_unspecified() { source? } else { bound.ip() };
                let flow = Flow { local, remote: to, local_port: bound.port(), remote_port: peer.port() };
                if self.datagrams.connected(&flow).is_some_and(|other| other != id) {
                    return Err(IoError::AddressInUse(flow.local()));
                }
                Some(flow)
            }
        };
        self.unbind(id);
        let local = flow.map_or(bound, |flow| flow.local());
        match flow {
            Some(flow) => self.datagrams.connect(flow, id),
            None if self.datagrams.may_bind(bound, sharing) => self.datagrams.bind(bound, id, sharing),
            // Another socket has bound the address in the meantime, and keeps it.
            None => {}
        }
        let socket = self.datagram_mut(id)?;
        (socket.peer, socket.local) = (peer, local);
        Ok(())
    }

    /// Removes socket `id` from the tables, so that it receives nothing.
    pub(super) fn unbind(&mut self, id: SocketId) {
        let Some(Entry { socket: Socket::Datagram(socket), .. }) = self.sockets.get(id) else { return };
        self.datagrams.remove(socket, id);
    }

    /// Sends one datagram to `peer`, or to the peer that the socket is connected to.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if the send queue is full; [`IoError::MessageTooLong`]; the network error of an
    /// earlier datagram, once.
    pub fn send_to(&mut self, id: SocketId, payload: &[u8], peer: Option<SocketAddr>) -> Result<usize, IoError> {
        self.send_from(id, payload, peer, None)
    }

    /// Like [`Stack::send_to`], with the source address `from` (IP_PKTINFO), which must be one of the host's.
    ///
    /// # Errors
    ///
    /// As [`Stack::send_to`]; [`IoError::NoRoute`] if the source address is not the host's.
    pub fn send_from(
        &mut self,
        id: SocketId,
        payload: &[u8],
        peer: Option<SocketAddr>,
        from: Option<IpAddr>,
    ) -> Result<usize, IoError> {
        let mtu = self.config().settings().mtu;
        let socket = self.datagram_mut(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error.into());
        }
        if socket.shut_write {
            return Err(IoError::BrokenPipe);
        }
        let (bound, peer) = (socket.local.ip(), peer.or(socket.peer).ok_or(IoError::NotConnected)?);
        let longest = if socket.may_fragment { longest_datagram(peer.ip()) } else { mtu - headers(peer.ip()) };
        if payload.len() > longest {
            return Err(IoError::MessageTooLong(longest));
        }
        let no_route = IoError::NoRoute(peer.ip());
        let chosen = from.filter(|from| !from.is_unspecified());
        let local = match chosen {
            Some(from) if !self.config().is_local(from) => return Err(no_route),
            Some(from) => from,
            None if bound.is_unspecified() => self.link.config.source_for(peer.ip()).ok_or(no_route)?,
            None => bound,
        };
        let reachable = peer.ip().is_multicast()
            || self.config().is_broadcast(peer.ip())
            || self.config().next_hop(peer.ip()).is_some();
        if local.is_ipv4() != peer.is_ipv4() || !reachable {
            return Err(no_route);
        }
        if !self.datagram_mut(id)?.send(Datagram { peer, local, payload: payload.into() }) {
            return Err(IoError::WouldBlock);
        }
        self.enqueue(id);
        Ok(payload.len())
    }

    /// Receives one datagram. Returns the number of copied bytes (the rest is discarded), the source, and the local
    /// address.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if there is none; the network error of an earlier datagram, once.
    pub fn recv_from(&mut self, id: SocketId, to: &mut [u8]) -> Result<(usize, SocketAddr, IpAddr), IoError> {
        self.receive_with(id, false, |message| copy(message, to))
    }

    /// Like [`Stack::recv_from`], without removing the datagram.
    ///
    /// # Errors
    ///
    /// As [`Stack::recv_from`].
    pub fn peek_from(&mut self, id: SocketId, to: &mut [u8]) -> Result<(usize, SocketAddr, IpAddr), IoError> {
        self.receive_with(id, true, |message| copy(message, to))
    }

    /// Calls `take` with the first received datagram, and removes it unless `peek` is set.
    ///
    /// # Errors
    ///
    /// As [`Stack::recv_from`].
    pub fn receive_with<R>(
        &mut self,
        id: SocketId,
        peek: bool,
        take: impl FnOnce(&Message<'_>) -> R,
    ) -> Result<R, IoError> {
        let socket = self.datagram_mut(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error.into());
        }
        let Some(datagram) = socket.first() else {
            return Err(if socket.shut_read { IoError::Ended } else { IoError::WouldBlock });
        };
        let Datagram { peer, local, payload } = datagram;
        let taken = take(&Message { peer: *peer, local: *local, payload });
        if !peek {
            socket.receive();
        }
        Ok(taken)
    }

    /// Returns the payload length of the first received datagram, if there is one.
    ///
    /// # Errors
    ///
    /// The id is stale or not a UDP socket.
    pub fn next_datagram_bytes(&mut self, id: SocketId) -> Result<Option<usize>, IoError> {
        Ok(self.datagram_mut(id)?.first().map(|datagram| datagram.payload.len()))
    }
}

fn copy(message: &Message<'_>, to: &mut [u8]) -> (usize, SocketAddr, IpAddr) {
    let len = message.payload.len().min(to.len());
    to[..len].copy_from_slice(&message.payload[..len]);
    (len, message.peer, message.local)
}
