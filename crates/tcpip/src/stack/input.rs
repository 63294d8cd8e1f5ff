//! Input of frames: Ethernet, ARP, IP and ICMP.
//!
//! Every dropped frame is counted under the reason.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetFrame, EthernetProtocol, Icmpv6Packet, Icmpv6Repr, IpProtocol, NdiscRepr,
};

use super::{Entry, Socket, Stack, link::IpHeader};
use crate::{
    config::{MINIMUM_MTU, Resolution},
    demux::Target,
    error::SocketError,
    event::SocketId,
    flow::Flow,
    gro::{Gro, Payload, Run},
    icmp::{self, ErrorKind, IcmpError, IcmpMessage},
    neighbor::NeighborId,
    packet::{ETHERNET_HEADER_LEN, Fault, MacAddr, Packet, parse_fragment, parse_v4, parse_v6},
    reassembly::Outcome,
    tcp::{
        connection::State,
        segment::{self, Header},
    },
    time::Instant,
    udp,
};

/// Smallest path MTU that is accepted over IPv4; a segment of 512 bytes still fits.
const MIN_PATH_MTU_V4: usize = 552;

/// Origin of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The network. Such a packet has neither the host's own address as its source nor a loopback address.
    Wire,
    /// This host.
    Loop,
}

impl Stack {
    /// Processes a burst of frames. In-order TCP segments are merged before they reach their connection, so larger
    /// bursts cost less per segment. An event loop should pass all frames of one poll of the NIC's queue.
    pub fn handle_frames<'a>(&mut self, now: Instant, frames: impl IntoIterator<Item = &'a [u8]>) {
        self.handle_burst(now, frames, Origin::Wire);
    }

    /// Processes a burst of frames that the stacks of this host sent to the host itself, as [`Self::handle_frames`]
    /// does.
    pub fn handle_looped<'a>(&mut self, now: Instant, frames: impl IntoIterator<Item = &'a [u8]>) {
        self.handle_burst(now, frames, Origin::Loop);
    }

    fn handle_burst<'a>(&mut self, now: Instant, frames: impl IntoIterator<Item = &'a [u8]>, origin: Origin) {
        let mut gro = Gro::default();
        for frame in frames {
            let Some(segment) = self.process_frame(now, frame, origin) else { continue };
            let open = gro.others();
            if let Some(run) = gro.push(segment) {
                self.receive_run(now, &run);
            }
            if gro.others() > open
                && let Some(flow) = gro.newest()
                && let Some(Target::Connection(id)) = self.flows.find(flow)
            {
                self.prefetch(id);
            }
        }
        gro.runs().for_each(|run| self.receive_run(now, run));
    }

    /// Loads a connection and its timer into the CPU's cache. In a burst the loads overlap with the parsing of the next
    /// frames; with thousands of connections the cache misses are the largest cost of a burst.
    pub(super) fn prefetch(&self, id: SocketId) {
        if let Some(Entry { socket: Socket::Stream(connection), .. }) = self.sockets.get(id) {
            connection.prefetch();
            self.wheel.prefetch(id);
        }
    }

    /// Processes one frame.
    pub fn handle_frame(&mut self, now: Instant, frame: &[u8]) {
        if let Some(segment) = self.process_frame(now, frame, Origin::Wire) {
            self.receive_run(now, &segment);
        }
    }

    /// Processes a frame, unless it is a TCP segment, which is returned.
    fn process_frame<'a>(&mut self, now: Instant, frame: &'a [u8], origin: Origin) -> Option<Run<'a>> {
        self.counters.frames_received += 1;
        let Ok(ethernet) = EthernetFrame::new_checked(frame) else {
            self.counters.frame_short += 1;
            return None;
        };
        let (to, from) = (ethernet.dst_addr(), ethernet.src_addr().0);
        if to.0 != self.config().settings().mac && !to.is_multicast() {
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
            Ok(packet) if origin == Origin::Wire && !self.may_come_from_wire(&packet) => {
                self.counters.ip_in_martians += 1;
                None
            }
            Ok(packet) => {
                self.counters.count_ecn(packet.ecn);
                self.receive_packet(now, &packet, from, to.is_multicast())
            }
            Err(fault) => {
                match fault {
                    Fault::Header => self.counters.ip_in_header_errors += 1,
                    Fault::Checksum => self.counters.ip_in_checksum_errors += 1,
                    Fault::Fragment => self.receive_fragment(now, ethernet.payload(), origin),
                }
                None
            }
        }
    }

    /// Handles a fragment of a UDP datagram for this host; others are dropped. Where the kernel has the host's addresses, it
    /// reassembles.
    fn receive_fragment(&mut self, now: Instant, bytes: &[u8], origin: Origin) {
        let parsed = parse_fragment(bytes).filter(|(packet, _)| {
            packet.protocol == IpProtocol::Udp
                && self.answers()
                && self.config().is_local(packet.destination)
                && (origin != Origin::Wire || self.may_come_from_wire(packet))
                && self.has_valid_source(packet)
        });
        let Some((packet, fragment)) = parsed else {
            self.counters.ip_reassembly_failures += 1;
            return;
        };
        let key = (packet.source, packet.destination, fragment.id);
        match self.reassembly.insert(now, key, fragment, packet.payload) {
            Outcome::Waits => {}
            Outcome::Dropped => self.counters.ip_reassembly_failures += 1,
            Outcome::Complete(datagram) => {
                self.counters.ip_reassembled += 1;
                let whole = Packet { payload: &datagram, whole: &datagram, ..packet };
                // The NIC cannot have verified the checksum.
                match udp::parse(&datagram, packet.source, packet.destination, true) {
                    Ok(parsed) if self.deliver_datagram(&whole, &parsed) => {}
                    Ok(_) => self.counters.udp_no_ports += 1,
                    Err(udp::Malformed::Length) => self.counters.udp_in_errors += 1,
                    Err(udp::Malformed::Checksum) => self.counters.udp_in_checksum_errors += 1,
                }
            }
        }
    }

    fn receive_packet<'a>(
        &mut self,
        now: Instant,
        packet: &Packet<'a>,
        mac: MacAddr,
        to_group: bool,
    ) -> Option<Run<'a>> {
        let unicast = self.config().is_local(packet.destination);
        if !unicast && !self.is_joined_group(packet.destination) {
            self.counters.ip_in_address_errors += 1;
            return None;
        }
        if !self.has_valid_source(packet) {
            self.counters.ip_in_martians += 1;
            return None;
        }
        match packet.protocol {
            IpProtocol::Tcp if unicast && !to_group => return self.parse_segment(packet),
            IpProtocol::Udp => self.receive_datagram(now, packet, unicast && !to_group),
            IpProtocol::Icmp | IpProtocol::Icmpv6 if packet.protocol == icmp::protocol(packet.source) => {
                self.receive_icmp(now, packet, mac, unicast);
            }
            _ => self.counters.ip_in_unknown_protocols += 1,
        }
        None
    }

    /// Returns whether `destination` is a broadcast address or a multicast group that the host has joined.
    fn is_joined_group(&self, destination: IpAddr) -> bool {
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

    /// Returns whether the source can be a host. An unspecified IPv6 source is valid in ICMPv6, for duplicate address
    /// detection (RFC 4862, section 5.4).
    fn has_valid_source(&self, packet: &Packet<'_>) -> bool {
        let source = packet.source;
        let unspecified = source.is_unspecified() && !(source.is_ipv6() && packet.protocol == IpProtocol::Icmpv6);
        !source.is_multicast() && !unspecified && !self.config().is_broadcast(source)
    }

    /// Returns whether a packet with these addresses may arrive from the network.
    fn may_come_from_wire(&self, packet: &Packet<'_>) -> bool {
        let is_loopback = packet.source.is_loopback() || packet.destination.is_loopback();
        !is_loopback && !self.config().is_local(packet.source)
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
                header: Header { ecn: packet.ecn, ..parsed.header },
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
            self.send_icmp(now, packet, icmp::IcmpReply::PortUnreachable, &body);
        }
    }

    /// Returns whether this stack answers ARP, neighbour discovery and echo requests of the host.
    fn answers(&self) -> bool {
        self.config().settings().resolution == Resolution::Internal
    }

    fn send_icmp(&mut self, now: Instant, about: &Packet<'_>, reply: icmp::IcmpReply, body: &[u8]) {
        if !self.replies.take(now, about.source) {
            self.counters.icmp_out_rate_limited += 1;
            return;
        }
        self.counters.icmp_out_messages += 1;
        let (source, destination) = (about.destination, about.source);
        let outline = IpHeader {
            source,
            destination,
            protocol: icmp::protocol(source),
            traffic_class: 0,
            fragment: None,
            payload: icmp::message_len(body),
            neighbor: &mut NeighborId::default(),
        };
        self.link.send(now, outline, &mut self.counters, |buffer| {
            icmp::emit(buffer, reply, body, source, destination);
        });
    }

    fn receive_icmp(&mut self, now: Instant, packet: &Packet<'_>, mac: MacAddr, unicast: bool) {
        self.counters.icmp_in_messages += 1;
        match icmp::parse(packet) {
            None => self.counters.icmp_in_errors += 1,
            Some(IcmpMessage::Ignored) => {}
            Some(IcmpMessage::EchoRequest(body)) => {
                // Echo requests to a group or broadcast address would make many hosts answer (RFC 1122, 3.2.2.6).
                if unicast && self.answers() {
                    self.counters.icmp_in_echos += 1;
                    self.send_icmp(now, packet, icmp::IcmpReply::Echo, body);
                }
            }
            Some(IcmpMessage::Neighbor) => self.receive_neighbor(now, packet, mac),
            Some(IcmpMessage::Error(error)) => self.receive_icmp_error(now, &error),
        }
    }

    /// Handles an ICMP error about a packet that appears to be the host's.
    fn receive_icmp_error(&mut self, now: Instant, error: &IcmpError) {
        let known = match error.protocol {
            IpProtocol::Tcp => self.icmp_error_for_connection(now, error),
            IpProtocol::Udp => self.icmp_error_for_datagrams(error),
            _ => false,
        };
        if !known {
            self.counters.icmp_in_strays += 1;
        }
    }

    /// Handles the failed resolution of a sent frame's next hop like a "host unreachable" error from a router.
    pub(super) fn report_unreachable(&mut self, now: Instant, frame: &[u8]) {
        let ip = &frame[ETHERNET_HEADER_LEN..];
        let packet = if frame[12..ETHERNET_HEADER_LEN] == [8, 0] { parse_v4(ip) } else { parse_v6(ip) };
        let Ok(packet) = packet else { return };
        let transport = packet.payload;
        let error = icmp::parse_quoted(
            packet.source,
            packet.destination,
            packet.protocol,
            transport,
            ErrorKind::HostUnreachable,
        );
        if let Some(IcmpMessage::Error(error)) = error {
            self.receive_icmp_error(now, &error);
        }
    }

    fn icmp_error_for_connection(&mut self, now: Instant, error: &IcmpError) -> bool {
        let Some(Target::Connection(id)) = self.flows.find(&error.flow) else { return false };
        let Some((connection, cx)) = self.connection_mut(now, id) else { return false };
        let in_flight =
            error.seq.at_or_after(connection.send_buffer.una) && error.seq.before(connection.send_buffer.nxt);
        if !in_flight {
            return false;
        }
        // An error never ends an established connection, but it may end a connection attempt (RFC 5927).
        let mut new_mtu = None;
        let failure = match error.kind {
            ErrorKind::TooBig(mtu) => {
                // The reported size is clamped: routers may report none, or one below the minimum.
                let least = if error.flow.local.is_ipv4() { MIN_PATH_MTU_V4 } else { MINIMUM_MTU };
                let mtu = mtu.clamp(least as u32, u32::from(u16::MAX)) as u16;
                if connection.lower_path_mtu(mtu) {
                    cx.counters.tcp_path_mtu_lowered += 1;
                    new_mtu = Some(mtu);
                }
                None
            }
            ErrorKind::PortUnreachable => Some(SocketError::Refused),
            ErrorKind::HostUnreachable => Some(SocketError::HostUnreachable),
            ErrorKind::NetworkUnreachable => Some(SocketError::NetworkUnreachable),
            ErrorKind::Other => None,
        };
        if let (Some(failure), State::SynSent) = (failure, connection.state) {
            cx.counters.tcp_attempt_failures += 1;
            connection.fail(failure);
        }
        if let Some(mtu) = new_mtu {
            self.paths.learn(now, error.flow.remote, mtu);
        }
        self.sync_socket(now, id);
        true
    }

    fn icmp_error_for_datagrams(&mut self, error: &IcmpError) -> bool {
        let Some(id) = self.datagrams.find(&error.flow) else { return false };
        let Some(entry) = self.sockets.get_mut(id) else { return false };
        let Socket::Datagram(socket) = &mut entry.socket else { return false };
        // Only a connected socket receives errors.
        if socket.peer != Some(error.flow.remote()) {
            return false;
        }
        match error.kind {
            ErrorKind::PortUnreachable => socket.fail(SocketError::Refused),
            ErrorKind::HostUnreachable => socket.fail(SocketError::HostUnreachable),
            ErrorKind::NetworkUnreachable => socket.fail(SocketError::NetworkUnreachable),
            ErrorKind::TooBig(_) => socket.fail(SocketError::MessageTooLong),
            ErrorKind::Other => {}
        }
        self.enqueue(id);
        true
    }

    fn receive_arp(&mut self, now: Instant, bytes: &[u8]) {
        let repr = ArpPacket::new_checked(bytes).and_then(|packet| ArpRepr::parse(&packet));
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: mac,
            source_protocol_addr: asker,
            target_protocol_addr: target,
            ..
        }) = repr
        else {
            self.counters.neighbor_in_errors += 1;
            return;
        };
        // A sender without an address probes whether the target address is in use (RFC 5227).
        let probe = asker.is_unspecified();
        if !mac.is_unicast() || asker.is_multicast() || asker.is_broadcast() || self.config().is_local(asker.into()) {
            self.counters.neighbor_in_errors += 1;
            return;
        }
        if !self.answers() {
            return;
        }
        let for_us = self.config().is_local(target.into()) && !target.is_loopback();
        if !probe {
            let create = for_us && operation == ArpOperation::Request;
            self.link.learn(now, asker.into(), mac.0, create, &mut self.counters);
        }
        if for_us && operation == ArpOperation::Request {
            let answer = self.link.arp(&ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Reply,
                source_hardware_addr: smoltcp::wire::EthernetAddress(self.config().settings().mac),
                source_protocol_addr: target,
                target_hardware_addr: mac,
                target_protocol_addr: if probe { Ipv4Addr::UNSPECIFIED } else { asker },
            });
            self.link.queue(answer, &mut self.counters);
        }
    }

    /// Handles neighbour discovery (RFC 4861, section 7.2). A hop limit of 255 proves that the packet crossed no
    /// router.
    fn receive_neighbor(&mut self, now: Instant, packet: &Packet<'_>, mac: MacAddr) {
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
                if !self.config().is_local(target_addr.into()) {
                    return;
                }
                let asker = lladdr.and_then(|address| MacAddr::try_from(address.as_bytes()).ok()).unwrap_or(mac);
                if !source.is_unspecified() {
                    self.link.learn(now, source.into(), asker, true, &mut self.counters);
                }
                let answer = self.link.advertisement(target_addr, source, asker);
                self.link.queue(answer, &mut self.counters);
            }
            NdiscRepr::NeighborAdvert { target_addr, lladdr, .. } => {
                let mac = lladdr.and_then(|address| MacAddr::try_from(address.as_bytes()).ok()).unwrap_or(mac);
                if target_addr.is_multicast() || self.config().is_local(target_addr.into()) || mac[0] & 1 != 0 {
                    self.counters.neighbor_in_errors += 1;
                    return;
                }
                self.link.learn(now, target_addr.into(), mac, false, &mut self.counters);
            }
            _ => {}
        }
    }
}
