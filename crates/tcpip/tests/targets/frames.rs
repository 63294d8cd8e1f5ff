//! Fuzz target: modified frames of every protocol (Ethernet, ARP, IPv4, IPv6, ICMP, neighbour discovery, UDP, TCP).
//!
//! The input selects frames that a host sends, the bytes that change, whether the checksums are corrected, and how
//! time advances. Nothing may panic, the limits must hold, and the stack's answers must be well formed.

use abey_tcpip::{Counters, Frames, Instant, SocketId, Stack};
use smoltcp::wire::{
    ArpPacket, EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv6Packet, IpAddress, IpProtocol, Ipv4Packet,
    Ipv6Packet, TcpPacket, UdpPacket,
};

use super::Choices;
use crate::common::{MILLISECOND, Network, SECOND, settings, stack};

const SOCKETS: usize = 16;
const NEIGHBORS: usize = 8;
const TIME_WAITS: usize = 4;

struct Harness {
    stack: Stack,
    listener: SocketId,
    now: u64,
}

/// Runs one case. Returns the stack's counters.
pub fn run(data: &[u8]) -> Counters {
    let mut choices = Choices::new(data);
    let templates = templates();
    let mut harness = Harness::new();
    while !choices.is_empty() {
        let mut frame = templates[usize::from(choices.byte()) % templates.len()].clone();
        let how = choices.byte();
        for _ in 0..how & 7 {
            let at = usize::from(choices.byte()) % frame.len();
            frame[at] = choices.byte();
        }
        if how & 8 != 0 {
            frame.truncate(usize::from(choices.byte()).min(frame.len()));
        }
        if how & 16 != 0 {
            frame.extend_from_slice(choices.take(usize::from(how >> 5) * 8));
        }
        if how & 32 != 0 {
            fill_checksums(&mut frame);
        }
        harness.receive(&frame);
        if how & 128 != 0 {
            harness.advance([MILLISECOND, SECOND, 40 * SECOND][usize::from(choices.byte() % 3)]);
        }
    }
    harness.advance(400 * SECOND);
    *harness.stack.counters()
}

impl Harness {
    fn new() -> Self {
        let mut own = settings(2);
        (own.sockets, own.neighbors, own.time_waits) = (SOCKETS, NEIGHBORS, TIME_WAITS);
        own.receive_buffer = 4096;
        own.receive_buffer_limit = 4096;
        let mut stack = stack(own, 7);
        let listener = stack.listen("[::]:80".parse().unwrap(), 4).unwrap();
        stack.bind("[::]:53".parse().unwrap()).unwrap();
        stack.connect(Instant(SECOND), "10.0.0.1:7".parse().unwrap()).unwrap();
        Self { stack, listener, now: SECOND }
    }

    fn receive(&mut self, frame: &[u8]) {
        self.stack.handle_frame(Instant(self.now), frame);
        while let Ok(id) = self.stack.accept(self.listener) {
            _ = self.stack.write(id, &[1; 3000]);
            _ = self.stack.read(id, &mut [0; 100]);
        }
        self.check();
    }

    fn advance(&mut self, span: u64) {
        let end = self.now + span;
        for _ in 0..10_000 {
            let Some(at) = self.stack.poll_timeout().filter(|at| at.0 <= end) else { break };
            self.now = self.now.max(at.0);
            self.stack.handle_timeout(Instant(self.now));
            self.check();
        }
        self.now = end;
        self.stack.handle_timeout(Instant(end));
        self.check();
    }

    fn check(&mut self) {
        let mut out = Frames::default();
        while self.stack.poll_transmit_burst(Instant(self.now), &mut out, 64) > 0 {
            assert!(out.frames.len() < 2000, "{} frames at once", out.frames.len());
        }
        for frame in &out.frames {
            assert!(frame.len() <= self.stack.frame_capacity());
            assert!(is_well_formed(frame), "{frame:02x?}");
        }
        while self.stack.poll_event().is_some() {}
        self.stack.audit(Instant(self.now)).unwrap();
        assert!(self.stack.socket_count() <= SOCKETS && self.stack.time_wait_count() <= TIME_WAITS);
        assert!(self.stack.flow_count() <= SOCKETS + TIME_WAITS && self.stack.neighbor_count() <= NEIGHBORS);
    }
}

/// Returns frames of two hosts: address resolution, connections, datagrams, refusals, and ICMP messages.
fn templates() -> Vec<Vec<u8>> {
    static FRAMES: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    FRAMES.get_or_init(record).clone()
}

