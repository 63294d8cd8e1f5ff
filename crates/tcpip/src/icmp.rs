//! ICMP and ICMPv6: echo, errors in both directions, and what an error is about (RFC 792, RFC 4443, RFC 1191, RFC 8201).
//!
//! An error quotes the packet it is about. It is believed only as far as the quote shows knowledge of something that is
//! really on its way: the caller checks the flow, and for TCP that the sequence number is in flight (RFC 5927).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{Icmpv4Message, Icmpv4Packet, Icmpv6Message, Icmpv6Packet, IpProtocol, Ipv4Packet, Ipv6Packet};

use crate::{flow::Flow, packet::Packet, tcp::seq::Seq};

/// Bytes of an ICMP header.
const HEADER: usize = 8;
/// Bytes of the offending packet that an error quotes at most: the whole error fits the least MTU.
const QUOTE: (usize, usize) = (548, 1232);

/// What an error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    PortUnreachable,
    HostUnreachable,
    NetworkUnreachable,
    /// The path takes packets of so many bytes; zero from routers that do not know RFC 1191.
    TooBig(u32),
    Other,
}

/// An error about a packet of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub flow: Flow,
    pub protocol: IpProtocol,
    /// The TCP sequence number of the quoted packet.
    pub seq: Seq,
    pub kind: Kind,
}

/// What an ICMP message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// An echo request; the answer carries these bytes after its type, code and checksum.
    EchoRequest(&'a [u8]),
    Error(Notice),
    /// Neighbour discovery, which is another file's.
    Neighbor,
    /// Something nobody needs.
    Ignored,
}

/// Reads a message; `None` if it is cut short or its checksum is wrong.
pub(crate) fn parse<'a>(packet: &Packet<'a>) -> Option<Message<'a>> {
    match (packet.source, packet.destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => parse_v4(packet.payload),
        (IpAddr::V6(source), IpAddr::V6(destination)) => parse_v6(packet.payload, source, destination),
        _ => None,
    }
}

fn parse_v4(bytes: &[u8]) -> Option<Message<'_>> {
    let icmp = Icmpv4Packet::new_checked(bytes).ok()?;
    if bytes.len() < HEADER || !icmp.verify_checksum() {
        return None;
    }
    let kind = match (icmp.msg_type(), icmp.msg_code()) {
        (Icmpv4Message::EchoRequest, 0) => return Some(Message::EchoRequest(&bytes[4..])),
        (Icmpv4Message::DstUnreachable, 0 | 6) => Kind::NetworkUnreachable,
        (Icmpv4Message::DstUnreachable, 3) => Kind::PortUnreachable,
        (Icmpv4Message::DstUnreachable, 4) => Kind::TooBig(u16::from_be_bytes([bytes[6], bytes[7]]).into()),
        (Icmpv4Message::DstUnreachable, 1 | 7) => Kind::HostUnreachable,
        (Icmpv4Message::DstUnreachable | Icmpv4Message::TimeExceeded, _) => Kind::Other,
        _ => return Some(Message::Ignored),
    };
    let quoted = &bytes[HEADER..];
    if quoted.len() < 20 {
        return None;
    }
    let ip = Ipv4Packet::new_unchecked(quoted);
    let header = usize::from(ip.header_len());
    if ip.version() != 4 || header < 20 {
        return None;
    }
    let transport = quoted.get(header..)?;
    notice(IpAddr::V4(ip.src_addr()), IpAddr::V4(ip.dst_addr()), ip.next_header(), transport, kind)
}

fn parse_v6(bytes: &[u8], source: Ipv6Addr, destination: Ipv6Addr) -> Option<Message<'_>> {
    let icmp = Icmpv6Packet::new_checked(bytes).ok()?;
    if bytes.len() < HEADER || !icmp.verify_checksum(&source, &destination) {
        return None;
    }
    let word = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let kind = match (icmp.msg_type(), icmp.msg_code()) {
        (Icmpv6Message::EchoRequest, 0) => return Some(Message::EchoRequest(&bytes[4..])),
        (Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert, 0) => return Some(Message::Neighbor),
        (Icmpv6Message::DstUnreachable, 0) => Kind::NetworkUnreachable,
        (Icmpv6Message::DstUnreachable, 3) => Kind::HostUnreachable,
        (Icmpv6Message::DstUnreachable, 4) => Kind::PortUnreachable,
        (Icmpv6Message::PktTooBig, _) => Kind::TooBig(word),
        (Icmpv6Message::DstUnreachable | Icmpv6Message::TimeExceeded, _) => Kind::Other,
        _ => return Some(Message::Ignored),
    };
    let quoted = &bytes[HEADER..];
    if quoted.len() < 40 {
        return None;
    }
    let ip = Ipv6Packet::new_unchecked(quoted);
    if ip.version() != 6 {
        return None;
    }
    notice(IpAddr::V6(ip.src_addr()), IpAddr::V6(ip.dst_addr()), ip.next_header(), &quoted[40..], kind)
}

