//! Host functions other than TCP: ARP, neighbour discovery, ICMP, UDP and checksum offloads.

mod common;

use abey_tcpip::{
    ChecksumToFill, Frames, Instant, IoError, LocalEndpoint, OpenError, Readiness, Resolution, SocketError, Stack,
};
use common::{Impairment, MILLISECOND, Network, SECOND, settings, stack};
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv6Packet,
    IpProtocol, Ipv4Packet, Ipv6Packet, NdiscNeighborFlags, checksum,
};

const NOW: Instant = Instant(SECOND);
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn host() -> Stack {
    stack(settings(1), 7)
}

fn sent(stack: &mut Stack) -> Vec<Vec<u8>> {
    let mut out = Frames::default();
    stack.poll_transmit_burst(NOW, &mut out, 4096);
    out.frames
}

fn arp(operation: ArpOperation, from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    let repr = ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr: EthernetAddress(OTHER_MAC),
        source_protocol_addr: from.into(),
        target_hardware_addr: EthernetAddress([0; 6]),
        target_protocol_addr: to.into(),
    };
    let mut frame = vec![0; 14 + repr.buffer_len()];
    let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
    ethernet.set_src_addr(EthernetAddress(OTHER_MAC));
    ethernet.set_dst_addr(EthernetAddress::BROADCAST);
    ethernet.set_ethertype(EthernetProtocol::Arp);
    repr.emit(&mut ArpPacket::new_unchecked(&mut frame[14..]));
    frame
}

fn v4(destination: [u8; 4], protocol: u8, payload: &[u8], change: impl FnOnce(&mut Ipv4Packet<&mut [u8]>)) -> Vec<u8> {
    let mut frame = [&OWN[..], &OTHER_MAC, &[8, 0, 0x45, 0]].concat();
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 9]);
    frame.extend(destination);
    frame.extend(payload);
    let mut packet = Ipv4Packet::new_unchecked(&mut frame[14..]);
    change(&mut packet);
    packet.fill_checksum();
    frame
}

fn v6(source: &str, destination: &str, next: u8, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap();
    let (source, destination) = (address(source), address(destination));
    let mut frame = [&OWN[..], &OTHER_MAC, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
    if destination.is_multicast() {
        frame[..6].copy_from_slice(&[0x33, 0x33, 0xff, 0, 0, 1]);
    }
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, hop_limit]);
    frame.extend(source.octets());
    frame.extend(destination.octets());
    frame.extend(payload);
    if next == 58 {
        Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&source, &destination);
    }
    frame
}

#[test]
fn arp_is_answered_for_the_hosts_own_addresses_only() {
    let mut host = host();
    host.handle_frame(NOW, &arp(ArpOperation::Request, [10, 0, 0, 9], [10, 0, 0, 5]));
    assert!(sent(&mut host).is_empty() && host.neighbor_count() == 0);
    for asker in [[10, 0, 0, 9], [0; 4]] {
        host.handle_frame(NOW, &arp(ArpOperation::Request, asker, [10, 0, 0, 1]));
        let answers = sent(&mut host);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0][..6], OTHER_MAC);
        let repr = ArpRepr::parse(&ArpPacket::new_checked(&answers[0][14..]).unwrap()).unwrap();
        let ArpRepr::EthernetIpv4 { operation, source_hardware_addr, source_protocol_addr, .. } = repr else {
            panic!("{repr}")
        };
        assert_eq!((operation, source_hardware_addr.0), (ArpOperation::Reply, OWN));
        assert_eq!(source_protocol_addr.octets(), [10, 0, 0, 1]);
    }
    // Only the sender of the request was recorded: an unsolicited reply adds no entry.
    assert_eq!(host.neighbor_count(), 1);
    host.handle_frame(NOW, &arp(ArpOperation::Reply, [10, 0, 0, 8], [10, 0, 0, 1]));
    assert_eq!(host.neighbor_count(), 1);
    // A request from the host's own address, and a truncated packet.
    host.handle_frame(NOW, &arp(ArpOperation::Request, [10, 0, 0, 1], [10, 0, 0, 1]));
    host.handle_frame(NOW, &arp(ArpOperation::Request, [10, 0, 0, 9], [10, 0, 0, 1])[..30]);
    assert_eq!((host.counters().neighbor_in_errors, sent(&mut host).len()), (2, 0));
}

