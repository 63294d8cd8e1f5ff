//! Scripted TCP peer: sends given segments and checks the stack's answers.
//!
//! The stack is 10.0.0.2 and the peer 10.0.0.1. Sequence numbers are relative to the SYN of their sender.

use abey_tcpip::{Frames, Instant, Settings, SocketId, Stack};
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, IpAddress, IpProtocol, Ipv4Packet, TcpOption, TcpPacket,
    TcpSeqNumber,
};

use super::{MILLISECOND, SECOND, settings, stack};

pub const PEER: [u8; 4] = [10, 0, 0, 1];
pub const OWN: [u8; 4] = [10, 0, 0, 2];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// The peer's initial sequence number, which wraps soon.
pub const PEER_INITIAL: u32 = u32::MAX - 2000;

/// Kind of the SACK option (RFC 2018).
const SACK: u8 = 5;

/// Segment with relative sequence numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seg {
    /// Flags, out of "SFRPAEW": E is ECE and W is CWR.
    pub flags: String,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub payload: Vec<u8>,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    pub timestamp: Option<(u32, u32)>,
    pub sack: Vec<(u32, u32)>,
    /// ECN field of the IP packet.
    pub ecn: u8,
}

/// Codepoints of the ECN field.
pub const NOT_ECT: u8 = 0;
pub const ECT0: u8 = 2;
pub const CE: u8 = 3;

pub fn seg(flags: &str, seq: u32, ack: u32) -> Seg {
    Seg { flags: flags.into(), seq, ack, window: 60_000, ..Seg::default() }
}

impl Seg {
    pub fn data(mut self, len: usize) -> Self {
        self.payload = (0..len).map(|at| (self.seq as usize + at) as u8).collect();
        self
    }

    pub fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    pub fn sack(mut self, blocks: &[(u32, u32)]) -> Self {
        self.sack = blocks.to_vec();
        self
    }

    pub fn timestamp(mut self, value: u32, echo: u32) -> Self {
        self.timestamp = Some((value, echo));
        self
    }

    pub fn ecn(mut self, codepoint: u8) -> Self {
        self.ecn = codepoint;
        self
    }

    pub fn options(mut self, mss: u16, scale: Option<u8>, sack: bool) -> Self {
        (self.mss, self.scale, self.sack_permitted) = (Some(mss), scale, sack);
        self
    }

    pub fn has(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }
}

/// Stack, and the state of its scripted peer.
pub struct Script {
    pub stack: Stack,
    pub now: u64,
    /// The stack's and the peer's port.
    pub ports: (u16, u16),
    /// The stack's initial sequence number, after its SYN.
    pub initial: Option<u32>,
}

impl Script {
    pub fn new(change: impl FnOnce(&mut Settings)) -> Self {
        Self::with_seed(42, change)
    }

    pub fn with_seed(seed: u64, change: impl FnOnce(&mut Settings)) -> Self {
        let mut own = settings(2);
        change(&mut own);
        let mut stack = stack(own, seed);
        stack.insert_neighbor(Instant(0), PEER.into(), PEER_MAC);
        Self { stack, now: 1000 * SECOND, ports: (80, 4000), initial: None }
    }

    pub fn at(&self) -> Instant {
        Instant(self.now)
    }

    /// Delivers a segment to the stack.
    pub fn inject(&mut self, segment: &Seg) {
        let frame = self.build(segment);
        self.stack.handle_frame(Instant(self.now), &frame);
    }

    /// Delivers several segments in one burst.
    pub fn inject_burst(&mut self, segments: &[Seg]) {
        let frames: Vec<_> = segments.iter().map(|segment| self.build(segment)).collect();
        self.stack.handle_frames(Instant(self.now), frames.iter().map(Vec::as_slice));
    }