/// The quoted packet went from us, so its source is local.
pub(crate) fn notice(
    local: IpAddr,
    remote: IpAddr,
    protocol: IpProtocol,
    transport: &[u8],
    kind: Kind,
) -> Option<Message<'static>> {
    let &[a, b, c, d, s0, s1, s2, s3] = transport.first_chunk::<8>()?;
    let flow = Flow { local, remote, local_port: u16::from_be_bytes([a, b]), remote_port: u16::from_be_bytes([c, d]) };
    Some(Message::Error(Notice { flow, protocol, seq: Seq(u32::from_be_bytes([s0, s1, s2, s3])), kind }))
}

/// Bytes of the ICMP message that [`emit`] writes.
pub(crate) const fn message_len(body: &[u8]) -> usize {
    4 + body.len()
}

/// What a message to be sent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Echo,
    PortUnreachable,
}

/// Writes a message: type and code by `reply`, then `body`, with the checksum.
pub(crate) fn emit(buffer: &mut [u8], reply: Reply, body: &[u8], source: IpAddr, destination: IpAddr) {
    buffer[4..].copy_from_slice(body);
    let (kind, code) = match (reply, source) {
        (Reply::Echo, IpAddr::V4(_)) => (u8::from(Icmpv4Message::EchoReply), 0),
        (Reply::Echo, IpAddr::V6(_)) => (u8::from(Icmpv6Message::EchoReply), 0),
        (Reply::PortUnreachable, IpAddr::V4(_)) => (u8::from(Icmpv4Message::DstUnreachable), 3),
        (Reply::PortUnreachable, IpAddr::V6(_)) => (u8::from(Icmpv6Message::DstUnreachable), 4),
    };
    buffer[..4].copy_from_slice(&[kind, code, 0, 0]);
    match (source, destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Icmpv6Packet::new_unchecked(buffer).fill_checksum(&source, &destination);
        }
        _ => Icmpv4Packet::new_unchecked(buffer).fill_checksum(),
    }
}

/// The body of a port unreachable message about `packet`.
pub(crate) fn unreachable_body(packet: &Packet<'_>) -> Vec<u8> {
    let limit = if packet.source.is_ipv4() { QUOTE.0 } else { QUOTE.1 };
    let quote = &packet.whole[..packet.whole.len().min(limit)];
    [&[0; 4], quote].concat()
}

/// The protocol ICMP has over this version of IP.
pub(crate) const fn protocol(address: IpAddr) -> IpProtocol {
    if address.is_ipv4() { IpProtocol::Icmp } else { IpProtocol::Icmpv6 }
}

/// The solicited-node group of an address (RFC 4291, section 2.7.1).
pub(crate) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let octets = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | octets[13] as u16, u16::from_be_bytes([octets[14], octets[15]]))
}

/// The station of a group (RFC 1112, section 6.4; RFC 2464, section 7) or of all.
pub(crate) fn group_station(address: IpAddr) -> Option<[u8; 6]> {
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
                source_station: [2; 6],
                destination_station: [2; 6],
            };
            let mut frame = vec![0; 14 + header + 8];
            crate::packet::emit_headers(&mut frame, &route, IpProtocol::Tcp, 64)
                .copy_from_slice(&[0, 80, 0, 90, 0, 0, 1, 0]);
            let mut quoted = packet(source, destination, &[]);
            quoted.whole = &frame[14..];
            let body = unreachable_body(&quoted);
            let mut bytes = vec![0; message_len(&body)];
            emit(&mut bytes, Reply::PortUnreachable, &body, route.destination, route.source);
            let Some(Message::Error(notice)) = parse(&packet(destination, source, &bytes)) else { panic!("no error") };
            assert_eq!((notice.flow.local, notice.flow.remote), (route.source, route.destination));
            assert_eq!((notice.flow.local_port, notice.flow.remote_port, notice.seq), (80, 90, Seq(256)));
            assert_eq!(notice.kind, Kind::PortUnreachable);
            bytes[9] ^= 1;
            assert_eq!(parse(&packet(destination, source, &bytes)), None, "checksum");
        }
    }

    #[test]
    fn groups_have_stations() {
        let group = solicited_node("fe80::2aa:ff:fe28:9c5a".parse().unwrap());
        assert_eq!(group, "ff02::1:ff28:9c5a".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_station(group.into()), Some([0x33, 0x33, 0xff, 0x28, 0x9c, 0x5a]));
        assert_eq!(group_station("239.129.1.2".parse().unwrap()), Some([1, 0, 0x5e, 1, 1, 2]));
        assert_eq!(group_station("10.0.0.1".parse().unwrap()), None);
    }
}
