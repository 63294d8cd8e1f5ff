//! The way out: next hop, headers, and the queue of frames that are complete already.

use core::net::IpAddr;
use std::collections::VecDeque;

use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv6Packet, Icmpv6Repr,
    IpProtocol, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use crate::{
    config::{Config, Resolution},
    counters::Counters,
    icmp,
    neighbor::Neighbors,
    packet::{
        ChecksumToFill, Checksums, ETHERNET_HEADER, FrameInfo, HOP_LIMIT, Route, Station, emit_ethernet, emit_headers,
        frame_len,
    },
    tcp,
    time::Instant,
    udp,
};

/// Complete frames that wait to be taken, at most.
const CONTROL: usize = 1024;
/// The hop limit that shows that a neighbour discovery packet crossed no router (RFC 4861, section 4.3).
const ON_LINK: u8 = 255;

/// Addresses, neighbours, and frames that are not a socket's.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) config: Config,
    pub(super) neighbors: Neighbors,
    control: VecDeque<Vec<u8>>,
}

/// A packet that is to be written: everything but its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outline {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: IpProtocol,
    pub payload: usize,
}

impl Link {
    pub(super) fn new(config: Config, neighbors: Neighbors) -> Self {
        Self { config, neighbors, control: VecDeque::new() }
    }

    pub(super) fn checksums(&self) -> Checksums {
        if self.config.settings().offloads.transmit_filled { Checksums::Partial } else { Checksums::Full }
    }