    pub fn build(&self, segment: &Seg) -> Vec<u8> {
        let mut options = vec![0_u8; 60];
        let mut rest = &mut options[..];
        let initial = self.initial.unwrap_or(0);
        // The type of smoltcp has room for three blocks.
        let blocks: Vec<u8> = segment
            .sack
            .iter()
            .flat_map(|&(start, end)| [start, end])
            .flat_map(|at| at.wrapping_add(initial).to_be_bytes())
            .collect();
        for option in [
            segment.mss.map(TcpOption::MaxSegmentSize),
            segment.scale.map(TcpOption::WindowScale),
            segment.sack_permitted.then_some(TcpOption::SackPermitted),
            segment.timestamp.map(|(tsval, tsecr)| TcpOption::TimeStamp { tsval, tsecr }),
            (!blocks.is_empty()).then_some(TcpOption::Unknown { kind: SACK, data: &blocks }),
        ]
        .into_iter()
        .flatten()
        {
            let (exactly, behind) = rest.split_at_mut(option.buffer_len());
            option.emit(exactly);
            rest = behind;
        }
        let left = rest.len();
        options.truncate((60 - left).next_multiple_of(4));
        let (header, total) = (20 + options.len(), 20 + options.len() + segment.payload.len());
        let mut frame = vec![0; 34 + total];
        let mut ethernet = EthernetFrame::new_unchecked(&mut frame);
        ethernet.set_src_addr(EthernetAddress(PEER_MAC));
        ethernet.set_dst_addr(EthernetAddress([2, 0, 0, 0, 0, 2]));
        ethernet.set_ethertype(EthernetProtocol::Ipv4);
        let mut ip = Ipv4Packet::new_unchecked(&mut frame[14..]);
        ip.set_version(4);
        ip.set_header_len(20);
        ip.set_ecn(segment.ecn);
        ip.set_total_len((20 + total) as u16);
        ip.set_hop_limit(64);
        ip.set_next_header(IpProtocol::Tcp);
        ip.set_src_addr(PEER.into());
        ip.set_dst_addr(OWN.into());
        ip.fill_checksum();
        frame[54..34 + header].copy_from_slice(&options);
        frame[34 + header..].copy_from_slice(&segment.payload);
        let mut tcp = TcpPacket::new_unchecked(&mut frame[34..]);
        tcp.set_src_port(self.ports.1);
        tcp.set_dst_port(self.ports.0);
        tcp.set_seq_number(TcpSeqNumber(PEER_INITIAL.wrapping_add(segment.seq).cast_signed()));
        let ack = if segment.has('A') { initial.wrapping_add(segment.ack) } else { 0 };
        tcp.set_ack_number(TcpSeqNumber(ack.cast_signed()));
        tcp.clear_flags();
        tcp.set_header_len(header as u8);
        tcp.set_syn(segment.has('S'));
        tcp.set_fin(segment.has('F'));
        tcp.set_rst(segment.has('R'));
        tcp.set_psh(segment.has('P'));
        tcp.set_ack(segment.has('A'));
        tcp.set_ece(segment.has('E'));
        tcp.set_cwr(segment.has('W'));
        tcp.set_window_len(segment.window);
        tcp.fill_checksum(
            &IpAddress::from(core::net::IpAddr::from(OWN)),
            &IpAddress::from(core::net::IpAddr::from(PEER)),
        );
        frame
    }

    /// Returns all segments that the stack sends now.
    pub fn sent(&mut self) -> Vec<Seg> {
        let mut out = Frames::default();
        while self.stack.poll_transmit_burst(Instant(self.now), &mut out, 64) > 0 {}
        out.frames.iter().filter_map(|frame| self.parse(frame)).collect()
    }

