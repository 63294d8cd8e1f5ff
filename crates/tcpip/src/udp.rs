//! UDP headers and sockets (RFC 768; RFC 8200, section 8.1; RFC 8085).
//!
//! Each socket has a receive queue and a send queue, both bounded in bytes. A received datagram that does not fit is
//! dropped and counted; a datagram to send that does not fit is refused. A connected socket receives from its peer
//! only. IPv6 requires a checksum; over IPv4 zero means that the sender computed none.

use core::net::{IpAddr, SocketAddr};
use std::collections::VecDeque;

use smoltcp::wire::{IpProtocol, UdpPacket};

use crate::{
    checksum::Sum, datagram_table::Sharing, error::SocketError, event::Readiness, fragment::Fragmenter,
    packet::Checksums,
};

/// Length of a UDP header in bytes.
pub(crate) const HEADER_LEN: usize = 8;
/// Offset of the checksum in the header.
pub(crate) const CHECKSUM_OFFSET: usize = 6;
/// Bytes that each datagram counts in addition to its payload, so that empty datagrams are bounded too.
const OVERHEAD: usize = 64;

/// Reason why a datagram was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    Length,
    Checksum,
}

/// Ports and payload of a received datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed<'a> {
    pub source_port: u16,
    pub destination_port: u16,
    pub payload: &'a [u8],
}

/// Parses a datagram.
pub(crate) fn parse(bytes: &[u8], source: IpAddr, destination: IpAddr, verify: bool) -> Result<Parsed<'_>, Malformed> {
    let packet = UdpPacket::new_checked(bytes).map_err(|_| Malformed::Length)?;
    if packet.dst_port() == 0 {
        return Err(Malformed::Length);
    }
    if packet.checksum() == 0 {
        if source.is_ipv6() {
            return Err(Malformed::Checksum);
        }
    } else if verify {
        let whole = &bytes[..packet.len().into()];
        if !Sum::pseudo_header(source, destination, IpProtocol::Udp, whole.len()).add(whole).is_valid() {
            return Err(Malformed::Checksum);
        }
    }
    Ok(Parsed { source_port: packet.src_port(), destination_port: packet.dst_port(), payload: packet.payload() })
}

/// Writes a datagram into `buffer`, whose length must be exact.
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
    buffer[HEADER_LEN..].copy_from_slice(payload);
    checksums.fill(buffer, CHECKSUM_OFFSET, IpProtocol::Udp, source, destination);
}

/// Datagram in a queue.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// Source of a received datagram, destination of one to be sent.
    pub peer: SocketAddr,
    /// The host's own address: destination of a received datagram, source of one to be sent.
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
    /// Address that it was bound to.
    pub bound: SocketAddr,
    /// Like `bound`; while connected, with the source address that leads to the peer.
    pub local: SocketAddr,
    pub sharing: Sharing,
    pub peer: Option<SocketAddr>,
    pub edges: Readiness,
    pub error: Option<SocketError>,
    pub shut_read: bool,
    pub shut_write: bool,
    received: Queue,
    outgoing: Queue,
    send_refused: bool,
    pub receive_limit: usize,
    pub send_limit: usize,
    /// Datagrams that are longer than a packet are sent in fragments (IP_MTU_DISCOVER).
    pub may_fragment: bool,
    /// IP_TOS, and IPV6_TCLASS.
    pub traffic_classes: (u8, u8),
    /// Datagram of which not all fragments were sent.
    fragmenter: Option<Box<Fragmenter>>,
}

impl UdpSocket {
    pub(crate) fn new(local: SocketAddr, sharing: Sharing, limit: usize) -> Self {
        Self {
            bound: local,
            local,
            sharing,
            peer: None,
            edges: Readiness::NONE,
            error: None,
            shut_read: false,
            shut_write: false,
            received: Queue::default(),
            outgoing: Queue::default(),
            send_refused: false,
            receive_limit: limit,
            send_limit: limit,
            may_fragment: true,
            traffic_classes: (0, 0),
            fragmenter: None,
        }
    }

    /// Returns whether the socket receives datagrams from `peer`.
    pub(crate) fn accepts_from(&self, peer: SocketAddr) -> bool {
        self.peer.is_none_or(|own| own.ip() == peer.ip() && own.port() == peer.port())
    }

    /// Queues a received datagram. Returns false if it does not fit.
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

    /// Queues a datagram to be sent. Returns false if it does not fit now.
    pub(crate) fn send(&mut self, datagram: Datagram) -> bool {
        let fits = self.outgoing.push(datagram, self.send_limit);
        self.send_refused |= !fits;
        fits
    }

    /// Removes and returns the next datagram to send.
    pub(crate) fn next_outgoing(&mut self) -> Option<Datagram> {
        let datagram = self.outgoing.pop()?;
        if self.send_refused && self.has_room() {
            self.send_refused = false;
            self.edges |= Readiness::WRITABLE;
        }
        Some(datagram)
    }

    /// Starts to send a datagram in fragments with the number `id`.
    pub(crate) fn fragment(&mut self, datagram: &Datagram, id: u32) {
        let addresses = (datagram.local, datagram.peer.ip());
        let mut bytes = vec![0; HEADER_LEN + datagram.payload.len()];
        let ports = (self.local.port(), datagram.peer.port());
        emit(&mut bytes, ports, &datagram.payload, addresses, Checksums::Full);
        self.fragmenter = Some(Box::new(Fragmenter::new(bytes, addresses, id)));
    }

    pub(crate) fn is_fragmenting(&self) -> bool {
        self.fragmenter.as_ref().is_some_and(|fragmenter| !fragmenter.is_done())
    }

    pub(crate) fn fragmenter_mut(&mut self) -> Option<&mut Fragmenter> {
        self.fragmenter.as_deref_mut()
    }

    /// Releases the memory of a datagram whose fragments were sent.
    pub(crate) fn finish_fragments(&mut self) {
        if !self.is_fragmenting() {
            self.fragmenter = None;
        }
    }

    /// Returns the traffic class of datagrams to `peer`.
    pub(crate) const fn traffic_class(&self, peer: IpAddr) -> u8 {
        if peer.is_ipv4() { self.traffic_classes.0 } else { self.traffic_classes.1 }
    }

    /// Returns the received payload bytes that were not read.
    pub(crate) fn unread(&self) -> usize {
        self.received.payload_bytes()
    }

    /// Returns the payload bytes that were not sent.
    pub(crate) fn unsent(&self) -> usize {
        self.outgoing.payload_bytes()
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.outgoing.datagrams.is_empty() || self.is_fragmenting()
    }

    fn has_room(&self) -> bool {
        self.outgoing.bytes * 2 <= self.send_limit
    }

    /// Records a network error, which the next operation reports.
    pub(crate) fn fail(&mut self, error: SocketError) {
        self.error = Some(error);
        self.edges |= Readiness::ERROR | Readiness::WRITABLE;
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let failed = self.error.is_some();
        Readiness::READABLE.when(!self.received.datagrams.is_empty() || self.shut_read)
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
    fn queues_are_bounded_and_room_is_an_edge_after_a_refusal() {
        let mut socket = UdpSocket::new("0.0.0.0:53".parse().unwrap(), Sharing::default(), 10_000);
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
    fn checksums_follow_the_rules_of_each_ip_version() {
        let (v4, v6): ((IpAddr, IpAddr), (IpAddr, IpAddr)) = (
            ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()),
            ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()),
        );
        for addresses in [v4, v6] {
            let mut bytes = vec![0; HEADER_LEN + 3];
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