#[test]
fn neighbour_solicitations_are_answered_if_they_crossed_no_router() {
    let mut host = host();
    let mut body = vec![135, 0, 0, 0, 0, 0, 0, 0];
    body.extend("fd00::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    let solicit = [&body[..], &[1, 1], &OTHER_MAC].concat();
    host.handle_frame(NOW, &v6("fd00::9", "ff02::1:ff00:1", 58, 254, &solicit));
    assert_eq!((sent(&mut host).len(), host.counters().neighbor_in_errors), (0, 1));
    host.handle_frame(NOW, &v6("fd00::9", "ff02::1:ff00:1", 58, 255, &solicit));
    let answer = sent(&mut host).remove(0);
    let packet = Ipv6Packet::new_checked(&answer[14..]).unwrap();
    let icmp = Icmpv6Packet::new_checked(packet.payload()).unwrap();
    assert!(icmp.verify_checksum(&packet.src_addr(), &packet.dst_addr()));
    assert_eq!((packet.hop_limit(), answer[..6].to_vec()), (255, OTHER_MAC.to_vec()));
    assert_eq!(icmp.neighbor_flags(), NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE);
    // Duplicate address detection (RFC 4862): the answer is sent to all nodes.
    host.handle_frame(NOW, &v6("::", "ff02::1:ff00:1", 58, 255, &body));
    let answer = sent(&mut host).remove(0);
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(
        Ipv6Packet::new_checked(&answer[14..]).unwrap().dst_addr(),
        "ff02::1".parse::<std::net::Ipv6Addr>().unwrap()
    );
}

#[test]
fn echo_requests_are_answered_at_a_limited_rate() {
    let mut own = settings(1);
    own.icmp_rate = 40;
    let mut host = stack(own, 7);
    host.insert_neighbor(NOW, [10, 0, 0, 9].into(), OTHER_MAC);
    host.insert_neighbor(NOW, "fd00::9".parse().unwrap(), OTHER_MAC);
    let mut echo = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1, b'a', b'b', b'c'];
    Icmpv4Packet::new_unchecked(&mut echo[..]).fill_checksum();
    host.handle_frame(NOW, &v4([10, 0, 0, 1], 1, &echo, |_| ()));
    let reply = sent(&mut host).remove(0);
    let icmp = Icmpv4Packet::new_checked(&reply[34..]).unwrap();
    assert!(icmp.verify_checksum());
    assert_eq!((u8::from(icmp.msg_type()), icmp.echo_ident(), icmp.data()), (0, 0x1234, &b"abc"[..]));
    host.handle_frame(NOW, &v6("fd00::9", "fd00::1", 58, 64, &[128, 0, 0, 0, 0, 7, 0, 1, 9]));
    let reply = sent(&mut host).remove(0);
    assert_eq!((reply[54], &reply[58..]), (129, &[0, 7, 0, 1, 9][..]));
    for _ in 0..20 {
        host.handle_frame(NOW, &v4([10, 0, 0, 1], 1, &echo, |_| ()));
    }
    // One address gets a quarter of 40 replies, give or take half, and one was sent before.
    let answered = sent(&mut host).len();
    assert!((4..15).contains(&answered), "{answered}");
    assert_eq!(host.counters().icmp_out_rate_limited, 20 - answered as u64);
    // A request to a broadcast address is not answered, and neither is one with a wrong checksum.
    host.handle_frame(Instant(2 * SECOND), &v4([10, 0, 0, 255], 1, &echo, |_| ()));
    echo[8] ^= 1;
    host.handle_frame(Instant(2 * SECOND), &v4([10, 0, 0, 1], 1, &echo, |_| ()));
    assert_eq!((sent(&mut host).len(), host.counters().icmp_in_errors), (0, 1));
}

