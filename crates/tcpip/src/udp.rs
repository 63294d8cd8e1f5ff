//! UDP: datagrams in and out of a socket (RFC 768, RFC 8200 section 8.1, RFC 8085).
//!
//! Both directions are queues bounded in bytes; a datagram that does not fit is dropped and counted on the way in, and
//! refused on the way out. A connected socket hears its peer only. Over IPv6 a checksum is required; over IPv4 zero means
//! that the sender made none.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use smoltcp::wire::{IpProtocol, UdpPacket};

use crate::{error::SocketError, event::Readiness, packet::Checksums};

/// Bytes of a header.
pub(crate) const HEADER: usize = 8;
/// Where in the header the checksum is.
pub(crate) const CHECKSUM_OFFSET: usize = 6;
/// What an empty datagram costs its queue, in bytes, so that a million of them are not free.
const OVERHEAD: usize = 64;

/// Why a datagram was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    Length,
    Checksum,
}

/// Ports and payload of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed<'a> {
    pub source_port: u16,
    pub destination_port: u16,
    pub payload: &'a [u8],
}

/// Reads a datagram.
pub(crate) fn parse(bytes: &[u8], source: IpAddr, destination: IpAddr, verify: bool) -> Result<Parsed<'_>, Malformed> {
    let packet = UdpPacket::new_checked(bytes).map_err(|_| Malformed::Length)?;
    if packet.dst_port() == 0 {
        return Err(Malformed::Length);
    }
    if packet.checksum() == 0 {
        if source.is_ipv6() {
            return Err(Malformed::Checksum);
        }
    } else if verify && !packet.verify_checksum(&source.into(), &destination.into()) {
        return Err(Malformed::Checksum);
    }
    Ok(Parsed { source_port: packet.src_port(), destination_port: packet.dst_port(), payload: packet.payload() })
}

/// Writes a datagram into `buffer`, which is exactly as long as it must be.
pub(crate) fn emit(
    buffer: &mut [u8],
    ports: (u16, u16),
    payload: &[u8],
    (source, destination): (IpAddr, IpAddr),
    checksums: Checksums,
) {
    let len = buffer.len() as u16;
    let mut packet = UdpPacket::new_unchecked(&mut *buffer);
    packet.set_src_port(ports.0);
    packet.set_dst_port(ports.1);
    packet.set_len(len);
    buffer[HEADER..].copy_from_slice(payload);
    checksums.fill(buffer, CHECKSUM_OFFSET, IpProtocol::Udp, source, destination);
}

/// A datagram in a queue.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// Received: from whom. To send: to whom.
    pub peer: SocketAddr,
    /// The own address it came to, or is to be sent from.
    pub local: IpAddr,
    pub payload: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Queue {
    datagrams: VecDeque<Datagram>,
    bytes: usize,
}

impl Queue {
    fn push(&mut self, datagram: Datagram, limit: usize) -> bool {
        let cost = datagram.payload.len() + OVERHEAD;
        if self.bytes + cost > limit {
            return false;
        }
        self.bytes += cost;
        self.datagrams.push_back(datagram);
        true
    }

    fn payload_bytes(&self) -> usize {
        self.bytes - self.datagrams.len() * OVERHEAD
    }

    fn pop(&mut self) -> Option<Datagram> {
        let datagram = self.datagrams.pop_front()?;
        self.bytes -= datagram.payload.len() + OVERHEAD;
        if self.datagrams.is_empty() {
            self.datagrams = VecDeque::new();
        }
        Some(datagram)
    }
}

/// A UDP socket.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    /// Where it was bound.
    pub bound: SocketAddr,
    /// The same, with the address that it has as long as it is connected.
    pub local: SocketAddr,
    pub peer: Option<SocketAddr>,
    pub edges: Readiness,
    pub error: Option<SocketError>,
    pub shut_read: bool,
    pub shut_write: bool,
    received: Queue,
    outgoing: Queue,
    refused: bool,
    pub receive_limit: usize,
    pub send_limit: usize,
}

impl UdpSocket {
    pub(crate) fn new(local: SocketAddr, limit: usize) -> Self {
        Self {
            bound: local,
            local,
            peer: None,
            edges: Readiness::NONE,
            error: None,
            shut_read: false,
            shut_write: false,
            received: Queue::default(),
            outgoing: Queue::default(),
            refused: false,
            receive_limit: limit,
            send_limit: limit,
        }
    }

