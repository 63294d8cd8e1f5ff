//! Ethernet and IP headers: parsed and checked on input, written on output (RFC 791, RFC 8200, RFC 1122).
//!
//! Each fault is an error value that the caller counts. Fragments are a fault too, after which [`parse_fragment`] parses them:
//! TCP never needs them, since it discovers the path MTU. A few IPv6 extension headers are skipped.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6ExtHeader, Ipv6Packet};

use crate::{checksum::Sum, ecn::Codepoint, fragment::Fragment};

/// Length of an Ethernet header in bytes.
pub(crate) const ETHERNET_HEADER_LEN: usize = 14;
/// Length of an IPv4 header without options in bytes.
const V4_HEADER_LEN: usize = 20;
/// Length of an IPv6 header without extension headers in bytes.
const V6_HEADER_LEN: usize = 40;
/// IPv4's flags "don't fragment" and "more fragments", and the bits of the fragment's offset in units of eight bytes.
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;
/// Maximum number of IPv6 extension headers.
const MAX_EXTENSION_HEADERS: usize = 4;
/// Hop limit of ordinary packets.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Ethernet address.
pub(crate) type MacAddr = [u8; 6];

/// Position of a transport checksum that the NIC fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumToFill {
    /// Offset in the frame at which the checksummed range starts; it ends with the frame.
    pub start: usize,
    /// Offset from `start` of the checksum field, which holds the sum of the pseudo header.
    pub offset: usize,
}

/// Properties of a frame beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameInfo {
    /// The checksum the NIC must fill in; `None` if the frame is complete.
    pub checksum: Option<ChecksumToFill>,
}

/// How transport checksums are computed on output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksums {
    Full,
    /// Only the pseudo header's sum is written.
    Partial,
}

impl Checksums {
    /// Writes the checksum of `segment` at `offset`.
    pub(crate) fn fill(
        self,
        segment: &mut [u8],
        offset: usize,
        protocol: IpProtocol,
        source: IpAddr,
        destination: IpAddr,
    ) {
        segment[offset..offset + 2].fill(0);
        let pseudo = Sum::pseudo_header(source, destination, protocol, segment.len());
        let sum = match self {
            Self::Partial => pseudo.fold(),
            Self::Full => match pseudo.add(segment).checksum() {
                // In UDP zero means "no checksum", so the other representation of zero is sent (RFC 768). TCP sends
                // zero.
                [0, 0] if protocol == IpProtocol::Udp => [0xff, 0xff],
                sum => sum,
            },
        };
        segment[offset..offset + 2].copy_from_slice(&sum);
    }
}

/// IP packet with a valid header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: IpProtocol,
    pub hop_limit: u8,
    pub ecn: Codepoint,
    pub payload: &'a [u8],
    /// The packet from its IP header on, which ICMP errors quote.
    pub whole: &'a [u8],
}

/// Reason why a packet was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Header,
    Checksum,
    Fragment,
}

/// Parses an IPv4 packet.
pub(crate) fn parse_v4(bytes: &[u8]) -> Result<Packet<'_>, Fault> {
    let header: &[u8; V4_HEADER_LEN] = bytes.first_chunk().ok_or(Fault::Header)?;
    let header_len = 4 * usize::from(header[0] & 15);
    let whole = bytes.get(..u16::from_be_bytes([header[2], header[3]]).into()).ok_or(Fault::Header)?;
    if header[0] >> 4 != 4 || header_len < V4_HEADER_LEN || header_len > whole.len() {
        return Err(Fault::Header);
    }
    let payload = &whole[header_len..];
    if !Sum::default().add(header).add(&whole[V4_HEADER_LEN..header_len]).is_valid() {
        return Err(Fault::Checksum);
    }
    if u16::from_be_bytes([header[6], header[7]]) & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0 {
        return Err(Fault::Fragment);
    }
    Ok(Packet {
        source: IpAddr::from([header[12], header[13], header[14], header[15]]),
        destination: IpAddr::from([header[16], header[17], header[18], header[19]]),
        protocol: header[9].into(),
        hop_limit: header[8],
        ecn: Codepoint::of(header[1]),
        payload,
        whole,
    })
}

/// Parses an IPv6 packet.
pub(crate) fn parse_v6(bytes: &[u8]) -> Result<Packet<'_>, Fault> {
    let packet = Ipv6Packet::new_checked(bytes).map_err(|_| Fault::Header)?;
    if packet.version() != 6 {
        return Err(Fault::Header);
    }
    let (mut protocol, mut payload) = (packet.next_header(), packet.payload());
    for _ in 0..MAX_EXTENSION_HEADERS {
        match protocol {
            IpProtocol::HopByHop | IpProtocol::Ipv6Route | IpProtocol::Ipv6Opts => {
                let header = Ipv6ExtHeader::new_checked(payload).map_err(|_| Fault::Header)?;
                protocol = header.next_header();
                payload = payload.get(8 * (usize::from(header.header_len()) + 1)..).ok_or(Fault::Header)?;
            }
            IpProtocol::Ipv6Frag => return Err(Fault::Fragment),
            _ => break,
        }
    }
    Ok(Packet {
        source: IpAddr::V6(packet.src_addr()),
        destination: IpAddr::V6(packet.dst_addr()),
        protocol,
        hop_limit: packet.hop_limit(),
        ecn: Codepoint::of(packet.traffic_class()),
        payload,
        whole: &bytes[..packet.total_len()],
    })
}