#[test]
fn fragments_martians_and_other_hosts_frames_are_counted() {
    let mut host = host();
    host.handle_frame(NOW, &v4([10, 0, 0, 1], 6, &[0; 16], |packet| packet.set_more_frags(true)));
    host.handle_frame(NOW, &v4([10, 0, 0, 1], 6, &[0; 16], |packet| packet.set_frag_offset(8)));
    host.handle_frame(NOW, &v6("fd00::9", "fd00::1", 44, 64, &[17, 0, 0, 1, 0, 0, 0, 0, 0, 0]));
    assert_eq!(host.counters().ip_reassembly_failures, 3);
    for source in [[127, 0, 0, 1], [224, 0, 0, 1], [10, 0, 0, 255], [10, 0, 0, 1], [0; 4]] {
        host.handle_frame(NOW, &v4([10, 0, 0, 1], 17, &[0; 16], |packet| packet.set_src_addr(source.into())));
    }
    assert_eq!(host.counters().ip_in_martians, 5);
    host.handle_frame(NOW, &v4([10, 0, 0, 77], 17, &[0; 16], |_| ()));
    host.handle_frame(NOW, &v4([10, 0, 0, 1], 99, &[0; 16], |_| ()));
    host.handle_frame(NOW, &v4([10, 0, 0, 1], 6, &[0; 16], |_| ()));
    host.handle_frame(NOW, &v4([10, 0, 0, 1], 17, &[0; 4], |_| ()));
    let counters = host.counters();
    assert_eq!((counters.ip_in_address_errors, counters.ip_in_unknown_protocols), (1, 1));
    assert_eq!((counters.tcp_in_errors, counters.udp_in_errors), (1, 1));
    assert!(sent(&mut host).is_empty());
}

/// Returns a host that has loopback addresses and passes its frames to itself.
fn looped_host() -> Stack {
    let mut own = settings(1);
    own.hairpin = true;
    own.addresses.extend([([127, 0, 0, 1].into(), 8), ("::1".parse().unwrap(), 128)]);
    stack(own, 7)
}

/// Passes frames back until there are none. Returns their number.
fn run_loop(host: &mut Stack) -> usize {
    let mut count = 0;
    loop {
        let frames = sent(host);
        if frames.is_empty() {
            return count;
        }
        assert!(frames.iter().all(|frame| frame[..6] == OWN), "no frame is for another host");
        host.handle_looped(NOW, frames.iter().map(|frame| &frame[..]));
        count += frames.len();
    }
}

#[test]
fn with_hairpin_a_host_connects_to_its_own_addresses() {
    let pairs = [
        ("10.0.0.1", "10.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.9.9.9", "127.0.0.1"),
        ("fd00::1", "fd00::1"),
        ("::1", "::1"),
    ];
    for (to, from) in pairs {
        let mut host = looped_host();
        let to = std::net::SocketAddr::new(to.parse().unwrap(), 80);
        let listener = host.listen(to, 8).unwrap();
        let client = host.connect(NOW, to).unwrap();
        run_loop(&mut host);
        let server = host.accept(listener).unwrap();
        assert_eq!(host.local_addr(client).unwrap().ip(), from.parse::<std::net::IpAddr>().unwrap());
        assert_eq!(host.local_addr(client), host.peer_addr(server));
        let data: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
        let (mut written, mut read, mut buffer) = (0, Vec::<u8>::new(), [0; 4096]);
        while read.len() < data.len() {
            written += host.write(client, &data[written..]).unwrap_or(0);
            run_loop(&mut host);
            while let Ok(count @ 1..) = host.read(server, &mut buffer) {
                read.extend(&buffer[..count]);
            }
        }
        assert!(read == data, "{to}");
        host.close(NOW, client).unwrap();
        run_loop(&mut host);
        host.close(NOW, server).unwrap();
        run_loop(&mut host);
        assert_eq!((host.socket_count(), host.time_wait_count()), (1, 1));
    }
}

#[test]
fn with_hairpin_a_closed_port_refuses_tcp_and_udp() {
    let mut host = looped_host();
    let stream = host.connect(NOW, "127.0.0.1:81".parse().unwrap()).unwrap();
    run_loop(&mut host);
    assert_eq!(host.take_error(stream), Ok(Some(SocketError::Refused)));
    let datagram = host.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    host.connect_datagram(datagram, Some("127.0.0.1:81".parse().unwrap())).unwrap();
    host.send_to(datagram, b"x", None).unwrap();
    run_loop(&mut host);
    assert_eq!(host.take_error(datagram), Ok(Some(SocketError::Refused)));
}

#[test]
fn a_datagram_to_the_hosts_own_address_arrives() {
    let mut host = looped_host();
    let (a, b) = (host.bind("[::1]:5".parse().unwrap()).unwrap(), host.bind("[::]:6".parse().unwrap()).unwrap());
    host.send_to(a, b"ping", Some("[::1]:6".parse().unwrap())).unwrap();
    run_loop(&mut host);
    let mut buffer = [0; 8];
    let (count, from, to) = host.recv_from(b, &mut buffer).unwrap();
    assert_eq!((&buffer[..count], from, to), (&b"ping"[..], "[::1]:5".parse().unwrap(), "::1".parse().unwrap()));
}

