//! Invalid input must not cause a panic, exceed the memory limits or leave state behind.
//!
//! Three kinds of input are mixed with calls of the application: random bytes, valid frames with some changed bytes
//! and corrected checksums, and segments of a live connection with field values close to the valid ones. Transport
//! checksums are not verified, so that no input is filtered out early.

mod common;

use abey_tcpip::{Frames, Instant, Shutdown, SocketId, Stack};
use common::{
    MILLISECOND, SECOND,
    script::{OWN, PEER, Script, Seg},
};
use proptest::prelude::*;
use smoltcp::wire::{Icmpv4Packet, Icmpv6Packet, Ipv4Packet};

const RECEIVE: usize = 16 << 10;
const SEND: usize = 16 << 10;
const SOCKETS: usize = 24;
const TIME_WAITS: usize = 8;
const NEIGHBORS: usize = 8;
const SYN: u8 = 2;
const ACK: u8 = 16;

#[derive(Clone, Debug)]
enum Step {
    Bytes(Vec<u8>),
    /// IP packet with this protocol and payload; IPv6 if the flag is set.
    Packet(bool, u8, Vec<u8>),
    /// TCP segment with sequence numbers relative to the expected ones.
    Segment {
        flags: u8,
        seq: i32,
        ack: i32,
        window: u16,
        len: usize,
        options: Vec<u8>,
        port: u16,
    },
    /// The last frame of the stack with source and destination swapped and some bytes changed.
    Reflect(Vec<(usize, u8)>),
    Burst(Vec<(i32, usize)>),
    Read(usize),
    Write(usize),
    Close(bool),
    Shut,
    Accept,
    Connect,
    Datagram(usize),
    Wait(u64),
    Send,
}

fn around_zero() -> impl Strategy<Value = i32> {
    prop_oneof![4 => Just(0), 2 => -3..4, 2 => -3000..3000, 1 => Just(65_535), 1 => any::<i32>()]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max);
    let options = prop_oneof![
        Just(Vec::new()),
        bytes(40),
        Just(vec![2, 4, 0, 1]),
        Just(vec![3, 3, 14, 1, 4, 2]),
        any::<[u8; 8]>().prop_map(|times| [&[1, 1, 8, 10], &times[..]].concat()),
        any::<[u8; 16]>().prop_map(|blocks| [&[1, 1, 5, 18], &blocks[..]].concat()),
    ];
    let flags = prop_oneof![6 => Just(ACK), 2 => Just(SYN), 1 => Just(ACK | 1), 1 => Just(4), 1 => any::<u8>()];
    let segment = (flags, around_zero(), around_zero(), any::<u16>(), 0..1500_usize, options, 4000..4004_u16).prop_map(
        |(flags, seq, ack, window, len, options, port)| Step::Segment { flags, seq, ack, window, len, options, port },
    );
    prop_oneof![
        2 => bytes(200).prop_map(Step::Bytes),
        3 => (any::<bool>(), prop_oneof![Just(1), Just(6), Just(17), Just(58), Just(0), Just(44), any::<u8>()], bytes(120))
            .prop_map(|(v6, protocol, payload)| Step::Packet(v6, protocol, payload)),
        20 => segment,
        5 => prop::collection::vec((0..120_usize, any::<u8>()), 0..4).prop_map(Step::Reflect),
        4 => prop::collection::vec((around_zero(), 0..1400_usize), 1..20).prop_map(Step::Burst),
        3 => (0..20_000_usize).prop_map(Step::Read),
        3 => (0..20_000_usize).prop_map(Step::Write),
        1 => any::<bool>().prop_map(Step::Close),
        1 => Just(Step::Shut),
        2 => Just(Step::Accept),
        1 => Just(Step::Connect),
        1 => (0..2000_usize).prop_map(Step::Datagram),
        3 => prop_oneof![0..MILLISECOND, 0..SECOND, 0..100 * SECOND].prop_map(Step::Wait),
        6 => Just(Step::Send),
    ]
}

struct Harness {
    script: Script,
    listener: SocketId,
    datagrams: SocketId,
    streams: Vec<SocketId>,
    /// Last frame of the stack, and its sequence numbers: the next one it sends, the next one it expects.
    last: Vec<u8>,
    expected: (u32, u32),
}

