//! Output on the link: next hop, headers, and the queue of complete control frames.

use core::net::IpAddr;
use std::collections::VecDeque;

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use crate::{
    config::{Config, Resolution},
    counters::Counters,
    fragment::Fragment,
    icmp,
    neighbor::{NeighborCache, NeighborId},
    packet::{
        ChecksumToFill, Checksums, ETHERNET_HEADER_LEN, FrameInfo, HOP_LIMIT, IpFields, MacAddr, Route, emit_ethernet,
        emit_headers, frame_len,
    },
    tcp,
    time::Instant,
    udp,
};

/// Maximum number of queued control frames.
const CONTROL_QUEUE_LIMIT: usize = 1024;
/// Hop limit of neighbour discovery packets, which proves that they crossed no router (RFC 4861, section 4.3).
const ON_LINK: u8 = 255;

/// Configuration, neighbour cache, and control frames: those that do not belong to a socket.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) config: Config,
    pub(super) neighbors: NeighborCache,
    control: VecDeque<Vec<u8>>,
}

/// Header fields of a packet to be written, and its next hop.
#[derive(Debug)]
pub(super) struct IpHeader<'a> {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: IpProtocol,
    /// DSCP and ECN field.
    pub traffic_class: u8,
    pub fragment: Option<Fragment>,
    pub payload: usize,
    /// Entry of the next hop, if a packet to this destination has found it before.
    pub neighbor: &'a mut NeighborId,
}

/// Next hop of a packet.
enum Hop {
    /// None to resolve: a group, or the host itself.
    Mac(MacAddr),
    Neighbor(IpAddr),
}

impl Link {
    pub(super) fn new(config: Config, neighbors: NeighborCache) -> Self {
        Self { config, neighbors, control: VecDeque::new() }
    }

    pub(super) fn checksums(&self) -> Checksums {
        if self.config.settings().offloads.transmit_filled { Checksums::Partial } else { Checksums::Full }
    }