#[test]
fn a_connection_attempt_to_its_own_endpoint_fails() {
    let mut host = looped_host();
    let local = LocalEndpoint { port: Some(80), ..LocalEndpoint::default() };
    let at = "127.0.0.1:80".parse().unwrap();
    assert_eq!(host.connect_from(NOW, local, at, |_| true), Err(OpenError::AddressInUse(at)));
}

#[test]
fn loopback_and_own_source_addresses_never_come_from_the_wire() {
    let mut host = looped_host();
    host.bind("0.0.0.0:7".parse().unwrap()).unwrap();
    let datagram = [0, 9, 0, 7, 0, 8, 0, 0];
    host.handle_frame(NOW, &v4([127, 0, 0, 1], 17, &datagram, |_| ()));
    for source in [[127, 0, 0, 1], [10, 0, 0, 1]] {
        host.handle_frame(NOW, &v4([10, 0, 0, 1], 17, &datagram, |packet| packet.set_src_addr(source.into())));
    }
    assert_eq!((host.counters().ip_in_martians, host.counters().udp_in_datagrams), (3, 0));
    host.handle_frame(NOW, &v4([10, 0, 0, 1], 17, &datagram, |_| ()));
    assert_eq!(host.counters().udp_in_datagrams, 1);
    // No host on the wire learns that this one has a loopback address.
    host.handle_frame(NOW, &arp(ArpOperation::Request, [10, 0, 0, 9], [127, 0, 0, 1]));
    assert!(sent(&mut host).is_empty());
}

fn network() -> Network {
    let impairment = Impairment { delay: MILLISECOND, ..Impairment::default() };
    Network::new([stack(settings(1), 1), stack(settings(2), 2)], impairment, 1)
}

#[test]
fn datagrams_go_both_ways_and_connected_sockets_receive_from_their_peer_only() {
    let mut network = network();
    for (to, from) in [("10.0.0.2:53", "10.0.0.1"), ("[fd00::2]:53", "fd00::1")] {
        let server = network.hosts[1].bind("[::]:53".parse().unwrap()).unwrap();
        assert_eq!(
            network.hosts[1].bind("[::]:53".parse().unwrap()),
            Err(OpenError::AddressInUse("[::]:53".parse().unwrap()))
        );
        let client = network.hosts[0].bind("[::]:0".parse().unwrap()).unwrap();
        assert_eq!(network.hosts[0].send_to(client, b"x", None), Err(IoError::NotConnected));
        assert!(matches!(
            network.hosts[0].send_to(client, &[0; 65_528], Some(to.parse().unwrap())),
            Err(IoError::MessageTooLong(_))
        ));
        network.hosts[0].send_to(client, b"question", Some(to.parse().unwrap())).unwrap();
        network.run(10 * MILLISECOND);
        let mut buffer = [0; 100];
        let (len, peer, own) = network.hosts[1].recv_from(server, &mut buffer).unwrap();
        assert_eq!((&buffer[..len], peer.ip().to_string().as_str()), (&b"question"[..], from));
        assert_eq!(own, to.parse::<std::net::SocketAddr>().unwrap().ip());
        assert_eq!(network.hosts[1].recv_from(server, &mut buffer), Err(IoError::WouldBlock));
        // The client connects to another peer.
        let other = if to.starts_with('[') { "[fd00::3]:53" } else { "10.0.0.3:53" };
        network.hosts[0].connect_datagram(client, Some(other.parse().unwrap())).unwrap();
        network.hosts[1].send_to(server, b"answer", Some(peer)).unwrap();
        network.run(10 * MILLISECOND);
        assert_eq!(network.hosts[0].recv_from(client, &mut buffer), Err(IoError::WouldBlock));
        network.hosts[0].connect_datagram(client, Some(to.parse().unwrap())).unwrap();
        network.hosts[1].send_to(server, b"answer", Some(peer)).unwrap();
        network.run(10 * MILLISECOND);
        assert_eq!(network.hosts[0].peek_from(client, &mut buffer).unwrap().0, 6);
        assert_eq!(network.hosts[0].recv_from(client, &mut buffer).unwrap().0, 6);
        // The socket is closed; its host answers with port unreachable.
        let now = network.at();
        network.hosts[1].close(now, server).unwrap();
        network.hosts[0].send_to(client, b"question", None).unwrap();
        network.run(10 * MILLISECOND);
        assert!(network.hosts[0].readiness(client).contains(Readiness::ERROR));
        assert_eq!(network.hosts[0].recv_from(client, &mut buffer), Err(IoError::Network(SocketError::Refused)));
        network.hosts[0].close(now, client).unwrap();
    }
}

