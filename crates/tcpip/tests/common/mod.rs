//! Two stacks and an impaired wire between them: loss, delay, reordering, duplication, corruption and ECN marks.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

pub mod record;
pub mod script;

use std::{cmp::Reverse, collections::BinaryHeap};

use abey_tcpip::{Config, Frames, Instant, Settings, Stack};
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use record::Record;
use smoltcp::wire::{EthernetFrame, EthernetProtocol, Ipv4Packet, Ipv6Packet, PrettyPrinter};

pub const MICROSECOND: u64 = 1_000;
pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// Settings of host `last`, with the addresses 10.0.0.`last` and fd00::`last`.
pub fn settings(last: u8) -> Settings {
    Settings {
        mac: [2, 0, 0, 0, 0, last],
        addresses: vec![([10, 0, 0, last].into(), 24), ([0xfd00, 0, 0, 0, 0, 0, 0, last.into()].into(), 64)],
        ..Settings::default()
    }
}

pub fn stack(settings: Settings, seed: u64) -> Stack {
    Stack::new(Config::new(settings).expect("valid settings"), seed)
}

/// Impairments of a wire. Probabilities are per frame, times in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Impairment {
    pub delay: u64,
    /// Upper bound of a random addition to each frame's delay, which reorders frames.
    pub jitter: u64,
    pub loss: f64,
    pub duplication: f64,
    pub corruption: f64,
    /// Transmission time of a byte; 0 disables it.
    pub per_byte: u64,
    /// Bytes that may wait for transmission; further frames are lost.
    pub queue: u64,
    /// Additional probability that a TCP segment without data, SYN or FIN is lost: an acknowledgement or a window
    /// update.
    pub loss_of_acks: f64,
    /// Additional probability that a TCP segment with data or FIN is lost.
    pub loss_of_data: f64,
    /// Longest outage, during which every frame is lost. Outages start at random.
    pub outage: u64,
    /// Probability that an ECN-capable packet is marked.
    pub marking: f64,
    pub mangling: Mangling,
}

/// What a path does to the ECN field of every packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mangling {
    #[default]
    None,
    /// Clears the field.
    Clear,
    /// Sets CE, even on packets that are not ECN-capable.
    SetCe,
    /// Overwrites the field at random.
    Random,
}

/// Probability per frame that an outage starts.
const OUTAGE_PROBABILITY: f64 = 1.0 / 150.0;

/// Frame on a wire, ordered by its arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct InFlight {
    arrives_at: u64,
    number: u64,
    /// Index in the record of segments.
    index: usize,
    frame: Vec<u8>,
}

/// One direction of a wire.
pub struct Wire {
    pub impairment: Impairment,
    random: Xoshiro256PlusPlus,
    in_flight: BinaryHeap<Reverse<InFlight>>,
    busy_until: u64,
    number: u64,
    outage_until: u64,
    pub delivered: u64,
    pub lost: u64,
    pub corrupted: u64,
    pub longest: usize,
    /// Copies of all sent frames, if they are recorded.
    pub record: Option<Vec<Vec<u8>>>,
    /// TCP segments and their arrivals, if they are recorded.
    pub segments: Option<Record>,
}

impl Wire {
    pub fn new(impairment: Impairment, seed: u64) -> Self {
        Self {
            impairment,
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            in_flight: BinaryHeap::new(),
            busy_until: 0,
            number: 0,
            outage_until: 0,
            delivered: 0,
            lost: 0,
            corrupted: 0,
            longest: 0,
            record: None,
            segments: None,
        }
    }

    pub fn send(&mut self, now: u64, mut frame: Vec<u8>) {
        let Impairment { delay, jitter, loss, duplication, corruption, per_byte, queue, .. } = self.impairment;
        self.longest = self.longest.max(frame.len());
        if let Some(record) = &mut self.record {
            record.push(frame.clone());
        }
        let index = self.segments.as_mut().map_or(0, |segments| segments.sent(now, &frame));
        let start = self.busy_until.max(now);
        if self.random.random_bool(loss) || per_byte > 0 && (start - now) / per_byte > queue {
            self.lost += 1;
            return;
        }
        if self.drops_selectively(now, &frame) {
            self.lost += 1;
            return;
        }
        self.busy_until = start + per_byte * frame.len() as u64;
        self.mark(&mut frame);
        let copies = 1 + usize::from(self.random.random_bool(duplication));
        for _ in 0..copies {
            let (mut frame, mut index) = (frame.clone(), index);
            // The frame check sequence of Ethernet would reject any other corrupted frame.
            let is_ip = frame[12..14] != [8, 6];
            if is_ip && self.random.random_bool(corruption) {
                let at = self.random.random_range(14..frame.len());
                frame[at] ^= 1 << self.random.random_range(0..8);
                self.corrupted += 1;
                index = usize::MAX;
            }
            let extra = if jitter > 0 { self.random.random_range(0..jitter) } else { 0 };
            self.number += 1;
            let arrives_at = self.busy_until + delay + extra;
            self.in_flight.push(Reverse(InFlight { arrives_at, number: self.number, index, frame }));
        }
    }