    /// Writes a packet into `frame` and returns its length. Returns `None` if the packet waits for its neighbour or
    /// has no route.
    pub(super) fn write(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        outline: IpHeader<'_>,
        counters: &mut Counters,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<usize> {
        let IpHeader { source, destination, protocol, traffic_class, fragment, payload, neighbor } = outline;
        let Some((hop, known)) = self.resolve(now, destination, neighbor) else {
            counters.ip_out_no_routes += 1;
            return None;
        };
        let frame = &mut frame[..frame_len(destination, payload)];
        let route = Route {
            source,
            destination,
            source_mac: self.config.settings().mac,
            destination_mac: known.unwrap_or_default(),
        };
        fill(emit_headers(frame, &route, IpFields { protocol, hop_limit: HOP_LIMIT, traffic_class, fragment }));
        counters.ip_out_requests += 1;
        if known.is_none() {
            self.neighbors.queue_frame(now, hop, frame.to_vec(), counters);
            return None;
        }
        Some(frame.len())
    }

    /// Returns the next hop of a packet, and its Ethernet address if it is known. `neighbor` is the entry that the last
    /// call for this destination found.
    fn resolve(
        &mut self,
        now: Instant,
        destination: IpAddr,
        neighbor: &mut NeighborId,
    ) -> Option<(IpAddr, Option<MacAddr>)> {
        if let Some(mac) = self.neighbors.lookup(now, *neighbor) {
            return Some((destination, Some(mac)));
        }
        match self.next_hop(destination)? {
            Hop::Mac(mac) => Some((destination, Some(mac))),
            Hop::Neighbor(address) => {
                *neighbor = self.neighbors.find(address).unwrap_or_default();
                Some((address, self.neighbors.lookup(now, *neighbor)))
            }
        }
    }

    fn next_hop(&self, destination: IpAddr) -> Option<Hop> {
        let group = icmp::multicast_mac(destination);
        let broadcast = self.config.is_broadcast(destination).then_some([0xff; 6]);
        let own = self.config.is_hairpin(destination).then_some(self.config.settings().mac);
        match group.or(broadcast).or(own) {
            Some(mac) => Some(Hop::Mac(mac)),
            None => self.config.next_hop(destination).map(Hop::Neighbor),
        }
    }

    /// Writes a packet that belongs to no socket and queues it.
    pub(super) fn send(
        &mut self,
        now: Instant,
        outline: IpHeader<'_>,
        counters: &mut Counters,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let mut frame = vec![0; frame_len(outline.destination, outline.payload)];
        if self.write(now, &mut frame, outline, counters, fill).is_some() {
            self.queue(frame, counters);
        }
    }

    pub(super) fn queue(&mut self, frame: Vec<u8>, counters: &mut Counters) {
        if self.control.len() >= CONTROL_QUEUE_LIMIT {
            counters.control_queue_drops += 1;
            return;
        }
        self.control.push_back(frame);
    }

    pub(super) fn has_control(&self) -> bool {
        !self.control.is_empty()
            || self.config.settings().resolution == Resolution::Internal && self.neighbors.has_requests()
    }

    /// Copies the next control frame into `frame` and returns its length.
    pub(super) fn next_control(&mut self, frame: &mut [u8], counters: &mut Counters) -> Option<usize> {
        if self.control.is_empty() && self.config.settings().resolution == Resolution::Internal {
            while let Some(address) = self.neighbors.next_request() {
                counters.neighbor_solicitations += 1;
                if let Some(request) = self.solicitation(address) {
                    self.control.push_back(request);
                    break;
                }
            }
        }
        let next = self.control.pop_front()?;
        frame[..next.len()].copy_from_slice(&next);
        Some(next.len())
    }

    /// Returns what the NIC must do to a frame that this stack wrote.
    pub(super) fn frame_info(&self, frame: &[u8]) -> FrameInfo {
        if !self.config.settings().offloads.transmit_filled {
            return FrameInfo::default();
        }
        let (start, protocol) = match EthernetFrame::new_unchecked(frame).ethertype() {
            // A fragment has the checksum of the whole datagram, or none.
            EthernetProtocol::Ipv4 if is_fragment(frame) => return FrameInfo::default(),
            EthernetProtocol::Ipv4 => (ETHERNET_HEADER_LEN + 20, frame[ETHERNET_HEADER_LEN + 9]),
            EthernetProtocol::Ipv6 => (ETHERNET_HEADER_LEN + 40, frame[ETHERNET_HEADER_LEN + 6]),
            _ => return FrameInfo::default(),
        };
        let offset = match IpProtocol::from(protocol) {
            IpProtocol::Tcp => tcp::segment::CHECKSUM_OFFSET,
            IpProtocol::Udp => udp::CHECKSUM_OFFSET,
            _ => return FrameInfo::default(),
        };
        FrameInfo { checksum: Some(ChecksumToFill { start, offset }) }
    }

    /// Records the Ethernet address of a neighbour, and queues the frames that waited for it.
    pub(super) fn learn(&mut self, now: Instant, address: IpAddr, mac: MacAddr, create: bool, counters: &mut Counters) {
        let mut ready = Vec::new();
        self.neighbors.learn(now, address, mac, create, counters, |frame| ready.push(frame));
        for frame in ready {
            self.queue(frame, counters);
        }
    }

    /// Records the Ethernet address of a neighbour permanently, and queues the frames that waited for it.
    pub(super) fn insert_permanent(&mut self, now: Instant, address: IpAddr, mac: MacAddr, counters: &mut Counters) {
        let mut ready = Vec::new();
        self.neighbors.insert_permanent(now, address, mac, counters, |frame| ready.push(frame));
        for frame in ready {
            self.queue(frame, counters);
        }
    }

    fn solicitation(&self, address: IpAddr) -> Option<Vec<u8>> {
        let settings = self.config.settings();
        match (self.config.source_for(address)?, address) {
            (IpAddr::V4(source), IpAddr::V4(target)) => Some(self.arp(&ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: EthernetAddress(settings.mac),
                source_protocol_addr: source,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: target,
            })),
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let group = icmp::solicited_node(target);
                let repr = NdiscRepr::NeighborSolicit {
                    target_addr: target,
                    lladdr: Some(RawHardwareAddress::from_bytes(&settings.mac)),
                };
                Some(self.ndisc(&repr, source.into(), group.into(), icmp::multicast_mac(group.into())?))
            }
            _ => None,
        }
    }

    /// Builds an ARP frame: broadcast if it is a request, to the target if it is a reply.
    pub(super) fn arp(&self, repr: &ArpRepr) -> Vec<u8> {
        let ArpRepr::EthernetIpv4 { operation, target_hardware_addr, .. } = *repr else { return Vec::new() };
        let to = if operation == ArpOperation::Request { [0xff; 6] } else { target_hardware_addr.0 };
        let mut frame = vec![0; ETHERNET_HEADER_LEN + repr.buffer_len()];
        emit_ethernet(&mut frame, self.config.settings().mac, to, EthernetProtocol::Arp);
        repr.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET_HEADER_LEN..]));
        frame
    }

    /// Builds a neighbour advertisement that answers a solicitation.
    pub(super) fn advertisement(&self, target: core::net::Ipv6Addr, to: core::net::Ipv6Addr, mac: MacAddr) -> Vec<u8> {
        let unspecified = to.is_unspecified();
        let destination = if unspecified { core::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) } else { to };
        let mac = if unspecified { [0x33, 0x33, 0, 0, 0, 1] } else { mac };
        let solicited = if unspecified { NdiscNeighborFlags::empty() } else { NdiscNeighborFlags::SOLICITED };
        let repr = NdiscRepr::NeighborAdvert {
            flags: solicited | NdiscNeighborFlags::OVERRIDE,
            target_addr: target,
            lladdr: Some(RawHardwareAddress::from_bytes(&self.config.settings().mac)),
        };
        self.ndisc(&repr, target.into(), destination.into(), mac)
    }

    fn ndisc(&self, repr: &NdiscRepr<'_>, source: IpAddr, destination: IpAddr, mac: MacAddr) -> Vec<u8> {
        let mut frame = vec![0; frame_len(destination, repr.buffer_len())];
        let route = Route { source, destination, source_mac: self.config.settings().mac, destination_mac: mac };
        let fields = IpFields { protocol: IpProtocol::Icmpv6, hop_limit: ON_LINK, traffic_class: 0, fragment: None };
        let payload = emit_headers(&mut frame, &route, fields);
        if let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) {
            let mut packet = Icmpv6Packet::new_unchecked(payload);
            let checksums = smoltcp::phy::ChecksumCapabilities::default();
            Icmpv6Repr::Ndisc(*repr).emit(&source, &destination, &mut packet, &checksums);
        }
        frame
    }
}

/// Returns whether a frame with an IPv4 packet has an offset or the flag "more fragments".
fn is_fragment(frame: &[u8]) -> bool {
    frame[ETHERNET_HEADER_LEN + 6] & 0x3f != 0 || frame[ETHERNET_HEADER_LEN + 7] != 0
}