impl Harness {
    fn new() -> Self {
        let mut script = Script::new(|settings| {
            settings.receive_buffer = RECEIVE;
            settings.receive_buffer_limit = RECEIVE;
            settings.send_buffer = SEND;
            settings.datagram_buffer = 8192;
            settings.sockets = SOCKETS;
            settings.time_waits = TIME_WAITS;
            settings.neighbors = NEIGHBORS;
            settings.offloads.receive_verified = true;
        });
        let listener = script.stack.listen("[::]:80".parse().unwrap(), 3).unwrap();
        let datagrams = script.stack.bind("[::]:53".parse().unwrap()).unwrap();
        script.initial = Some(0);
        let mut harness = Self { script, listener, datagrams, streams: Vec::new(), last: Vec::new(), expected: (0, 0) };
        // One connection is established at the start.
        for (flags, seq) in [(SYN, 0), (ACK, 0)] {
            let frame = harness.segment(flags, (seq, 0), 60_000, 0, &[], 4000);
            harness.inject(&frame);
            harness.send();
        }
        harness.step(Step::Accept);
        assert_eq!(harness.streams.len(), 1);
        harness
    }

    fn stack(&mut self) -> &mut Stack {
        &mut self.script.stack
    }

    fn stream(&self) -> Option<SocketId> {
        self.streams.last().copied()
    }

    fn inject(&mut self, frame: &[u8]) {
        let now = self.script.at();
        self.stack().handle_frame(now, frame);
    }

    fn send(&mut self) {
        let mut out = Frames::default();
        let now = self.script.at();
        let sent = self.stack().poll_transmit_burst(now, &mut out, 4096);
        assert!(sent < 4096, "more frames than all queues hold");
        for frame in out.frames {
            assert!(frame.len() <= self.stack().frame_capacity());
            if frame.len() >= 54 && frame[12..14] == [8, 0] && frame[23] == 6 {
                let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
                let flags = frame[47];
                let control = u32::from(flags & 1) + u32::from(flags >> 1 & 1);
                let header = 34 + usize::from(frame[46] >> 4) * 4;
                self.expected = (word(38).wrapping_add((frame.len() - header) as u32 + control), word(42));
            }
            self.last = frame;
        }
    }