    /// Whether datagrams from `peer` are for this socket.
    pub(crate) fn hears(&self, peer: SocketAddr) -> bool {
        self.peer.is_none_or(|own| own.ip() == peer.ip() && own.port() == peer.port())
    }

    /// A datagram came; false if there is no room.
    pub(crate) fn deliver(&mut self, datagram: Datagram) -> bool {
        let fits = !self.shut_read && self.received.push(datagram, self.receive_limit);
        self.edges |= Readiness::READABLE.when(fits);
        fits
    }

    pub(crate) fn receive(&mut self) -> Option<Datagram> {
        self.received.pop()
    }

    pub(crate) fn first(&self) -> Option<&Datagram> {
        self.received.datagrams.front()
    }

    /// Queues a datagram to be sent; false if there is no room now.
    pub(crate) fn send(&mut self, datagram: Datagram) -> bool {
        let fits = self.outgoing.push(datagram, self.send_limit);
        self.refused |= !fits;
        fits
    }

    /// The next datagram to send.
    pub(crate) fn next_outgoing(&mut self) -> Option<Datagram> {
        let datagram = self.outgoing.pop()?;
        if self.refused && self.has_room() {
            self.refused = false;
            self.edges |= Readiness::WRITABLE;
        }
        Some(datagram)
    }

    /// Bytes that wait to be read, and to leave.
    pub(crate) fn unread(&self) -> usize {
        self.received.payload_bytes()
    }

    /// See [`Self::unread`].
    pub(crate) fn unsent(&self) -> usize {
        self.outgoing.payload_bytes()
    }

    pub(crate) fn wants_to_send(&self) -> bool {
        !self.outgoing.datagrams.is_empty()
    }

    fn has_room(&self) -> bool {
        self.outgoing.bytes * 2 <= self.send_limit
    }

    /// Something went wrong on the network.
    pub(crate) fn fail(&mut self, error: SocketError) {
        self.error = Some(error);
        self.edges |= Readiness::ERROR | Readiness::READABLE | Readiness::WRITABLE;
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let failed = self.error.is_some();
        Readiness::READABLE.when(!self.received.datagrams.is_empty() || failed || self.shut_read)
            | Readiness::WRITABLE.when(self.has_room() || failed || self.shut_write)
            | Readiness::READ_CLOSED.when(self.shut_read)
            | Readiness::HANG_UP.when(self.shut_read && self.shut_write)
            | Readiness::ERROR.when(failed)
    }

    pub(crate) const fn memory(&self) -> usize {
        self.received.bytes + self.outgoing.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(len: usize) -> Datagram {
        Datagram {
            peer: "10.0.0.2:9".parse().unwrap(),
            local: "10.0.0.1".parse().unwrap(),
            payload: vec![0; len].into(),
        }
    }

    #[test]
    fn queues_are_bounded_in_bytes_and_room_is_news() {
        let mut socket = UdpSocket::new("0.0.0.0:53".parse().unwrap(), 10_000);
        assert_eq!((0..100).filter(|_| socket.deliver(datagram(936))).count(), 10);
        assert_eq!((0..100).filter(|_| socket.send(datagram(936))).count(), 10);
        for _ in 0..4 {
            socket.next_outgoing();
        }
        assert!(!socket.readiness().contains(Readiness::WRITABLE));
        socket.next_outgoing();
        assert!(socket.edges.contains(Readiness::WRITABLE));
        assert_eq!((0..100).filter(|_| socket.receive().is_some()).count(), 10);
    }

    #[test]
    fn checksums_are_as_each_version_wants_them() {
        let (v4, v6): ((IpAddr, IpAddr), (IpAddr, IpAddr)) = (
            ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()),
            ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()),
        );
        for addresses in [v4, v6] {
            let mut bytes = vec![0; HEADER + 3];
            emit(&mut bytes, (5, 6), b"abc", addresses, Checksums::Full);
            assert_eq!(parse(&bytes, addresses.0, addresses.1, true).unwrap().payload, b"abc");
            bytes[8] ^= 1;
            assert_eq!(parse(&bytes, addresses.0, addresses.1, true).unwrap_err(), Malformed::Checksum);
            bytes[6..8].fill(0);
            assert_eq!(parse(&bytes, addresses.0, addresses.1, true).is_ok(), addresses == v4);
            bytes[4..6].copy_from_slice(&200_u16.to_be_bytes());
            assert_eq!(parse(&bytes, addresses.0, addresses.1, true).unwrap_err(), Malformed::Length);
        }
    }
}