#[test]
fn a_connected_socket_releases_its_bound_address() {
    let mut network = network();
    let at = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
    let clients = [7000, 7001].map(|port| network.hosts[0].bind(at(&format!("10.0.0.1:{port}"))).unwrap());
    let server = &mut network.hosts[1];
    let first = server.bind(at("0.0.0.0:53")).unwrap();
    server.connect_datagram(first, Some(at("10.0.0.1:7000"))).unwrap();
    assert_eq!(server.local_addr(first), Ok(at("10.0.0.2:53")));
    let second = server.bind(at("0.0.0.0:53")).unwrap();
    let same = server.connect_datagram(second, Some(at("10.0.0.1:7000")));
    assert_eq!(same, Err(IoError::AddressInUse(at("10.0.0.2:53"))));
    for client in clients {
        network.hosts[0].send_to(client, b"hello", Some(at("10.0.0.2:53"))).unwrap();
    }
    network.run(10 * MILLISECOND);
    for (socket, port) in [(first, 7000), (second, 7001)] {
        let peer = network.hosts[1].receive_with(socket, false, |message| (message.peer.port(), message.payload.len()));
        assert_eq!(peer, Ok((port, 5)));
        assert_eq!(network.hosts[1].recv_from(socket, &mut [0; 8]), Err(IoError::WouldBlock));
    }
    // The other socket has the address. After it is closed, the first one can bind it again.
    let server = &mut network.hosts[1];
    server.connect_datagram(first, None).unwrap();
    assert_eq!(server.local_addr(first), Ok(at("0.0.0.0:53")));
    server.close(NOW, second).unwrap();
    server.connect_datagram(first, None).unwrap();
    let from_other = server.send_from(first, b"x", Some(at("10.0.0.1:7000")), Some([10, 0, 0, 3].into()));
    assert_eq!(from_other, Err(IoError::NoRoute([10, 0, 0, 1].into())));
    network.hosts[0].send_to(clients[0], b"", Some(at("10.0.0.2:53"))).unwrap();
    network.run(10 * MILLISECOND);
    assert_eq!(network.hosts[1].next_datagram_bytes(first), Ok(Some(0)));
}

#[test]
fn unresolved_neighbours_are_removed() {
    let mut network = network();
    let client = network.hosts[0].bind("0.0.0.0:0".parse().unwrap()).unwrap();
    network.hosts[0].send_to(client, b"x", Some("10.0.0.99:9".parse().unwrap())).unwrap();
    let now = network.at();
    let stream = network.hosts[0].connect(now, "10.0.0.98:9".parse().unwrap()).unwrap();
    assert_eq!(
        network.hosts[0].send_to(client, b"x", Some("192.0.2.1:9".parse().unwrap())),
        Err(IoError::NoRoute([192, 0, 2, 1].into()))
    );
    network.run(10 * SECOND);
    let counters = network.hosts[0].counters();
    assert_eq!((counters.neighbor_solicitations, counters.neighbor_failures), (6, 2));
    assert_eq!(network.hosts[0].take_error(stream), Ok(Some(SocketError::HostUnreachable)));
    assert_eq!((network.hosts[0].neighbor_count(), network.hosts[0].poll_timeout()), (0, None));
}

#[test]
fn with_external_resolution_the_caller_is_asked() {
    let mut own = settings(1);
    own.resolution = Resolution::External;
    let mut host = stack(own, 7);
    host.handle_frame(NOW, &arp(ArpOperation::Request, [10, 0, 0, 9], [10, 0, 0, 1]));
    let id = host.connect(NOW, "10.0.0.9:80".parse().unwrap()).unwrap();
    assert!(sent(&mut host).is_empty());
    assert_eq!(host.poll_neighbor_request(), Some([10, 0, 0, 9].into()));
    assert_eq!(host.poll_neighbor_request(), None);
    host.insert_neighbor(NOW, [10, 0, 0, 9].into(), OTHER_MAC);
    let frames = sent(&mut host);
    assert_eq!((frames.len(), frames[0][..6].to_vec()), (1, OTHER_MAC.to_vec()));
    host.abort(NOW, id).unwrap();
}