    /// Builds a segment of the connection from `port`, whatever its state.
    fn segment(
        &self,
        flags: u8,
        (seq, ack): (i32, i32),
        window: u16,
        len: usize,
        options: &[u8],
        port: u16,
    ) -> Vec<u8> {
        let mut frame = self.script.build(&Seg { window, ..Seg::default() }.data(len));
        let padded = options.len().next_multiple_of(4);
        frame.splice(54..54, options.iter().copied().chain(std::iter::repeat_n(0, padded - options.len())));
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame[38..42].copy_from_slice(&self.expected.1.wrapping_add_signed(seq).to_be_bytes());
        frame[42..46].copy_from_slice(&self.expected.0.wrapping_add_signed(ack).to_be_bytes());
        frame[46] = ((20 + padded) as u8 / 4) << 4;
        frame[47] = flags;
        let total = (frame.len() - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        frame
    }

    fn packet(v6: bool, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if v6 {
            let (source, destination) = ([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], {
                let mut own = [0; 16];
                (own[0], own[15]) = (0xfd, 2);
                own
            });
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((payload.len() as u16).to_be_bytes());
            frame.extend([protocol, 255]);
            frame.extend(source.iter().chain(&destination));
            frame.extend(payload);
            if protocol == 58 && payload.len() >= 4 {
                Icmpv6Packet::new_unchecked(&mut frame[54..]).fill_checksum(&source.into(), &destination.into());
            }
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + payload.len() as u16).to_be_bytes());
            frame.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
            frame.extend(PEER.iter().chain(&OWN));
            frame.extend(payload);
            Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
            if protocol == 1 && payload.len() >= 4 {
                Icmpv4Packet::new_unchecked(&mut frame[34..]).fill_checksum();
            }
        }
        frame
    }

    fn step(&mut self, step: Step) {
        let now = self.script.at();
        match step {
            Step::Bytes(bytes) => {
                self.inject(&bytes);
                for kind in [[8, 0], [0x86, 0xdd], [8, 6]] {
                    let frame = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], &kind[..], &bytes].concat();
                    self.inject(&frame);
                }
            }
            Step::Packet(v6, protocol, payload) => self.inject(&Self::packet(v6, protocol, &payload)),
            Step::Segment { flags, seq, ack, window, len, options, port } => {
                let frame = self.segment(flags, (seq, ack), window, len, &options, port);
                self.inject(&frame);
            }
            Step::Reflect(changes) => self.reflect(&changes),
            Step::Burst(segments) => {
                let frames: Vec<_> =
                    segments.iter().map(|&(seq, len)| self.segment(16, (seq, 0), 60_000, len, &[], 4000)).collect();
                self.stack().handle_frames(now, frames.iter().map(Vec::as_slice));
            }
            Step::Read(len) => {
                if let Some(id) = self.stream() {
                    _ = self.stack().read(id, &mut vec![0; len]);
                }
                let id = self.datagrams;
                _ = self.stack().recv_from(id, &mut [0; 10]);
            }
            Step::Write(len) => {
                if let Some(id) = self.stream() {
                    _ = self.stack().write(id, &vec![1; len]);
                }
            }
            Step::Close(abort) => {
                if let Some(id) = self.streams.pop() {
                    let closed = if abort { self.stack().abort(now, id) } else { self.stack().close(now, id) };
                    closed.unwrap();
                }
            }
            Step::Shut => {
                if let Some(id) = self.stream() {
                    _ = self.stack().shutdown(now, id, Shutdown::Write);
                }
            }
            Step::Accept => {
                let listener = self.listener;
                if let Ok(id) = self.stack().accept(listener) {
                    self.streams.push(id);
                }
            }
            Step::Connect => {
                if let Ok(id) = self.stack().connect(now, "10.0.0.1:4001".parse().unwrap()) {
                    self.streams.push(id);
                }
            }
            Step::Datagram(len) => {
                let id = self.datagrams;
                _ = self.stack().send_to(id, &vec![0; len], Some("10.0.0.77:9".parse().unwrap()));
            }
            Step::Wait(span) => {
                self.script.now += span;
                let now = self.script.at();
                self.stack().handle_timeout(now);
            }
            Step::Send => self.send(),
        }
        let at = self.script.at();
        self.stack().audit(at).unwrap();
        while self.stack().poll_event().is_some() {}
        self.check();
    }

    fn reflect(&mut self, changes: &[(usize, u8)]) {
        let mut frame = self.last.clone();
        if frame.len() < 54 || frame[12..14] != [8, 0] {
            return;
        }
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        frame[26..30].copy_from_slice(&PEER);
        frame[30..34].copy_from_slice(&OWN);
        frame[34..38].rotate_left(2);
        for &(at, value) in changes {
            if let Some(byte) = frame.get_mut(14 + at) {
                *byte = value;
            }
        }
        if frame[14] & 15 >= 5 && usize::from(frame[14] & 15) * 4 + 14 <= frame.len() {
            Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
        }
        self.inject(&frame);
    }

    /// Checks the limits.
    fn check(&mut self) {
        let ids: Vec<_> = self.streams.iter().copied().chain([self.datagrams, self.listener]).collect();
        let stack = &self.script.stack;
        assert!(stack.socket_count() <= SOCKETS);
        assert!(stack.time_wait_count() <= TIME_WAITS);
        assert!(stack.flow_count() <= SOCKETS + TIME_WAITS);
        assert!(stack.timer_count() <= stack.socket_count());
        assert!(stack.neighbor_count() <= NEIGHBORS);
        for id in ids {
            // Rings have a power of two as their size; the scoreboard has an entry of 24 bytes for each segment in
            // flight.
            let memory = stack.memory(id).unwrap();
            assert!(memory <= 2 * RECEIVE + 2 * SEND + 32 * SEND / 10 + 8192, "{memory}");
        }
    }

    /// Closes all sockets and checks that no state is left.
    fn finish(mut self) {
        if std::env::var_os("ABEY_TRACE").is_some() {
            for (name, value) in self.stack().counters().iter().filter(|(_, value)| *value > 0) {
                eprintln!("{name} {value}");
            }
        }
        let now = self.script.at();
        for id in self.streams.drain(..) {
            self.script.stack.close(now, id).unwrap();
        }
        let (listener, datagrams) = (self.listener, self.datagrams);
        self.stack().close(now, listener).unwrap();
        self.stack().close(now, datagrams).unwrap();
        for _ in 0..4000 {
            self.send();
            let Some(at) = self.stack().poll_timeout() else { break };
            self.script.now = self.script.now.max(at.0);
            let now = Instant(self.script.now);
            self.stack().handle_timeout(now);
        }
        let stack = self.stack();
        assert_eq!((stack.socket_count(), stack.flow_count(), stack.timer_count()), (0, 0, 0));
        assert_eq!(stack.poll_timeout(), None);
    }
}

/// Returns the number of cases, from `ABEY_CASES`.
fn cases() -> u32 {
    std::env::var("ABEY_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn invalid_input_does_no_harm(steps in prop::collection::vec(step(), 1..250)) {
        let mut harness = Harness::new();
        for step in steps {
            harness.step(step);
        }
        harness.finish();
    }
}
