//! Frames in: Ethernet, ARP, IP and ICMP, down to whom the rest is for.
//!
//! Every frame that goes no further is counted under the reason.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetFrame, EthernetProtocol, Icmpv6Packet, Icmpv6Repr, IpProtocol, NdiscRepr,
};

use super::{Entry, Socket, Stack, link::Outline};
use crate::{
    config::{MINIMUM_MTU, Resolution},
    error::SocketError,
    flow::{Flow, Target},
    gro::{Gro, Payload, Run},
    icmp::{self, Kind, Message, Notice},
    packet::{ETHERNET_HEADER, Fault, Packet, Station, parse_v4, parse_v6},
    tcp::{connection::State, segment},
    time::Instant,
    udp,
};

/// The smallest path MTU that is believed over IPv4: a segment of 512 bytes still fits.
const LEAST_PATH_V4: usize = 552;

impl Stack {
    /// Takes a burst of frames. In-order TCP segments in it are merged before they reach their connection, so larger
    /// bursts cost less per segment; an event loop should hand over what one poll of the queue brought.
    pub fn handle_frames<'a>(&mut self, now: Instant, frames: impl IntoIterator<Item = &'a [u8]>) {
        let mut gro = Gro::default();
        for frame in frames {
            let Some(segment) = self.take_frame(now, frame) else { continue };
            let open = gro.len();
            if let Some(run) = gro.push(segment) {
                self.receive_run(now, run);
            }
            if gro.len() > open
                && let Some(flow) = gro.newest()
            {
                self.warm(flow);
            }
        }
        for run in gro.finish() {
            self.receive_run(now, run);
        }
    }

    /// Brings a connection that will be wanted soon into the cache. Nothing waits for what is loaded here, so the next
    /// frames are looked at meanwhile; with thousands of connections that is what a burst costs most.
    fn warm(&self, flow: &Flow) {
        if let Some(Target::Connection(id)) = self.flows.find(flow)
            && let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get(id)
        {
            connection.warm();
            self.wheel.warm(id);
        }
    }

    /// Takes one frame.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8]) {
        if let Some(segment) = self.take_frame(now, frame) {
            self.receive_run(now, segment);
        }
    }

    /// Deals with a frame, unless it is a TCP segment, which comes back.
    fn take_frame<'a>(&mut self, now: Instant, frame: &'a [u8]) -> Option<Run<'a>> {
        self.counters.frames_received += 1;
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else {
            self.counters.frame_short += 1;
            return None;
        };
        let (to, from) = (ethernet.dst_addr(), ethernet.src_addr().0);
        if to.0 != self.config().settings().station && !to.is_multicast() {
            self.counters.frame_other_host += 1;
            return None;
        }
        let packet = match ethernet.ethertype() {
            EthernetProtocol::Ipv4 => parse_v4(ethernet.payload()),
            EthernetProtocol::Ipv6 => parse_v6(ethernet.payload()),
            EthernetProtocol::Arp => {
                self.receive_arp(now, ethernet.payload());
                return None;
            }
            EthernetProtocol::Unknown(_) => {
                self.counters.frame_unknown_protocol += 1;
                return None;
            }
        };
        self.counters.ip_in_receives += 1;
        match packet {
            Ok(packet) => self.receive_packet(now, &packet, from, to.is_multicast()),
            Err(fault) => {
                *match fault {
                    Fault::Header => &mut self.counters.ip_in_header_errors,
                    Fault::Checksum => &mut self.counters.ip_in_checksum_errors,
                    Fault::Fragment => &mut self.counters.ip_reassembly_failures,
                } += 1;
                None
            }
        }
    }

    fn receive_packet<'a>(
        &mut self,
        now: Instant,
        packet: &Packet<'a>,
        station: Station,
        to_group: bool,
    ) -> Option<Run<'a>> {
        let unicast = self.config().is_own(packet.destination);
        if !unicast && !self.is_for_all(packet.destination) {
            self.counters.ip_in_address_errors += 1;
            return None;
        }
        if !self.may_come_from(packet) {
            self.counters.ip_in_martians += 1;
            return None;
        }
        match packet.protocol {
            IpProtocol::Tcp if unicast && !to_group => return self.parse_segment(packet),
            IpProtocol::Udp => self.receive_datagram(now, packet, unicast && !to_group),
            IpProtocol::Icmp | IpProtocol::Icmpv6 if packet.protocol == icmp::protocol(packet.source) => {
                self.receive_icmp(now, packet, station, unicast);
            }
            _ => self.counters.ip_in_unknown_protocols += 1,
        }
        None
    }

    /// Whether a group or broadcast address is one we belong to.
    fn is_for_all(&self, destination: IpAddr) -> bool {
        match destination {
            IpAddr::V4(_) => destination.is_multicast() || self.config().is_broadcast(destination),
            IpAddr::V6(group) => {
                group == Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)
                    || self
                        .config()
                        .settings()
                        .addresses
                        .iter()
                        .any(|&(own, _)| matches!(own, IpAddr::V6(own) if icmp::solicited_node(own) == group))
            }
        }
    }

    /// Whether the source can be somebody's. The unspecified one asks whether an address is taken (RFC 4862, 5.4).
    fn may_come_from(&self, packet: &Packet<'_>) -> bool {
        let source = packet.source;
        let unspecified = source.is_unspecified() && !(source.is_ipv6() && packet.protocol == IpProtocol::Icmpv6);
        !source.is_multicast()
            && !source.is_loopback()
            && !unspecified
            && !self.config().is_broadcast(source)
            && !self.config().is_own(source)
    }

    fn parse_segment<'a>(&mut self, packet: &Packet<'a>) -> Option<Run<'a>> {
        self.counters.tcp_in_segments += 1;
        let verify = !self.config().settings().offloads.receive_verified;
        match segment::parse(packet.payload, packet.source, packet.destination, verify) {
            Ok(parsed) => Some(Run {
                flow: Flow {
                    local: packet.destination,
                    remote: packet.source,
                    local_port: parsed.destination_port,
                    remote_port: parsed.source_port,
                },
                header: parsed.header,
                payload: Payload::single(parsed.payload),
            }),
            Err(segment::Malformed::Header) => {
                self.counters.tcp_in_errors += 1;
                None
            }
            Err(segment::Malformed::Checksum) => {
                self.counters.tcp_in_checksum_errors += 1;
                None
            }
        }
    }

    fn receive_datagram(&mut self, now: Instant, packet: &Packet<'_>, unicast: bool) {
        let verify = !self.config().settings().offloads.receive_verified;
        let parsed = match udp::parse(packet.payload, packet.source, packet.destination, verify) {
            Ok(parsed) => parsed,
            Err(udp::Malformed::Length) => {
                self.counters.udp_in_errors += 1;
                return;
            }
            Err(udp::Malformed::Checksum) => {
                self.counters.udp_in_checksum_errors += 1;
                return;
            }
        };
        if self.deliver_datagram(packet, &parsed) {
            return;
        }
        self.counters.udp_no_ports += 1;
        if unicast && self.answers() {
            let body = icmp::unreachable_body(packet);
            self.send_icmp(now, packet, icmp::Reply::PortUnreachable, &body);
        }
    }

    /// Whether this stack is the one that speaks for the host.
    fn answers(&self) -> bool {
        self.config().settings().resolution == Resolution::Own
    }

    fn send_icmp(&mut self, now: Instant, about: &Packet<'_>, reply: icmp::Reply, body: &[u8]) {
        if !self.replies.take(now) {
            self.counters.icmp_out_rate_limited += 1;
            return;
        }
        self.counters.icmp_out_messages += 1;
        let (source, destination) = (about.destination, about.source);
        let outline =
            Outline { source, destination, protocol: icmp::protocol(source), payload: icmp::message_len(body) };
        self.link.send(now, outline, &mut self.counters, |buffer| {
            icmp::emit(buffer, reply, body, source, destination);
        });
    }

    fn receive_icmp(&mut self, now: Instant, packet: &Packet<'_>, station: Station, unicast: bool) {
        self.counters.icmp_in_messages += 1;
        match icmp::parse(packet) {
            None => self.counters.icmp_in_errors += 1,
            Some(Message::Ignored) => {}
            Some(Message::EchoRequest(body)) => {
                // Requests to all are a way to make many hosts answer one (RFC 1122, 3.2.2.6).
                if unicast && self.answers() {
                    self.counters.icmp_in_echos += 1;
                    self.send_icmp(now, packet, icmp::Reply::Echo, body);
                }
            }
            Some(Message::Neighbor) => self.receive_neighbor(now, packet, station),
            Some(Message::Error(notice)) => self.receive_notice(now, &notice),
        }
    }

    /// An error about something we are said to have sent.
    fn receive_notice(&mut self, now: Instant, notice: &Notice) {
        let known = match notice.protocol {
            IpProtocol::Tcp => self.notice_stream(now, notice),
            IpProtocol::Udp => self.notice_datagram(notice),
            _ => false,
        };
        if !known {
            self.counters.icmp_in_strays += 1;
        }
    }

    /// A frame of ours whose neighbour did not answer: as if a router had said that the host is unreachable.
    pub(super) fn notice_undeliverable(&mut self, now: Instant, frame: &[u8]) {
        let ip = &frame[ETHERNET_HEADER..];
        let packet = if frame[12..ETHERNET_HEADER] == [8, 0] { parse_v4(ip) } else { parse_v6(ip) };
        let Ok(packet) = packet else { return };
        let transport = packet.payload;
        let notice = icmp::notice(packet.source, packet.destination, packet.protocol, transport, Kind::HostUnreachable);
        if let Some(Message::Error(notice)) = notice {
            self.receive_notice(now, &notice);
        }
    }

    fn notice_stream(&mut self, now: Instant, notice: &Notice) -> bool {
        let Some(Target::Connection(id)) = self.flows.find(&notice.flow) else { return false };
        let Some((connection, cx)) = self.connection_mut(now, id) else { return false };
        let in_flight = notice.seq.at_or_after(connection.outbox.una) && notice.seq.before(connection.outbox.nxt);
        if !in_flight {
            return false;
        }
        // RFC 5927: an error never ends an established connection, but it may end an attempt.
        let mut learnt = None;
        let error = match notice.kind {
            Kind::TooBig(mtu) => {
                // A router that names no size, or one below the least, is not believed further than that.
                let least = if notice.flow.local.is_ipv4() { LEAST_PATH_V4 } else { MINIMUM_MTU };
                let mtu = mtu.clamp(least as u32, u32::from(u16::MAX)) as u16;
                if connection.lower_path_mtu(mtu) {
                    cx.counters.tcp_path_mtu_lowered += 1;
                    learnt = Some(mtu);
                }
                None
            }
            Kind::PortUnreachable => Some(SocketError::Refused),
            Kind::HostUnreachable => Some(SocketError::HostUnreachable),
            Kind::NetworkUnreachable => Some(SocketError::NetworkUnreachable),
            Kind::Other => None,
        };
        if let (Some(error), State::SynSent) = (error, connection.state) {
            cx.counters.tcp_attempt_failures += 1;
            connection.fail(error);
        }
        if let Some(mtu) = learnt {
            self.paths.learn(now, notice.flow.remote, mtu);
        }
        self.settle(now, id);
        true
    }

    fn notice_datagram(&mut self, notice: &Notice) -> bool {
        let Some(id) = self.find_datagrams(&notice.flow) else { return false };
        let Some(entry) = self.sockets.get_mut(id) else { return false };
        let Socket::Datagram(socket) = &mut entry.socket else { return false };
        // Only a connected socket knows whom it may hear errors about.
        if socket.peer != Some(notice.flow.remote()) {
            return false;
        }
        match notice.kind {
            Kind::PortUnreachable => socket.fail(SocketError::Refused),
            Kind::HostUnreachable => socket.fail(SocketError::HostUnreachable),
            Kind::NetworkUnreachable => socket.fail(SocketError::NetworkUnreachable),
            Kind::TooBig(_) => socket.fail(SocketError::MessageTooLong),
            Kind::Other => {}
        }
        self.announce(id);
        true
    }

    fn receive_arp(&mut self, now: Instant, bytes: &[u8]) {
        let repr = ArpPacket::new_checked(bytes).and_then(|packet| ArpRepr::parse(&packet));
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: station,
            source_protocol_addr: asker,
            target_protocol_addr: target,
            ..
        }) = repr
        else {
            self.counters.neighbor_in_errors += 1;
            return;
        };
        // An asker without an address only asks whether ours is taken (RFC 5227).
        let probe = asker.is_unspecified();
        if !station.is_unicast() || asker.is_multicast() || asker.is_broadcast() || self.config().is_own(asker.into()) {
            self.counters.neighbor_in_errors += 1;
            return;
        }
        if !self.answers() {
            return;
        }
        let for_us = self.config().is_own(target.into());
        if !probe {
            let create = for_us && operation == ArpOperation::Request;
            self.link.learn(now, asker.into(), station.0, create, &mut self.counters);
        }
        if for_us && operation == ArpOperation::Request {
            let answer = self.link.arp(&ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: smoltcp::wire::EthernetAddress(self.config().settings().station),
                source_protocol_addr: target,
                target_hardware_addr: station,
                target_protocol_addr: if probe { Ipv4Addr::UNSPECIFIED } else { asker },
            });
            self.link.queue(answer, &mut self.counters);
        }
    }

    /// Neighbour discovery (RFC 4861, 7.2). The hop limit shows that the packet crossed no router.
    fn receive_neighbor(&mut self, now: Instant, packet: &Packet<'_>, station: Station) {
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (packet.source, packet.destination) else { return };
        let checksums = smoltcp::phy::ChecksumCapabilities::ignored();
        let parsed = Icmpv6Packet::new_checked(packet.payload)
            .and_then(|icmp| Icmpv6Repr::parse(&source, &destination, &icmp, &checksums));
        let Ok(Icmpv6Repr::Ndisc(repr)) = parsed else {
            self.counters.neighbor_in_errors += 1;
            return;
        };
        if packet.hop_limit != 255 {
            self.counters.neighbor_in_errors += 1;
            return;
        }
        if !self.answers() {
            return;
        }
        match repr {
            NdiscRepr::NeighborSolicit { target_addr, lladdr } => {
                if !self.config().is_own(target_addr.into()) {
                    return;
                }
                let asker = lladdr.and_then(|address| Station::try_from(address.as_bytes()).ok()).unwrap_or(station);
                if !source.is_unspecified() {
                    self.link.learn(now, source.into(), asker, true, &mut self.counters);
                }
                let answer = self.link.advertisement(target_addr, source, asker);
                self.link.queue(answer, &mut self.counters);
            }
            NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => {
                let told = lladdr.and_then(|address| Station::try_from(address.as_bytes()).ok()).unwrap_or(station);
                if target_addr.is_multicast() || self.config().is_own(target_addr.into()) || told[0] & 1 != 0 {
                    self.counters.neighbor_in_errors += 1;
                    return;
                }
                self.link.learn(now, target_addr.into(), told, false, &mut self.counters);
            }
            _ => {}
        }
    }
}