    /// Writes a packet into `frame`. Its length; `None` if it waits for its neighbour, or has nowhere to go.
    pub(super) fn write(
        &mut self,
        now: Instant,
        frame: &mut [u8],
        outline: Outline,
        counters: &mut Counters,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<usize> {
        let Outline { source, destination, protocol, payload } = outline;
        let Some((hop, known)) = self.resolve(now, destination) else {
            counters.ip_out_no_routes += 1;
            return None;
        };
        let frame = &mut frame[..frame_len(destination, payload)];
        let route = Route {
            source,
            destination,
            source_station: self.config.settings().station,
            destination_station: known.unwrap_or_default(),
        };
        fill(emit_headers(frame, &route, protocol, HOP_LIMIT));
        counters.ip_out_requests += 1;
        if known.is_none() {
            self.neighbors.wait_for(now, hop, frame.to_vec(), counters);
            return None;
        }
        Some(frame.len())
    }

    fn resolve(&mut self, now: Instant, destination: IpAddr) -> Option<(IpAddr, Option<Station>)> {
        let group = icmp::group_station(destination);
        let broadcast = self.config.is_broadcast(destination).then_some([0xff; 6]);
        if let Some(station) = group.or(broadcast) {
            return Some((destination, Some(station)));
        }
        let hop = self.config.next_hop(destination)?;
        Some((hop, self.neighbors.lookup(now, hop)))
    }

    /// Writes a packet that belongs to no socket, and queues it.
    pub(super) fn send(
        &mut self,
        now: Instant,
        outline: Outline,
        counters: &mut Counters,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let mut frame = vec![0; frame_len(outline.destination, outline.payload)];
        if self.write(now, &mut frame, outline, counters, fill).is_some() {
            self.queue(frame, counters);
        }
    }

    pub(super) fn queue(&mut self, frame: Vec<u8>, counters: &mut Counters) {
        if self.control.len() >= CONTROL {
            counters.control_queue_drops += 1;
            return;
        }
        self.control.push_back(frame);
    }

    pub(super) fn has_control(&self) -> bool {
        !self.control.is_empty()
            || self.config.settings().resolution == Resolution::Own && self.neighbors.has_requests()
    }

    /// Copies the next complete frame into `frame`; its length.
    pub(super) fn next_control(&mut self, frame: &mut [u8], counters: &mut Counters) -> Option<usize> {
        if self.control.is_empty() && self.config.settings().resolution == Resolution::Own {
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

    /// What the NIC must do to a frame of ours.
    pub(super) fn info(&self, frame: &[u8]) -> FrameInfo {
        if !self.config.settings().offloads.transmit_filled {
            return FrameInfo::default();
        }
        let (start, protocol) = match EthernetFrame::new_unchecked(frame).ethertype() {
            EthernetProtocol::Ipv4 => (ETHERNET_HEADER + 20, frame[ETHERNET_HEADER + 9]),
            EthernetProtocol::Ipv6 => (ETHERNET_HEADER + 40, frame[ETHERNET_HEADER + 6]),
            _ => return FrameInfo::default(),
        };
        let offset = match IpProtocol::from(protocol) {
            IpProtocol::Tcp => tcp::segment::CHECKSUM_OFFSET,
            IpProtocol::Udp => udp::CHECKSUM_OFFSET,
            _ => return FrameInfo::default(),
        };
        FrameInfo { checksum: Some(ChecksumToFill { start, offset }) }
    }

    /// Takes in what a neighbour said, and queues what waited for it.
    pub(super) fn learn(
        &mut self,
        now: Instant,
        address: IpAddr,
        station: Station,
        create: bool,
        counters: &mut Counters,
    ) {
        let mut ready = Vec::new();
        self.neighbors.learn(now, address, station, create, counters, |frame| ready.push(frame));
        for frame in ready {
            self.queue(frame, counters);
        }
    }

    /// As [`Link::learn`], for good.
    pub(super) fn set(&mut self, now: Instant, address: IpAddr, station: Station, counters: &mut Counters) {
        let mut ready = Vec::new();
        self.neighbors.set(now, address, station, counters, |frame| ready.push(frame));
        for frame in ready {
            self.queue(frame, counters);
        }
    }

    fn solicitation(&self, address: IpAddr) -> Option<Vec<u8>> {
        let settings = self.config.settings();
        match (self.config.source_for(address)?, address) {
            (IpAddr::V4(source), IpAddr::V4(target)) => Some(self.arp(&ArpRepr::EthernetIpv4 {
                operation: ArpOperation::Request,
                source_hardware_addr: EthernetAddress(settings.station),
                source_protocol_addr: source,
                target_hardware_addr: EthernetAddress([0; 6]),
                target_protocol_addr: target,
            })),
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let group = icmp::solicited_node(target);
                let repr = NdiscRepr::NeighborSolicit {
                    target_addr: target,
                    lladdr: Some(RawHardwareAddress::from_bytes(&settings.station)),
                };
                Some(self.ndisc(&repr, source.into(), group.into(), icmp::group_station(group.into())?))
            }
            _ => None,
        }
    }

    /// An ARP frame: to all if it asks, to the target if it answers.
    pub(super) fn arp(&self, repr: &ArpRepr) -> Vec<u8> {
        let ArpRepr::EthernetIpv4 { operation, target_hardware_addr, .. } = *repr else { return Vec::new() };
        let to = if operation == ArpOperation::Request { [0xff; 6] } else { target_hardware_addr.0 };
        let mut frame = vec![0; ETHERNET_HEADER + repr.buffer_len()];
        emit_ethernet(&mut frame, self.config.settings().station, to, EthernetProtocol::Arp);
        repr.emit(&mut ArpPacket::new_unchecked(&mut frame[ETHERNET_HEADER..]));
        frame
    }

    /// A neighbour advertisement that answers.
    pub(super) fn advertisement(
        &self,
        target: core::net::Ipv6Addr,
        to: core::net::Ipv6Addr,
        station: Station,
    ) -> Vec<u8> {
        let unspecified = to.is_unspecified();
        let destination = if unspecified { core::net::Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1) } else { to };
        let station = if unspecified { [0x33, 0x33, 0, 0, 0, 1] } else { station };
        let solicited = if unspecified { NdiscNeighborFlags::empty() } else { NdiscNeighborFlags::SOLICITED };
        let repr = NdiscRepr::NeighborAdvert {
            flags: solicited | NdiscNeighborFlags::OVERRIDE,
            target_addr: target,
            lladdr: Some(RawHardwareAddress::from_bytes(&self.config.settings().station)),
        };
        self.ndisc(&repr, target.into(), destination.into(), station)
    }

    fn ndisc(&self, repr: &NdiscRepr<'_>, source: IpAddr, destination: IpAddr, station: Station) -> Vec<u8> {
        let mut frame = vec![0; frame_len(destination, repr.buffer_len())];
        let route =
            Route { source, destination, source_station: self.config.settings().station, destination_station: station };
        let payload = emit_headers(&mut frame, &route, IpProtocol::Icmpv6, ON_LINK);
        if let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) {
            let mut packet = Icmpv6Packet::new_unchecked(payload);
            let checksums = smoltcp::phy::ChecksumCapabilities::default();
            Icmpv6Repr::Ndisc(*repr).emit(&source, &destination, &mut packet, &checksums);
        }
        frame
    }
}