#[test]
fn external_answers_expire_and_failures_take_effect_at_once() {
    let mut own = settings(1);
    own.resolution = Resolution::External;
    let mut host = stack(own, 7);
    let address = [10, 0, 0, 9].into();
    host.answer_neighbor(NOW, address, OTHER_MAC);
    assert_eq!(host.neighbor_count(), 0, "not requested");
    let (stream, to) = (host.connect(NOW, "10.0.0.9:80".parse().unwrap()).unwrap(), "10.0.0.9:80".parse().unwrap());
    assert!(sent(&mut host).is_empty());
    assert_eq!(host.poll_neighbor_request(), Some(address));
    host.answer_neighbor(NOW, address, OTHER_MAC);
    assert_eq!(sent(&mut host)[0][..6], OTHER_MAC);
    let local = host.local_addr(stream).unwrap();
    assert!(host.has_flow(local, to) && host.has_flow_at(local.port()) && !host.has_flow_at(local.port() ^ 1));
    host.abort(NOW, stream).unwrap();
    assert!(!host.has_flow(local, to) && !host.has_flow_at(local.port()));
    // Half a minute later the next packet triggers a new request and is sent to the known address.
    let later = Instant(NOW.0 + 31 * SECOND);
    let second = host.connect(later, to).unwrap();
    let mut frame = vec![0; host.frame_capacity()];
    assert!(host.poll_transmit(later, &mut frame).is_some());
    assert_eq!((host.poll_neighbor_request(), host.poll_neighbor_request()), (Some(address), None));
    host.fail_neighbor(later, address);
    assert_eq!((host.neighbor_count(), host.take_error(second)), (0, Ok(None)), "its packet was sent");
    host.abort(later, second).unwrap();
    // During resolution, a failure is reported to the waiting connection.
    let third = host.connect(later, to).unwrap();
    assert!(host.poll_transmit(later, &mut frame).is_none());
    assert_eq!(host.poll_neighbor_request(), Some(address));
    host.fail_neighbor(later, address);
    assert_eq!(host.take_error(third), Ok(Some(SocketError::HostUnreachable)));
}

#[test]
fn offloaded_checksums_are_marked_and_can_be_completed() {
    let mut own = settings(1);
    own.offloads.transmit_filled = true;
    let mut host = stack(own, 7);
    host.insert_neighbor(NOW, [10, 0, 0, 9].into(), OTHER_MAC);
    host.connect(NOW, "10.0.0.9:80".parse().unwrap()).unwrap();
    let datagrams = host.bind("0.0.0.0:0".parse().unwrap()).unwrap();
    host.send_to(datagrams, b"abc", Some("10.0.0.9:53".parse().unwrap())).unwrap();
    for (protocol, offset) in [(IpProtocol::Tcp, 16), (IpProtocol::Udp, 6)] {
        let mut frame = vec![0; host.frame_capacity()];
        let (len, info) = host.poll_transmit(NOW, &mut frame).unwrap();
        assert_eq!(info.checksum, Some(ChecksumToFill { start: 34, offset }));
        let sum = !checksum::data(&frame[34..len]);
        frame[34 + offset..36 + offset].copy_from_slice(&sum.to_be_bytes());
        let (source, destination): (std::net::IpAddr, std::net::IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 9].into());
        let pseudo = checksum::pseudo_header(&source.into(), &destination.into(), protocol, (len - 34) as u32);
        assert_eq!(checksum::combine(&[pseudo, checksum::data(&frame[34..len])]), 0xffff);
    }
    host.insert_neighbor(NOW, "fd00::9".parse().unwrap(), OTHER_MAC);
    host.handle_frame(NOW, &v6("fd00::9", "fd00::1", 58, 64, &[128, 0, 0, 0, 0, 7, 0, 1, 9]));
    let mut frame = vec![0; host.frame_capacity()];
    assert_eq!(host.poll_transmit(NOW, &mut frame).unwrap().1.checksum, None, "ICMP is complete");
}