    fn parse(&mut self, frame: &[u8]) -> Option<Seg> {
        let ethernet = EthernetFrame::new_checked(frame).unwrap();
        if ethernet.ethertype() != EthernetProtocol::Ipv4 {
            return None;
        }
        let ip = Ipv4Packet::new_checked(ethernet.payload()).unwrap();
        assert!(ip.verify_checksum());
        if ip.next_header() != IpProtocol::Tcp {
            return None;
        }
        let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
        assert!(tcp.verify_checksum(
            &IpAddress::from(core::net::IpAddr::from(OWN)),
            &IpAddress::from(core::net::IpAddr::from(PEER))
        ));
        let seq = tcp.seq_number().0.cast_unsigned();
        if tcp.syn() {
            self.initial = Some(seq);
            self.ports = (tcp.src_port(), tcp.dst_port());
        }
        let mut segment = Seg {
            seq: seq.wrapping_sub(self.initial.unwrap_or(0)),
            window: tcp.window_len(),
            payload: tcp.payload().to_vec(),
            ecn: ip.ecn(),
            ..Seg::default()
        };
        for (flag, set) in [
            ('S', tcp.syn()),
            ('F', tcp.fin()),
            ('R', tcp.rst()),
            ('P', tcp.psh()),
            ('A', tcp.ack()),
            ('E', tcp.ece()),
            ('W', tcp.cwr()),
        ] {
            if set {
                segment.flags.push(flag);
            }
        }
        if tcp.ack() {
            segment.ack = tcp.ack_number().0.cast_unsigned().wrapping_sub(PEER_INITIAL);
        }
        let mut options = tcp.options();
        while !options.is_empty() {
            let (rest, option) = TcpOption::parse(options).unwrap();
            let bytes = &options[..options.len() - rest.len()];
            options = rest;
            match option {
                TcpOption::MaxSegmentSize(mss) => segment.mss = Some(mss),
                TcpOption::WindowScale(scale) => segment.scale = Some(scale),
                TcpOption::SackPermitted => segment.sack_permitted = true,
                TcpOption::TimeStamp { tsval, tsecr } => segment.timestamp = Some((tsval, tsecr)),
                TcpOption::SackRange(_) => {
                    let relative = |at: &[u8]| u32::from_be_bytes(at.try_into().unwrap()).wrapping_sub(PEER_INITIAL);
                    let blocks = bytes[2..].chunks(8);
                    segment.sack = blocks.map(|block| (relative(&block[..4]), relative(&block[4..]))).collect();
                }
                _ => {}
            }
        }
        Some(segment)
    }

    /// Returns the only segment that the stack sends now.
    #[track_caller]
    pub fn expect_one(&mut self) -> Seg {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:#?}");
        sent.remove(0)
    }

    #[track_caller]
    pub fn expect_nothing(&mut self) {
        let sent = self.sent();
        assert!(sent.is_empty(), "{sent:#?}");
    }

    /// Advances time by `span` and runs the timers. Returns what was sent, with the time since the call in
    /// nanoseconds.
    pub fn advance(&mut self, span: u64) -> Vec<(u64, Seg)> {
        let begin = self.now;
        let mut sent = Vec::new();
        loop {
            let at = self.stack.poll_timeout().map_or(u64::MAX, |at| at.0).max(self.now);
            if at > begin + span {
                break;
            }
            self.now = at;
            self.stack.handle_timeout(Instant(at));
            let passed = at - begin;
            sent.extend(self.sent().into_iter().map(|segment| (passed, segment)));
        }
        self.now = begin + span;
        sent
    }

    /// Establishes a connection to the stack with the options of `syn` and a round trip of 20 ms. Returns its socket.
    pub fn accepted(&mut self, syn: &Seg) -> SocketId {
        let listener = self.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
        self.inject(syn);
        let answer = self.expect_one();
        assert_eq!((answer.flags.trim_end_matches('E'), answer.ack), ("SA", 1));
        self.now += 20 * MILLISECOND;
        let mut ack = seg("A", 1, 1).window(syn.window);
        ack.timestamp = syn.timestamp.map(|(value, _)| (value, answer.timestamp.unwrap().0));
        self.inject(&ack);
        self.expect_nothing();
        self.stack.accept(listener).unwrap()
    }

    /// Like [`Script::accepted`], with SACK and segments of 1000 bytes.
    pub fn accepted_with_sack(&mut self) -> SocketId {
        self.accepted(&seg("S", 0, 0).options(1000, None, true))
    }

    pub fn write(&mut self, id: SocketId, len: usize) {
        assert_eq!(self.stack.write(id, &vec![7; len]), Ok(len));
    }

    /// Reads all available data.
    pub fn read(&mut self, id: SocketId) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        let len = self.stack.read(id, &mut bytes).unwrap_or(0);
        bytes.truncate(len);
        bytes
    }
}

/// Returns the sequence number and payload length of each segment.
pub fn ranges(segments: &[Seg]) -> Vec<(u32, usize)> {
    segments.iter().map(|segment| (segment.seq, segment.payload.len())).collect()
}