/// Parses a packet that [`parse_v4`] or [`parse_v6`] found to be a fragment. Its payload is the part of the datagram. An IPv6
/// fragment with other extension headers gives `None`.
pub(crate) fn parse_fragment(bytes: &[u8]) -> Option<(Packet<'_>, Fragment)> {
    if bytes.first()? >> 4 == 4 {
        let packet = Ipv4Packet::new_checked(bytes).ok()?;
        let (offset, more) = (packet.frag_offset(), packet.more_frags());
        let fragment = Fragment { id: packet.ident().into(), offset, more };
        let parsed = Packet {
            source: IpAddr::V4(packet.src_addr()),
            destination: IpAddr::V4(packet.dst_addr()),
            protocol: packet.next_header(),
            hop_limit: packet.hop_limit(),
            ecn: Codepoint::of(packet.ecn()),
            payload: packet.payload(),
            whole: bytes,
        };
        return Some((parsed, fragment));
    }
    let packet = Ipv6Packet::new_checked(bytes).ok()?;
    if packet.next_header() != IpProtocol::Ipv6Frag {
        return None;
    }
    let (protocol, fragment, payload) = Fragment::parse_v6(packet.payload())?;
    let parsed = Packet {
        source: IpAddr::V6(packet.src_addr()),
        destination: IpAddr::V6(packet.dst_addr()),
        protocol,
        hop_limit: packet.hop_limit(),
        ecn: Codepoint::of(packet.traffic_class()),
        payload,
        whole: bytes,
    };
    Some((parsed, fragment))
}

/// Source and destination of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub source_mac: MacAddr,
    pub destination_mac: MacAddr,
}

/// Fields of an IP header beside the addresses and the length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IpFields {
    pub protocol: IpProtocol,
    pub hop_limit: u8,
    /// IPv4's type of service: DSCP in the upper six bits, the ECN field in the lower two (RFC 2474, RFC 3168).
    pub traffic_class: u8,
    /// Position in a datagram that is sent in fragments. IPv6 has it in a header of its own, which the payload begins with.
    pub fragment: Option<Fragment>,
}

/// Returns the length of a frame with `payload` bytes after the IP header.
pub(crate) const fn frame_len(destination: IpAddr, payload: usize) -> usize {
    ETHERNET_HEADER_LEN + if destination.is_ipv4() { V4_HEADER_LEN } else { V6_HEADER_LEN } + payload
}

/// Writes an Ethernet header. Returns the part for the packet.
pub(crate) fn emit_ethernet(
    frame: &mut [u8],
    source: MacAddr,
    destination: MacAddr,
    protocol: EthernetProtocol,
) -> &mut [u8] {
    let (header, packet) = split_header(frame);
    let [d0, d1, d2, d3, d4, d5] = destination;
    let [s0, s1, s2, s3, s4, s5] = source;
    let [p0, p1] = u16::from(protocol).to_be_bytes();
    *header = [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, p0, p1];
    packet
}

/// Splits a buffer after a header of `N` bytes, for which it has room.
fn split_header<const N: usize>(buffer: &mut [u8]) -> (&mut [u8; N], &mut [u8]) {
    buffer.split_first_chunk_mut().expect("the buffer has room for the header")
}

/// Returns the IPv4 header of a packet of `len` bytes.
fn v4_header(len: usize, source: Ipv4Addr, destination: Ipv4Addr, fields: IpFields) -> [u8; V4_HEADER_LEN] {
    // Atomic datagrams need no identification (RFC 6864).
    let (id, flags) = match fields.fragment {
        None => (0, DONT_FRAGMENT),
        Some(Fragment { id, offset, more }) => (id as u16, if more { MORE_FRAGMENTS } else { 0 } | (offset / 8)),
    };
    let [l0, l1] = (len as u16).to_be_bytes();
    let [i0, i1] = id.to_be_bytes();
    let [f0, f1] = flags.to_be_bytes();
    let [s0, s1, s2, s3] = source.octets();
    let [d0, d1, d2, d3] = destination.octets();
    let (class, hops, protocol) = (fields.traffic_class, fields.hop_limit, fields.protocol.into());
    let mut header = [0x45, class, l0, l1, i0, i1, f0, f1, hops, protocol, 0, 0, s0, s1, s2, s3, d0, d1, d2, d3];
    [header[10], header[11]] = Sum::default().add(&header).checksum();
    header
}

