//! ICMP and ICMPv6: echo, and errors in both directions (RFC 792, RFC 4443, RFC 1191, RFC 8201).
//!
//! An error quotes the packet that caused it, and anyone can send one. The caller checks that the quoted flow exists
//! and, for TCP, that the quoted sequence number is in flight (RFC 5927).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet};

use crate::{flow::Flow, packet::Packet, tcp::seq::Seq};

/// Bytes of an ICMP header.
const HEADER_LEN: usize = 8;
/// Maximum bytes of the packet that an error quotes (IPv4, IPv6), so that the error fits the minimum MTU.
const QUOTE: (usize, usize) = (548, 1232);

/// Cause of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    PortUnreachable,
    HostUnreachable,
    NetworkUnreachable,
    /// The path MTU in bytes; zero from routers that predate RFC 1191.
    TooBig(u32),
    Other,
}

/// Error about a packet that this host sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IcmpError {
    pub flow: Flow,
    pub protocol: IpProtocol,
    /// TCP sequence number of the quoted packet.
    pub seq: Seq,
    pub kind: ErrorKind,
}

/// Parsed ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpMessage<'a> {
    /// Echo request. The reply carries these bytes after its type, code and checksum.
    EchoRequest(&'a [u8]),
    Error(IcmpError),
    /// Neighbour discovery message, which `Stack::receive_neighbor` parses.
    Neighbor,
    /// Message of a type that the stack does not use.
    Ignored,
}

/// Parses a message. Returns `None` if it is truncated or its checksum is wrong.
pub(crate) fn parse<'a>(packet: &Packet<'a>) -> Option<IcmpMessage<'a>> {
    match (packet.source, packet.destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => parse_v4(packet.payload),
        (IpAddr::V6(source), IpAddr::V6(destination)) => parse_v6(packet.payload, source, destination),
        _ => None,
    }
}

fn parse_v4(bytes: &[u8]) -> Option<IcmpMessage<'_>> {
    let icmp = Icmpv4Packet::new_checked(bytes).ok()?;
    if bytes.len() < HEADER_LEN || !icmp.verify_checksum() {
        return None;
    }
    let kind = match (icmp.msg_type(), icmp.msg_code()) {
        (Icmpv4Message::EchoRequest, 0) => return Some(IcmpMessage::EchoRequest(&bytes[4..])),
        (Icmpv4Message::DstUnreachable, 0 | 6) => ErrorKind::NetworkUnreachable,
        (Icmpv4Message::DstUnreachable, 3) => ErrorKind::PortUnreachable,
        (Icmpv4Message::DstUnreachable, 4) => ErrorKind::TooBig(u16::from_be_bytes([bytes[6], bytes[7]]).into()),
        (Icmpv4Message::DstUnreachable, 1 | 7) => ErrorKind::HostUnreachable,
        (Icmpv4Message::DstUnreachable | Icmpv4Message::TimeExceeded, _) => ErrorKind::Other,
        _ => return Some(IcmpMessage::Ignored),
    };
    let quoted = &bytes[HEADER_LEN..];
    if quoted.len() < 20 {
        return None;
    }
    let ip = Ipv4Packet::new_unchecked(quoted);
    let header = usize::from(ip.header_len());
    if ip.version() != 4 || header < 20 {
        return None;
    }
    let transport = quoted.get(header..)?;
    parse_quoted(IpAddr::V4(ip.src_addr()), IpAddr::V4(ip.dst_addr()), ip.next_header(), transport, kind)
}

fn parse_v6(bytes: &[u8], source: Ipv6Addr, destination: Ipv6Addr) -> Option<IcmpMessage<'_>> {
    let icmp = Icmpv6Packet::new_checked(bytes).ok()?;
    if bytes.len() < HEADER_LEN || !icmp.verify_checksum(&source, &destination) {
        return None;
    }
    let word = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let kind = match (icmp.msg_type(), icmp.msg_code()) {
        (Icmpv6Message::EchoRequest, 0) => return Some(IcmpMessage::EchoRequest(&bytes[4..])),
        (Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert, 0) => return Some(IcmpMessage::Neighbor),
        (Icmpv6Message::DstUnreachable, 0) => ErrorKind::NetworkUnreachable,
        (Icmpv6Message::DstUnreachable, 3) => ErrorKind::HostUnreachable,
        (Icmpv6Message::DstUnreachable, 4) => ErrorKind::PortUnreachable,
        (Icmpv6Message::PktTooBig, _) => ErrorKind::TooBig(word),
        (Icmpv6Message::DstUnreachable | Icmpv6Message::TimeExceeded, _) => ErrorKind::Other,
        _ => return Some(IcmpMessage::Ignored),
    };
    let quoted = &bytes[HEADER_LEN..];
    if quoted.len() < 40 {
        return None;
    }
    let ip = Ipv6Packet::new_unchecked(quoted);
    if ip.version() != 6 {
        return None;
    }
    parse_quoted(IpAddr::V6(ip.src_addr()), IpAddr::V6(ip.dst_addr()), ip.next_header(), &quoted[40..], kind)
}

/// Parses the quoted transport header. This host sent the quoted packet, so its source is `local`.
pub(crate) fn parse_quoted(
    local: IpAddr,
    remote: IpAddr,
    protocol: IpProtocol,
    transport: &[u8],
    kind: ErrorKind,
) -> Option<IcmpMessage<'static>> {
    let &[a, b, c, d, s0, s1, s2, s3] = transport.first_chunk::<8>()?;
    let flow = Flow { local, remote, local_port: u16::from_be_bytes([a, b]), remote_port: u16::from_be_bytes([c, d]) };
    Some(IcmpMessage::Error(IcmpError { flow, protocol, seq: Seq(u32::from_be_bytes([s0, s1, s2, s3])), kind }))
}

