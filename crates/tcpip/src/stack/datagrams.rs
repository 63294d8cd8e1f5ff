//! What an application does to UDP sockets, and whom datagrams are for.

use core::net::{IpAddr, SocketAddr};

use super::{Entry, Socket, Stack};
use crate::{
    config::EPHEMERAL_LAST,
    error::{IoError, OpenError},
    event::SocketId,
    packet::Packet,
    udp::{self, Datagram, UdpSocket},
};

/// Bytes of the headers before a datagram's payload.
const fn headers(address: IpAddr) -> usize {
    udp::HEADER + if address.is_ipv4() { 20 } else { 40 }
}

impl Stack {
    /// Hands a datagram to its socket. False if nobody has the port.
    pub(super) fn deliver_datagram(&mut self, packet: &Packet<'_>, parsed: &udp::Parsed<'_>) -> bool {
        let Some(id) = self.bound.find(packet.destination, parsed.destination_port) else { return false };
        let Some(Entry { socket: Socket::Datagram(socket), .. }) = self.sockets.get_mut(id) else { return false };
        let peer = SocketAddr::new(packet.source, parsed.source_port);
        if !socket.hears(peer) {
            return false;
        }
        let datagram = Datagram { peer, local: packet.destination, payload: parsed.payload.into() };
        if socket.deliver(datagram) {
            self.counters.udp_in_datagrams += 1;
            self.announce(id);
        } else {
            self.counters.udp_receive_buffer_errors += 1;
        }
        true
    }

    /// Binds a UDP socket at `at`; port 0 chooses one.
    ///
    /// # Errors
    ///
    /// An address that is taken or not the host's, no free port, or too many sockets.
    pub fn bind(&mut self, at: SocketAddr) -> Result<SocketId, OpenError> {
        self.bind_where(at, |_| true)
    }

    /// As [`Stack::bind`], with a port that `accepts` likes if it is chosen.
    ///
    /// # Errors
    ///
    /// As [`Stack::bind`].
    pub fn bind_where(&mut self, at: SocketAddr, mut accepts: impl FnMut(u16) -> bool) -> Result<SocketId, OpenError> {
        self.check_room()?;
        self.check_local(at.ip())?;
        let mut local = at;
        if at.port() == 0 {
            let first = self.config().settings().ephemeral_from;
            let count = u32::from(EPHEMERAL_LAST - first) + 1;
            let start = (self.ports.hash(at.ip()) as u32).wrapping_add(self.port_counter);
            let free = (0..count)
                .map(|step| first + (start.wrapping_add(step) % count) as u16)
                .find(|&port| accepts(port) && !self.bound.is_taken(SocketAddr::new(at.ip(), port)));
            local.set_port(free.ok_or(OpenError::NoPort(at))?);
            self.port_counter = self.port_counter.wrapping_add(1);
        } else if self.bound.is_taken(at) {
            return Err(OpenError::AddressInUse(at));
        }
        let limit = self.config().settings().datagram_buffer;
        let id = self.insert(Socket::Datagram(Box::new(UdpSocket::new(local, limit))));
        self.bound.insert(local, id);
        Ok(id)
    }

    fn datagram_mut(&mut self, id: SocketId) -> Result<&mut UdpSocket, IoError> {
        match self.sockets.get_mut(id) {
            Some(Entry { socket: Socket::Datagram(socket), .. }) => Ok(socket),
            Some(_) => Err(IoError::WrongKind),
            None => Err(IoError::NoSuchSocket),
        }
    }

    /// Sends to `peer` only from now on, and hears it only; `None` undoes it.
    ///
    /// # Errors
    ///
    /// A stale id, not a UDP socket, or no route.
    pub fn connect_datagram(&mut self, id: SocketId, peer: Option<SocketAddr>) -> Result<(), IoError> {
        if let Some(peer) = peer {
            self.config().next_hop(peer.ip()).ok_or(IoError::NoRoute(peer.ip()))?;
        }
        self.datagram_mut(id)?.peer = peer;
        Ok(())
    }

    /// Sends one datagram, to `peer` or to whom the socket is connected.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if too much waits to be sent; a datagram longer than a packet; an error of an earlier one,
    /// once.
    pub fn send_to(&mut self, id: SocketId, payload: &[u8], peer: Option<SocketAddr>) -> Result<usize, IoError> {
        let mtu = self.config().settings().mtu;
        let socket = self.datagram_mut(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error.into());
        }
        if socket.shut_write {
            return Err(IoError::BrokenPipe);
        }
        let (bound, peer) = (socket.local.ip(), peer.or(socket.peer).ok_or(IoError::NotConnected)?);
        let longest = mtu - headers(peer.ip());
        if payload.len() > longest {
            return Err(IoError::MessageTooLong(longest));
        }
        let route = self.link.config.source_for(peer.ip()).ok_or(IoError::NoRoute(peer.ip()));
        let local = if bound.is_unspecified() { route? } else { bound };
        let reachable = peer.ip().is_multicast()
            || self.config().is_broadcast(peer.ip())
            || self.config().next_hop(peer.ip()).is_some();
        if local.is_ipv4() != peer.is_ipv4() || !reachable {
            return Err(IoError::NoRoute(peer.ip()));
        }
        if !self.datagram_mut(id)?.send(Datagram { peer, local, payload: payload.into() }) {
            return Err(IoError::WouldBlock);
        }
        self.announce(id);
        Ok(payload.len())
    }

    /// Receives one datagram: how many of its bytes were copied (the rest is lost), from whom, and to which own address.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if there is none; an error of an earlier datagram, once.
    pub fn recv_from(&mut self, id: SocketId, to: &mut [u8]) -> Result<(usize, SocketAddr, IpAddr), IoError> {
        let socket = self.datagram_mut(id)?;
        if let Some(error) = socket.error.take() {
            return Err(error.into());
        }
        let datagram = socket.receive().ok_or(IoError::WouldBlock)?;
        Ok(copy(&datagram, to))
    }

    /// As [`Stack::recv_from`], without taking the datagram away.
    ///
    /// # Errors
    ///
    /// As [`Stack::recv_from`].
    pub fn peek_from(&mut self, id: SocketId, to: &mut [u8]) -> Result<(usize, SocketAddr, IpAddr), IoError> {
        let datagram = self.datagram_mut(id)?.first().ok_or(IoError::WouldBlock)?;
        Ok(copy(datagram, to))
    }
}

fn copy(datagram: &Datagram, to: &mut [u8]) -> (usize, SocketAddr, IpAddr) {
    let len = datagram.payload.len().min(to.len());
    to[..len].copy_from_slice(&datagram.payload[..len]);
    (len, datagram.peer, datagram.local)
}
