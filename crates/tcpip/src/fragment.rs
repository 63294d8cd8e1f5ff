//! Fragments of UDP datagrams that are longer than a packet: how they are sent (RFC 791, 3.2; RFC 8200, 4.5; RFC 6864).
//!
//! The parts are as long as the MTU allows, and a multiple of eight bytes except the last. Their datagram is identified by
//! a number of its own. TCP never needs them, since it follows the path MTU. [`reassembly`](crate::reassembly) receives them.

use core::{net::IpAddr, ops::Range};

use smoltcp::wire::IpProtocol;

/// Length of IPv6's fragment header in bytes.
pub(crate) const V6_HEADER_LEN: usize = 8;
/// Flag "more fragments" of IPv6's fragment header.
const V6_MORE: u16 = 1;

/// Position of a fragment in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// Number of the datagram; 16 bits in IPv4.
    pub id: u32,
    /// In bytes; a multiple of eight.
    pub offset: u16,
    /// Whether another fragment follows.
    pub more: bool,
}

impl Fragment {
    /// Writes IPv6's fragment header, and returns the rest of `buffer`.
    pub(crate) fn emit_v6(self, buffer: &mut [u8], protocol: IpProtocol) -> &mut [u8] {
        let (header, rest) = buffer.split_at_mut(V6_HEADER_LEN);
        let position = self.offset | if self.more { V6_MORE } else { 0 };
        header[0] = protocol.into();
        header[1] = 0;
        header[2..4].copy_from_slice(&position.to_be_bytes());
        header[4..].copy_from_slice(&self.id.to_be_bytes());
        rest
    }

    /// Parses IPv6's fragment header. Returns the protocol of the datagram, the position, and the rest.
    pub(crate) fn parse_v6(bytes: &[u8]) -> Option<(IpProtocol, Self, &[u8])> {
        let (header, rest) = bytes.split_at_checked(V6_HEADER_LEN)?;
        let position = u16::from_be_bytes([header[2], header[3]]);
        let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        Some((header[0].into(), Self { id, offset: position & !7, more: position & V6_MORE != 0 }, rest))
    }
}

/// Datagram that is sent in fragments.
#[derive(Debug)]
pub(crate) struct Fragmenter {
    /// The UDP header and the payload.
    pub datagram: Vec<u8>,
    /// Source and destination.
    pub addresses: (IpAddr, IpAddr),
    id: u32,
    sent: usize,
}

impl Fragmenter {
    pub(crate) const fn new(datagram: Vec<u8>, addresses: (IpAddr, IpAddr), id: u32) -> Self {
        Self { datagram, addresses, id, sent: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.sent >= self.datagram.len()
    }

    /// Returns the next fragment for packets of at most `mtu` bytes, and its part of the datagram.
    pub(crate) fn next(&mut self, mtu: usize) -> Option<(Fragment, Range<usize>)> {
        if self.is_done() {
            return None;
        }
        let headers = if self.addresses.1.is_ipv4() { 20 } else { 40 + V6_HEADER_LEN };
        let room = (mtu - headers) & !7;
        let part = self.sent..self.datagram.len().min(self.sent + room);
        self.sent = part.end;
        let fragment = Fragment { id: self.id, offset: part.start as u16, more: !self.is_done() };
        Some((fragment, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_contiguous_and_fit() {
        for (address, headers) in [("10.0.0.1", 20), ("fd00::1", 48)] {
            let address: IpAddr = address.parse().unwrap();
            let mut fragmenter = Fragmenter::new(vec![1; 5000], (address, address), 7);
            let mut end = 0;
            while let Some((fragment, part)) = fragmenter.next(1500) {
                assert_eq!((usize::from(fragment.offset), part.start, fragment.id), (end, end, 7));
                assert!(headers + part.len() <= 1500 && (part.len() % 8 == 0 || !fragment.more));
                assert_eq!(fragment.more, part.end < 5000);
                end = part.end;
            }
            assert_eq!(end, 5000);
        }
    }

    #[test]
    fn the_header_of_ipv6_is_parsed() {
        let fragment = Fragment { id: 0x1234_5678, offset: 1448, more: true };
        let mut bytes = [9; 12];
        fragment.emit_v6(&mut bytes, IpProtocol::Udp);
        assert_eq!(Fragment::parse_v6(&bytes), Some((IpProtocol::Udp, fragment, &[9; 4][..])));
        assert_eq!(Fragment::parse_v6(&bytes[..7]), None);
    }
}