/// Returns the length of the message that [`emit`] writes.
pub(crate) const fn message_len(body: &[u8]) -> usize {
    4 + body.len()
}

/// Message that the stack sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpReply {
    Echo,
    PortUnreachable,
}

/// Writes the type and code of `reply`, then `body`, then the checksum.
pub(crate) fn emit(buffer: &mut [u8], reply: IcmpReply, body: &[u8], source: IpAddr, destination: IpAddr) {
    buffer[4..].copy_from_slice(body);
    let (kind, code) = match (reply, source) {
        (IcmpReply::Echo, IpAddr::V4(_)) => (u8::from(Icmpv4Message::EchoReply), 0),
        (IcmpReply::Echo, IpAddr::V6(_)) => (u8::from(Icmpv6Message::EchoReply), 0),
        (IcmpReply::PortUnreachable, IpAddr::V4(_)) => (u8::from(Icmpv4Message::DstUnreachable), 3),
        (IcmpReply::PortUnreachable, IpAddr::V6(_)) => (u8::from(Icmpv6Message::DstUnreachable), 4),
    };
    buffer[..4].copy_from_slice(&[kind, code, 0, 0]);
    match (source, destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Icmpv6Packet::new_unchecked(buffer).fill_checksum(&source, &destination);
        }
        _ => Icmpv4Packet::new_unchecked(buffer).fill_checksum(),
    }
}

/// Returns the body of a port unreachable message about `packet`.
pub(crate) fn unreachable_body(packet: &Packet<'_>) -> Vec<u8> {
    let limit = if packet.source.is_ipv4() { QUOTE.0 } else { QUOTE.1 };
    let quote = &packet.whole[..packet.whole.len().min(limit)];
    [&[0; 4], quote].concat()
}

/// Returns the protocol number of ICMP for the IP version of `address`.
pub(crate) const fn protocol(address: IpAddr) -> IpProtocol {
    if address.is_ipv4() { IpProtocol::Icmp } else { IpProtocol::Icmpv6 }
}

/// Returns the solicited-node multicast address (RFC 4291, section 2.7.1).
pub(crate) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let octets = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | octets[13] as u16, u16::from_be_bytes([octets[14], octets[15]]))
}

/// Returns the Ethernet address of a multicast group (RFC 1112, section 6.4; RFC 2464, section 7) or of the broadcast
/// address.
pub(crate) fn multicast_mac(address: IpAddr) -> Option<[u8; 6]> {
    match address {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some([0xff; 6]),
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(group) if group.is_multicast() => {
            let octets = group.octets();
            Some([0x33, 0x33, octets[12], octets[13], octets[14], octets[15]])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet<'a>(source: &str, destination: &str, payload: &'a [u8]) -> Packet<'a> {
        let source: IpAddr = source.parse().unwrap();
        Packet {
            ecn: crate::ecn::Codepoint::NotEct,
            source,
            destination: destination.parse().unwrap(),
            protocol: protocol(source),
            hop_limit: 64,
            payload,
            whole: payload,
        }
    }

    #[test]
    fn an_error_names_the_flow_it_quotes() {
        for (source, destination, header) in [("10.0.0.1", "10.0.0.2", 20), ("fd00::1", "fd00::2", 40)] {
            let route = crate::packet::Route {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                source_mac: [2; 6],
                destination_mac: [2; 6],
            };
            let mut frame = vec![0; 14 + header + 8];
            let fields =
                crate::packet::IpFields { protocol: IpProtocol::Tcp, hop_limit: 64, traffic_class: 0, fragment: None };
            crate::packet::emit_headers(&mut frame, &route, fields).copy_from_slice(&[0, 80, 0, 90, 0, 0, 1, 0]);
            let mut quoted = packet(source, destination, &[]);
            quoted.whole = &frame[14..];
            let body = unreachable_body(&quoted);
            let mut bytes = vec![0; message_len(&body)];
            emit(&mut bytes, IcmpReply::PortUnreachable, &body, route.destination, route.source);
            let Some(IcmpMessage::Error(error)) = parse(&packet(destination, source, &bytes)) else {
                panic!("no error")
            };
            assert_eq!((error.flow.local, error.flow.remote), (route.source, route.destination));
            assert_eq!((error.flow.local_port, error.flow.remote_port, error.seq), (80, 90, Seq(256)));
            assert_eq!(error.kind, ErrorKind::PortUnreachable);
            bytes[9] ^= 1;
            assert_eq!(parse(&packet(destination, source, &bytes)), None, "checksum");
        }
    }

    #[test]
    fn multicast_groups_have_ethernet_addresses() {
        let group = solicited_node("fe80::2aa:ff:fe28:9c5a".parse().unwrap());
        assert_eq!(group, "ff02::1:ff28:9c5a".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac(group.into()), Some([0x33, 0x33, 0xff, 0x28, 0x9c, 0x5a]));
        assert_eq!(multicast_mac("239.129.1.2".parse().unwrap()), Some([1, 0, 0x5e, 1, 1, 2]));
        assert_eq!(multicast_mac("10.0.0.1".parse().unwrap()), None);
    }
}