/// Returns the IPv6 header of a packet with `payload` bytes.
fn v6_header(payload: usize, source: Ipv6Addr, destination: Ipv6Addr, fields: IpFields) -> [u8; V6_HEADER_LEN] {
    let mut header = [0; V6_HEADER_LEN];
    header[0] = 0x60 | fields.traffic_class >> 4;
    header[1] = fields.traffic_class << 4;
    header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
    header[6] = fields.protocol.into();
    header[7] = fields.hop_limit;
    header[8..24].copy_from_slice(&source.octets());
    header[24..].copy_from_slice(&destination.octets());
    header
}

/// Writes Ethernet and IP headers into `frame`, whose length must be exact. Returns the part for the payload.
pub(crate) fn emit_headers<'a>(frame: &'a mut [u8], route: &Route, fields: IpFields) -> &'a mut [u8] {
    let version = if route.source.is_ipv4() { EthernetProtocol::Ipv4 } else { EthernetProtocol::Ipv6 };
    let packet = emit_ethernet(frame, route.source_mac, route.destination_mac, version);
    let len = packet.len();
    match (route.source, route.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (header, payload) = split_header(packet);
            *header = v4_header(len, source, destination, fields);
            payload
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (header, payload) = split_header(packet);
            *header = v6_header(payload.len(), source, destination, fields);
            payload
        }
        _ => unreachable!("a route joins addresses of one version"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(source: &str, destination: &str, payload: &[u8]) -> Vec<u8> {
        let route = Route {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            source_mac: [2; 6],
            destination_mac: [4; 6],
        };
        let mut frame = vec![0xee; frame_len(route.destination, payload.len())];
        let fields = IpFields { protocol: IpProtocol::Udp, hop_limit: HOP_LIMIT, traffic_class: 0xb9, fragment: None };
        emit_headers(&mut frame, &route, fields).copy_from_slice(payload);
        frame
    }

    #[test]
    fn emitted_headers_are_parsed() {
        let v4 = frame("10.0.0.1", "10.0.0.2", b"payload");
        let packet = parse_v4(&v4[ETHERNET_HEADER_LEN..]).unwrap();
        assert_eq!((packet.payload, packet.protocol), (&b"payload"[..], IpProtocol::Udp));
        assert_eq!((v4[ETHERNET_HEADER_LEN + 1], packet.ecn), (0xb9, Codepoint::Ect1));
        let v6 = frame("fd00::1", "fd00::2", b"payload");
        let packet = parse_v6(&v6[ETHERNET_HEADER_LEN..]).unwrap();
        assert_eq!((packet.payload, packet.ecn), (&b"payload"[..], Codepoint::Ect1));
        assert_eq!(v6[ETHERNET_HEADER_LEN..ETHERNET_HEADER_LEN + 2], [0x6b, 0x90]);
    }

    #[test]
    fn a_checksum_of_zero_is_sent_unchanged_except_in_udp() {
        let (source, destination) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for (protocol, expected) in [(IpProtocol::Tcp, 0), (IpProtocol::Udp, 0xffff)] {
            let mut segment = [0; 20];
            // A value that makes the sum of the rest all ones.
            segment[..2].copy_from_slice(&Sum::pseudo_header(source, destination, protocol, 20).checksum());
            Checksums::Full.fill(&mut segment, 16, protocol, source, destination);
            assert_eq!(segment[16..18], u16::to_be_bytes(expected), "{protocol}");
        }
    }

    #[test]
    fn each_fault_is_detected() {
        let good = frame("10.0.0.1", "10.0.0.2", b"payload")[ETHERNET_HEADER_LEN..].to_vec();
        let fault = |change: fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            parse_v4(&bytes).unwrap_err()
        };
        assert_eq!(fault(|bytes| bytes.truncate(19)), Fault::Header);
        assert_eq!(fault(|bytes| bytes.truncate(25)), Fault::Header, "shorter than its total length");
        assert_eq!(fault(|bytes| bytes[0] = 0x65), Fault::Header);
        assert_eq!(fault(|bytes| bytes[0] = 0x44), Fault::Header);
        assert_eq!(fault(|bytes| bytes[8] ^= 1), Fault::Checksum);
        let fragment = |bytes: &mut Vec<u8>| {
            bytes[6] = 0x20;
            Ipv4Packet::new_unchecked(bytes).fill_checksum();
        };
        assert_eq!(fault(fragment), Fault::Fragment);
    }

    #[test]
    fn a_bounded_number_of_extension_headers_is_skipped() {
        let extended = |count: u8, last: u8| {
            let mut payload = Vec::new();
            for number in 0..count {
                payload.extend([if number + 1 == count { last } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
            }
            payload.extend(b"payload");
            let mut bytes = frame("fd00::1", "fd00::2", &payload)[ETHERNET_HEADER_LEN..].to_vec();
            bytes[6] = 60;
            bytes
        };
        assert_eq!(parse_v6(&extended(2, 17)).unwrap().payload, b"payload");
        assert_eq!(parse_v6(&extended(1, 44)).unwrap_err(), Fault::Fragment);
        assert_eq!(parse_v6(&extended(9, 17)).unwrap().protocol, IpProtocol::Ipv6Opts, "too many");
    }
}
