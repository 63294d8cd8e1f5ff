//! What an application does to UDP sockets, and whom datagrams are for.

use core::net::{IpAddr, SocketAddr};

use super::{Entry, Socket, Stack};
use crate::{
    config::EPHEMERAL_LAST,
    error::{IoError, OpenError},
    event::SocketId,
    flow::Flow,
    packet::Packet,
    udp::{self, Datagram, UdpSocket},
};

/// A datagram that was received.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// From whom.
    pub peer: SocketAddr,
    /// To which own address.
    pub local: IpAddr,
    /// What it says, whole.
    pub payload: &'a [u8],
}

/// Bytes of the headers before a datagram's payload.
const fn headers(address: IpAddr) -> usize {
    udp::HEADER + if address.is_ipv4() { 20 } else { 40 }
}

impl Stack {
    /// Hands a datagram to its socket. False if nobody has the port.
    pub(super) fn deliver_datagram(&mut self, packet: &Packet<'_>, parsed: &udp::Parsed<'_>) -> bool {
        let flow = Flow {
            local: packet.destination,
            remote: packet.source,
            local_port: parsed.destination_port,
            remote_port: parsed.source_port,
        };
        let Some(id) = self.find_datagrams(&flow) else { return false };
        let Some(Entry { socket: Socket::Datagram(socket), .. }) = self.sockets.get_mut(id) else { return false };
        let peer = flow.remote();
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

    /// The socket that hears `flow`: the one that is connected to that peer, or one that is bound there.
    pub(super) fn find_datagrams(&self, flow: &Flow) -> Option<SocketId> {
        let connected = if self.connected.is_empty() { None } else { self.connected.get(flow).copied() };
        connected.or_else(|| self.bound.find(flow.local, flow.local_port))
    }

    /// Binds a UDP socket at `at`; port 0 chooses one. A socket that is connected has its peer to itself and leaves the
    /// address to others.
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
                .find(|&port| accepts(port) && !self.is_used(SocketAddr::new(at.ip(), port)));
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

    /// Whether a socket is bound exactly there, or is connected from there.
    fn is_used(&self, at: SocketAddr) -> bool {
        self.bound.is_taken(at) || self.connected.keys().any(|flow| flow.local_port == at.port())
    }

    fn datagram_mut(&mut self, id: SocketId) -> Result<&mut UdpSocket, IoError> {
        match self.sockets.get_mut(id) {
            Some(Entry { socket: Socket::Datagram(socket), .. }) => Ok(socket),
            Some(_) => Err(IoError::WrongKind),
            None => Err(IoError::NoSuchSocket),
        }
    }

    /// Sends to `peer` only from now on, and hears it only; what came before from others is not lost. A socket that was bound
    /// to no address gets the one that leads there. `None` undoes it.
    ///
    /// # Errors
    ///
    /// A stale id, not a UDP socket, no route, or another socket that is connected to the same peer from the same address.
    pub fn connect_datagram(&mut self, id: SocketId, peer: Option<SocketAddr>) -> Result<(), IoError> {
        let bound = self.datagram_mut(id)?.bound;
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
                if self.connected.get(&flow).is_some_and(|other| *other != id) {
                    return Err(IoError::AddressInUse(flow.local()));
                }
                Some(flow)
            }
        };
        self.leave(id);
        let local = flow.map_or(bound, |flow| flow.local());
        match flow {
            Some(flow) => {
                self.connected.insert(flow, id);
            }
            // Somebody else may have bound the address meanwhile, and then keeps it.
            None if self.bound.is_taken(bound) => {}
            None => self.bound.insert(bound, id),
        }
        let socket = self.datagram_mut(id)?;
        (socket.peer, socket.local) = (peer, local);
        Ok(())
    }

    /// Nothing is for socket `id` any more.
    pub(super) fn leave(&mut self, id: SocketId) {
        let Some(Entry { socket: Socket::Datagram(socket), .. }) = self.sockets.get(id) else { return };
        self.bound.remove_if(socket.bound, id);
        if let Some(peer) = socket.peer {
            let (local, remote) = (socket.local, peer.ip());
            let flow = Flow { local: local.ip(), remote, local_port: local.port(), remote_port: peer.port() };
            if self.connected.get(&flow) == Some(&id) {
                self.connected.remove(&flow);
            }
        }
    }

    /// Sends one datagram, to `peer` or to whom the socket is connected.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if too much waits to be sent; a datagram longer than a packet; an error of an earlier one,
    /// once.
    pub fn send_to(&mut self, id: SocketId, payload: &[u8], peer: Option<SocketAddr>) -> Result<usize, IoError> {
        self.send_from(id, payload, peer, None)
    }

    /// As [`Stack::send_to`], from a certain one of the host's addresses (IP_PKTINFO), if the socket is bound to none.
    ///
    /// # Errors
    ///
    /// As [`Stack::send_to`]; [`IoError::NoRoute`] for an address that is not the host's.
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
        let longest = mtu - headers(peer.ip());
        if payload.len() > longest {
            return Err(IoError::MessageTooLong(longest));
        }
        let no_route = IoError::NoRoute(peer.ip());
        let chosen = from.filter(|from| !from.is_unspecified());
        let local = match chosen {
            Some(from) if !self.config().is_own(from) => return Err(no_route),
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
        self.announce(id);
        Ok(payload.len())
    }

    /// Receives one datagram: how many of its bytes were copied (the rest is lost), from whom, and to which own address.
    ///
    /// # Errors
    ///
    /// [`IoError::WouldBlock`] if there is none; an error of an earlier datagram, once.
    pub fn recv_from(&mut self, id: SocketId, to: &mut [u8]) -> Result<(usize, SocketAddr, IpAddr), IoError> {
        self.receive_with(id, false, |message| copy(message, to))
    }

    /// As [`Stack::recv_from`], without taking the datagram away.
    ///
    /// # Errors
    ///
    /// As [`Stack::recv_from`].
    pub fn peek_from(&mut self, id: SocketId, to: &mut [u8]) -> Result<(usize, SocketAddr, IpAddr), IoError> {
        self.receive_with(id, true, |message| copy(message, to))
    }

    /// Shows the first datagram that was received to `take`, and then forgets it unless it is to `stay`.
    ///
    /// # Errors
    ///
    /// As [`Stack::recv_from`].
    pub fn receive_with<R>(
        &mut self,
        id: SocketId,
        stay: bool,
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
        if !stay {
            socket.receive();
        }
        Ok(taken)
    }

    /// Bytes of the first datagram that was received, if there is one.
    ///
    /// # Errors
    ///
    /// A stale id, or not a UDP socket.
    pub fn next_datagram_bytes(&mut self, id: SocketId) -> Result<Option<usize>, IoError> {
        Ok(self.datagram_mut(id)?.first().map(|datagram| datagram.payload.len()))
    }
}

fn copy(message: &Message<'_>, to: &mut [u8]) -> (usize, SocketAddr, IpAddr) {
    let len = message.payload.len().min(to.len());
    to[..len].copy_from_slice(&message.payload[..len]);
    (len, message.peer, message.local)
}