#[test]
fn ports_pass_the_filter_and_addresses_are_the_hosts_own() {
    let mut host = host();
    let to = "10.0.0.9:80".parse().unwrap();
    for _ in 0..50 {
        let id = host.connect_from(NOW, abey_tcpip::LocalEndpoint::default(), to, |port| port % 4 == 3).unwrap();
        assert_eq!(host.local_addr(id).unwrap().port() % 4, 3);
    }
    assert_eq!(host.connect_from(NOW, abey_tcpip::LocalEndpoint::default(), to, |_| false), Err(OpenError::NoPort(to)));
    let fixed = abey_tcpip::LocalEndpoint { address: None, port: Some(5000), ..Default::default() };
    host.connect_from(NOW, fixed, to, |_| true).unwrap();
    assert!(matches!(host.connect_from(NOW, fixed, to, |_| true), Err(OpenError::AddressInUse(_))));
    assert!(matches!(host.listen("10.0.0.7:80".parse().unwrap(), 1), Err(OpenError::AddressNotAvailable(_))));
    assert!(matches!(host.connect(NOW, "192.0.2.1:80".parse().unwrap()), Err(OpenError::NoRoute(_))));
    assert!(matches!(host.connect(NOW, "10.0.0.255:80".parse().unwrap()), Err(OpenError::BadDestination(_))));
}

/// Link of 100 Mbit/s with a queue of one bandwidth-delay product: CUBIC and Reno use it fully, with and without
/// loss.
#[test]
fn a_bottleneck_is_filled() {
    use abey_tcpip::CongestionControl::{Cubic, Reno};
    for (control, loss, least) in [(Cubic, 0.0, 0.85), (Reno, 0.0, 0.85), (Cubic, 0.0001, 0.5)] {
        let mut own = settings(1);
        own.congestion_control = control;
        let impairment =
            Impairment { delay: 10 * MILLISECOND, per_byte: 80, queue: 250_000, loss, ..Impairment::default() };
        let mut network = Network::new([stack(own, 1), stack(settings(2), 2)], impairment, 1);
        let listener = network.hosts[1].listen("0.0.0.0:9".parse().unwrap(), 1).unwrap();
        let now = network.at();
        let sender = network.hosts[0].connect(now, "10.0.0.2:9".parse().unwrap()).unwrap();
        let (mut receiver, mut received) = (None, 0);
        let mut buffer = vec![0; 1 << 20];
        let end = network.now + 20 * SECOND;
        while network.step(end) {
            while network.hosts[0].write(sender, &buffer[..65_536]).is_ok() {}
            receiver = receiver.or_else(|| network.hosts[1].accept(listener).ok());
            if let Some(id) = receiver {
                received += network.hosts[1].read(id, &mut buffer).unwrap_or(0);
            }
        }
        let share = received as f64 / (20.0 * 12_500_000.0);
        eprintln!("{control:?} with loss {loss}: {:.0} % of the link", share * 100.0);
        assert!(share > least, "{control:?} {share} {:#?}", network.hosts[0].counters());
    }
}

/// RFC 791 and RFC 8200: datagrams that are longer than a packet are sent in fragments and reassembled, in any order. Lost,
/// repeated and overlapping fragments deliver nothing.
#[test]
fn long_datagrams_are_sent_in_fragments() {
    for (to, longest) in [("10.0.0.2:53", 65_507), ("[fd00::2]:53", 65_527)] {
        let mut network = network();
        let server = network.hosts[1].bind("[::]:53".parse().unwrap()).unwrap();
        let client = network.hosts[0].bind("[::]:0".parse().unwrap()).unwrap();
        for len in [1473, 5000, longest] {
            let payload: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            assert_eq!(network.hosts[0].send_to(client, &payload, Some(to.parse().unwrap())), Ok(len));
            network.run(10 * MILLISECOND);
            let mut buffer = vec![0; 70_000];
            let (received, ..) = network.hosts[1].recv_from(server, &mut buffer).unwrap();
            assert!(buffer[..received] == payload, "{len} bytes to {to}");
        }
        assert_eq!(network.hosts[1].counters().ip_reassembled, 3);
        assert!(network.hosts[0].counters().ip_fragments_created > 45);
        // IP_PMTUDISC_DO.
        network.hosts[0].set_fragmentation(client, false).unwrap();
        assert!(matches!(
            network.hosts[0].send_to(client, &[0; 1473], Some(to.parse().unwrap())),
            Err(IoError::MessageTooLong(1452..=1472))
        ));
    }
}