    /// Returns whether the frame is lost because of its kind or an outage.
    fn drops_selectively(&mut self, now: u64, frame: &[u8]) -> bool {
        let Impairment { loss_of_acks, loss_of_data, outage, .. } = self.impairment;
        if outage > 0 && now >= self.outage_until && self.random.random_bool(OUTAGE_PROBABILITY) {
            self.outage_until = now + self.random.random_range(0..outage);
        }
        let kind = match has_data_or_fin(frame) {
            Some(true) => loss_of_data,
            Some(false) => loss_of_acks,
            None => 0.0,
        };
        now < self.outage_until || kind > 0.0 && self.random.random_bool(kind)
    }

    /// Marks or mangles the ECN field.
    fn mark(&mut self, frame: &mut [u8]) {
        let Impairment { marking, mangling, .. } = self.impairment;
        let Some(ecn) = ecn(frame) else { return };
        match mangling {
            Mangling::None if ecn != 0 && marking > 0.0 && self.random.random_bool(marking) => set_ecn(frame, 3),
            Mangling::None => {}
            Mangling::Clear => set_ecn(frame, 0),
            Mangling::SetCe => set_ecn(frame, 3),
            Mangling::Random => set_ecn(frame, self.random.random_range(0..4)),
        }
    }

    pub fn next(&self) -> Option<u64> {
        self.in_flight.peek().map(|Reverse(next)| next.arrives_at)
    }

    pub fn take(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut due = Vec::new();
        while self.next().is_some_and(|at| at <= now) {
            let Some(Reverse(InFlight { frame, index, .. })) = self.in_flight.pop() else { break };
            self.delivered += 1;
            if let Some(segments) = &mut self.segments {
                segments.arrived(now, index);
            }
            due.push(frame);
        }
        due
    }
}

/// Returns the ECN field of an IP packet.
pub fn ecn(frame: &[u8]) -> Option<u8> {
    let ethernet = EthernetFrame::new_checked(frame).ok()?;
    match ethernet.ethertype() {
        EthernetProtocol::Ipv4 => Some(Ipv4Packet::new_checked(ethernet.payload()).ok()?.ecn()),
        EthernetProtocol::Ipv6 => Some(Ipv6Packet::new_checked(ethernet.payload()).ok()?.traffic_class() & 3),
        _ => None,
    }
}

/// Changes the ECN field of an IP packet, as a router does.
pub fn set_ecn(frame: &mut [u8], codepoint: u8) {
    let mut ethernet = EthernetFrame::new_unchecked(frame);
    if ethernet.ethertype() == EthernetProtocol::Ipv4 {
        let mut packet = Ipv4Packet::new_unchecked(ethernet.payload_mut());
        packet.set_ecn(codepoint);
        packet.fill_checksum();
    } else {
        let mut packet = Ipv6Packet::new_unchecked(ethernet.payload_mut());
        let class = packet.traffic_class() & !3 | codepoint;
        packet.set_traffic_class(class);
    }
}

/// Returns whether a TCP segment has data or a FIN; `None` for SYNs and anything else.
fn has_data_or_fin(frame: &[u8]) -> Option<bool> {
    let (protocol, tcp, end) = match frame[12..14] {
        [8, 0] => (frame[23], 34, 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]))),
        [0x86, 0xdd] => (frame[20], 54, 54 + usize::from(u16::from_be_bytes([frame[18], frame[19]]))),
        _ => return None,
    };
    let flags = *frame.get(tcp + 13).filter(|flags| protocol == 6 && **flags & 2 == 0)?;
    Some(flags & 1 != 0 || end > tcp + usize::from(frame[tcp + 12] >> 4) * 4)
}

/// Two hosts and the wires between them. `wires[0]` leads to host 1, `wires[1]` to host 0.
pub struct Network {
    pub now: u64,
    pub hosts: [Stack; 2],
    pub wires: [Wire; 2],
    /// Next time at which the application acts by itself.
    pub alarm: Option<u64>,
    /// Longest pause of a host. During a pause it neither receives nor sends, and its timers are late.
    pub pause: u64,
    /// Times at which host 1 dropped SYNs or ACKs because its accept queue was full, if segments are recorded.
    pub overflows: Vec<u64>,
    paused_until: [u64; 2],
    random: Xoshiro256PlusPlus,
    out: Frames,
}