fn record() -> Vec<Vec<u8>> {
    let mut network =
        Network::new([stack(settings(1), 1), stack(settings(2), 2)], crate::common::Impairment::default(), 1);
    network.wires[0].record = Some(Vec::new());
    let listener = network.hosts[1].listen("[::]:80".parse().unwrap(), 4).unwrap();
    for remote in ["10.0.0.2", "[fd00::2]"] {
        let now = network.at();
        for port in [80, 81] {
            let id = network.hosts[0].connect(now, format!("{remote}:{port}").parse().unwrap()).unwrap();
            network.run(SECOND);
            _ = network.hosts[0].write(id, &[5; 100]);
            network.run(SECOND);
            if let Ok(accepted) = network.hosts[1].accept(listener) {
                // The reset of a connection with unread data is sent to host 0.
                network.hosts[1].close(network.at(), accepted).unwrap();
            }
            let now = network.at();
            network.hosts[0].close(now, id).unwrap();
        }
        for port in [53, 99] {
            let socket = network.hosts[0].bind("[::]:0".parse().unwrap()).unwrap();
            network.hosts[0].send_to(socket, &[9; 40], Some(format!("{remote}:{port}").parse().unwrap())).unwrap();
        }
        network.run(40 * SECOND);
    }
    let mut frames = network.wires[0].record.take().unwrap_or_default();
    // A stack sends no echo requests and few errors, so they are built here.
    let (mut v4, mut v6) = ([0; 74], [0; 94]);
    for frame in &frames {
        if frame.len() >= 34 && frame[12..14] == [8, 0] {
            v4[..34].copy_from_slice(&frame[..34]);
        }
        if frame.len() >= 54 && frame[12..14] == [0x86, 0xdd] {
            v6[..54].copy_from_slice(&frame[..54]);
        }
    }
    for kind in [8, 3, 11, 12] {
        v4[16..18].copy_from_slice(&60_u16.to_be_bytes());
        (v4[23], v4[34], v4[35]) = (1, kind, if kind == 3 { 4 } else { 0 });
        let quoted: [u8; 20] = v4[14..34].try_into().unwrap();
        v4[42..62].copy_from_slice(&quoted);
        frames.push(v4.to_vec());
    }
    for kind in [128, 1, 2, 3, 133, 134, 135, 136, 137] {
        v6[18..20].copy_from_slice(&40_u16.to_be_bytes());
        (v6[20], v6[21], v6[54]) = (58, 255, kind);
        frames.push(v6.to_vec());
    }
    for frame in &mut frames {
        fill_checksums(frame);
    }
    frames
}

/// Corrects the checksums, as far as the lengths are valid.
fn fill_checksums(frame: &mut [u8]) {
    if frame.len() < 14 {
        return;
    }
    match u16::from_be_bytes([frame[12], frame[13]]) {
        0x0800 => {
            let packet = &mut frame[14..];
            if Ipv4Packet::new_checked(&*packet).is_err() {
                return;
            }
            let mut ip = Ipv4Packet::new_unchecked(packet);
            ip.fill_checksum();
            let (source, destination) = (ip.src_addr(), ip.dst_addr());
            let protocol = ip.next_header();
            fill_transport_checksum(protocol, ip.payload_mut(), source.into(), destination.into());
        }
        0x86dd => {
            let packet = &mut frame[14..];
            if Ipv6Packet::new_checked(&*packet).is_err() {
                return;
            }
            let mut ip = Ipv6Packet::new_unchecked(packet);
            let (source, destination, protocol) = (ip.src_addr(), ip.dst_addr(), ip.next_header());
            fill_transport_checksum(protocol, ip.payload_mut(), source.into(), destination.into());
        }
        _ => {}
    }
}

fn fill_transport_checksum(protocol: IpProtocol, payload: &mut [u8], source: IpAddress, destination: IpAddress) {
    match (protocol, source, destination) {
        (IpProtocol::Tcp, ..) if TcpPacket::new_checked(&*payload).is_ok() => {
            TcpPacket::new_unchecked(payload).fill_checksum(&source, &destination);
        }
        (IpProtocol::Udp, ..) if UdpPacket::new_checked(&*payload).is_ok() => {
            UdpPacket::new_unchecked(payload).fill_checksum(&source, &destination);
        }
        (IpProtocol::Icmp, ..) if payload.len() >= 8 => Icmpv4Packet::new_unchecked(payload).fill_checksum(),
        (IpProtocol::Icmpv6, IpAddress::Ipv6(source), IpAddress::Ipv6(destination)) if payload.len() >= 8 => {
            Icmpv6Packet::new_unchecked(payload).fill_checksum(&source, &destination);
        }
        _ => {}
    }
}

/// Returns whether lengths and checksums are valid.
fn is_well_formed(frame: &[u8]) -> bool {
    let Ok(ethernet) = EthernetFrame::new_checked(frame) else { return false };
    let payload = ethernet.payload();
    match ethernet.ethertype() {
        EthernetProtocol::Arp => ArpPacket::new_checked(payload).is_ok(),
        EthernetProtocol::Ipv4 => Ipv4Packet::new_checked(payload).is_ok_and(|ip| {
            ip.verify_checksum()
                && is_transport_valid(ip.next_header(), ip.payload(), ip.src_addr().into(), ip.dst_addr().into())
        }),
        EthernetProtocol::Ipv6 => Ipv6Packet::new_checked(payload).is_ok_and(|ip| {
            is_transport_valid(ip.next_header(), ip.payload(), ip.src_addr().into(), ip.dst_addr().into())
        }),
        EthernetProtocol::Unknown(_) => false,
    }
}

fn is_transport_valid(protocol: IpProtocol, payload: &[u8], source: IpAddress, destination: IpAddress) -> bool {
    match (protocol, source, destination) {
        (IpProtocol::Tcp, ..) => {
            TcpPacket::new_checked(payload).is_ok_and(|tcp| tcp.verify_checksum(&source, &destination))
        }
        (IpProtocol::Udp, ..) => {
            UdpPacket::new_checked(payload).is_ok_and(|udp| udp.verify_checksum(&source, &destination))
        }
        (IpProtocol::Icmp, ..) => Icmpv4Packet::new_checked(payload).is_ok_and(|icmp| icmp.verify_checksum()),
        (IpProtocol::Icmpv6, IpAddress::Ipv6(source), IpAddress::Ipv6(destination)) => {
            Icmpv6Packet::new_checked(payload).is_ok_and(|icmp| icmp.verify_checksum(&source, &destination))
        }
        _ => false,
    }
}