/// Probability per step that a pause starts.
const PAUSE_PROBABILITY: f64 = 1.0 / 300.0;

impl Network {
    pub fn new(hosts: [Stack; 2], impairment: Impairment, seed: u64) -> Self {
        Self {
            now: SECOND,
            hosts,
            wires: [0, 1].map(|side| Wire::new(impairment, seed * 2 + side)),
            alarm: None,
            pause: 0,
            overflows: Vec::new(),
            paused_until: [0; 2],
            random: Xoshiro256PlusPlus::seed_from_u64(!seed),
            out: Frames::default(),
        }
    }

    pub fn at(&self) -> Instant {
        Instant(self.now)
    }

    /// Puts the hosts' output on the wires.
    pub fn transmit(&mut self) {
        for ((host, wire), paused) in self.hosts.iter_mut().zip(&mut self.wires).zip(self.paused_until) {
            while paused <= self.now && host.poll_transmit_burst(Instant(self.now), &mut self.out, 64) > 0 {
                for frame in self.out.frames.drain(..) {
                    trace(self.now, &frame);
                    wire.send(self.now, frame);
                }
            }
        }
    }

    /// Returns the time of the next event.
    pub fn next(&self) -> Option<u64> {
        // A paused host receives its frames after the pause.
        let wires = (0..2).filter_map(|side| Some(self.wires[side].next()?.max(self.paused_until[1 - side])));
        let hosts = (0..2).filter_map(|side| Some(self.hosts[side].poll_timeout()?.0.max(self.paused_until[side])));
        let awake = self.paused_until.into_iter().filter(|&until| until > self.now);
        wires.chain(hosts).chain(awake).chain(self.alarm).min()
    }

    /// Advances to the next event and processes it. Returns false if there is none until `limit`.
    pub fn step(&mut self, limit: u64) -> bool {
        self.transmit();
        self.audit();
        let Some(next) = self.next() else { return false };
        if next > limit {
            return false;
        }
        self.now = next.max(self.now);
        let now = Instant(self.now);
        for side in 0..2 {
            if self.paused_until[1 - side] <= self.now {
                let frames = self.wires[side].take(self.now);
                let overflows = self.hosts[1].counters().tcp_listen_overflows;
                self.hosts[1 - side].handle_frames(now, frames.iter().map(Vec::as_slice));
                if self.wires[side].segments.is_some() && self.hosts[1].counters().tcp_listen_overflows > overflows {
                    self.overflows.push(self.now);
                }
            }
        }
        for side in 0..2 {
            if self.paused_until[side] <= self.now {
                self.hosts[side].handle_timeout(now);
            }
        }
        if self.pause > 0 && self.random.random_bool(PAUSE_PROBABILITY) {
            let side = self.random.random_range(0..2);
            self.paused_until[side] = self.now + self.random.random_range(0..self.pause);
        }
        self.audit();
        true
    }

    /// Checks the invariants of both stacks.
    pub fn audit(&self) {
        for (side, host) in self.hosts.iter().enumerate() {
            if let Err((id, rule)) = host.audit(self.at()) {
                panic!("host {side}, {id:?} at {}: {rule}", self.now);
            }
        }
    }

    /// Processes all events within `span`.
    pub fn run(&mut self, span: u64) {
        let limit = self.now + span;
        while self.step(limit) {}
        self.now = limit;
        for host in &mut self.hosts {
            host.handle_timeout(Instant(limit));
        }
        self.transmit();
    }
}

/// Prints a frame if `ABEY_TRACE` is set.
fn trace(now: u64, frame: &[u8]) {
    static ON: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| std::env::var_os("ABEY_TRACE").is_some());
    if *ON {
        let printer = PrettyPrinter::<EthernetFrame<&[u8]>>::new("", &frame);
        eprintln!("{:.6} {}", now as f64 / 1e9, printer.to_string().lines().skip(1).collect::<Vec<_>>().join(" "));
    }
}

/// Returns the byte at `offset` of the pseudo-random stream `stream`.
pub fn byte(stream: u64, offset: u64) -> u8 {
    let mixed = (offset ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 32) as u8
}

pub fn random_seed(seed: u64) -> impl Rng {
    Xoshiro256PlusPlus::seed_from_u64(seed)
}
