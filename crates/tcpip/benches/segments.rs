//! What a segment costs, with one connection and with ten thousand, and what an idle connection weighs.
//!
//! Two stacks in one thread, frames handed over in memory: a figure per segment is both sides' work, its acknowledgement
//! included. `receive` and `send` split it: they are one side's.

use std::{
    alloc::System,
    hint::black_box,
    time::{Duration, Instant as Clock},
};

use abey_tcpip::{Config, FrameInfo, FrameSink, Instant, Offloads, Settings, SocketId, Stack};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Segments in a burst.
const BURST: usize = 64;
const MSS: usize = 1448;

/// A ring of frames that allocates nothing once it is warm.
#[derive(Default)]
struct Ring {
    frames: Vec<Vec<u8>>,
    used: usize,
}

impl FrameSink for Ring {
    fn slot(&mut self) -> Option<&mut [u8]> {
        if self.used == self.frames.len() {
            self.frames.push(vec![0; 1514]);
        }
        let frame = &mut self.frames[self.used];
        frame.resize(1514, 0);
        Some(frame)
    }

    fn commit(&mut self, len: usize, _info: FrameInfo) {
        self.frames[self.used].truncate(len);
        self.used += 1;
    }
}

impl Ring {
    fn frames(&self) -> impl Iterator<Item = &[u8]> {
        self.frames[..self.used].iter().map(Vec::as_slice)
    }
}

struct Pair {
    now: u64,
    client: Stack,
    server: Stack,
    ring: Ring,
    /// Both ends of each connection.
    streams: Vec<(SocketId, SocketId)>,
    buffer: Vec<u8>,
    time: [Duration; 2],
}

fn stack(last: u8, offloads: Offloads) -> Stack {
    let settings = Settings {
        station: [2, 0, 0, 0, 0, last],
        addresses: vec![([10, 0, 0, last].into(), 24)],
        offloads,
        receive_buffer: 1 << 20,
        ..Settings::default()
    };
    let mut stack = Stack::new(Config::new(settings).expect("valid"), last.into());
    let peer = 3 - last;
    stack.insert_neighbor(Instant(0), [10, 0, 0, peer].into(), [2, 0, 0, 0, 0, peer]);
    stack
}

impl Pair {
    fn new(connections: usize, offloads: Offloads) -> Self {
        let mut pair = Self {
            now: 1_000_000_000,
            client: stack(1, offloads),
            server: stack(2, offloads),
            ring: Ring::default(),
            streams: Vec::new(),
            buffer: vec![7; 1 << 20],
            time: [Duration::ZERO; 2],
        };
        let listener = pair.server.listen("0.0.0.0:80".parse().expect("an address"), 4096).expect("free");
        while pair.streams.len() < connections {
            let now = Instant(pair.now);
            let client = pair.client.connect(now, "10.0.0.2:80".parse().expect("an address")).expect("free");
            pair.exchange();
            let server = pair.server.accept(listener).expect("connected");
            pair.streams.push((client, server));
        }
        while pair.client.poll_event().is_some() || pair.server.poll_event().is_some() {}
        pair
    }

    /// Frames both ways until there are none, timing what the client sends and what the server receives.
    fn exchange(&mut self) {
        self.now += 20_000;
        let now = Instant(self.now);
        loop {
            let begun = Clock::now();
            self.ring.used = 0;
            self.client.poll_transmit_burst(now, &mut self.ring, BURST);
            self.time[0] += begun.elapsed();
            let there = self.ring.used;
            let begun = Clock::now();
            self.server.handle_frames(now, self.ring.frames());
            self.time[1] += begun.elapsed();
            self.ring.used = 0;
            self.server.poll_transmit_burst(now, &mut self.ring, BURST);
            let back = self.ring.used;
            self.client.handle_frames(now, self.ring.frames());
            if there + back == 0 {
                return;
            }
        }
    }

    /// One burst of in-order data on connection `index`.
    fn burst(&mut self, index: usize, segments: usize) {
        let (client, server) = self.streams[index];
        let begun = Clock::now();
        self.client.write(client, &self.buffer[..segments * MSS]).expect("room");
        self.time[0] += begun.elapsed();
        self.exchange();
        let begun = Clock::now();
        let read = self.server.read(server, &mut self.buffer).expect("data");
        self.time[1] += begun.elapsed();
        assert_eq!(read, segments * MSS);
    }

    /// A request and its response, of a hundred bytes each.
    fn round(&mut self, index: usize) {
        let (client, server) = self.streams[index];
        self.client.write(client, &self.buffer[..100]).expect("room");
        self.exchange();
        black_box(self.server.read(server, &mut self.buffer).expect("a request"));
        self.server.write(server, &self.buffer[..100]).expect("room");
        self.exchange();
        black_box(self.client.read(client, &mut self.buffer).expect("a response"));
    }
}

fn segments(criterion: &mut Criterion) {
    for (checksums, offloads) in
        [("checksums", Offloads::default()), ("offloaded", Offloads { receive_verified: true, transmit_filled: true })]
    {
        for connections in [1, 10_000] {
            let mut pair = Pair::new(connections, offloads);
            let mut group = criterion.benchmark_group(format!("{connections} connections, {checksums}"));
            let mut turn = 0;
            for (side, name) in ["send", "receive"].into_iter().enumerate() {
                group.throughput(Throughput::Elements(10));
                group.bench_function(format!("{name} (10 segments of {MSS} bytes)"), |bencher| {
                    bencher.iter_custom(|rounds| {
                        pair.time = [Duration::ZERO; 2];
                        for _ in 0..rounds {
                            turn = (turn + 7919) % connections;
                            pair.burst(turn, 10);
                        }
                        pair.time[side]
                    });
                });
            }
            group.throughput(Throughput::Elements(1));
            group.bench_function("request and response, both sides", |bencher| {
                bencher.iter(|| {
                    turn = (turn + 7919) % connections;
                    pair.round(turn);
                });
            });
            group.finish();
        }
    }
}

/// Not a time: what ten thousand idle connections, which have carried data, take from the allocator.
fn memory(_: &mut Criterion) {
    let connections = 10_000;
    let region = stats_alloc::Region::new(ALLOCATOR);
    let mut pair = Pair::new(connections, Offloads::default());
    for index in 0..connections {
        pair.round(index);
        pair.now += 1_000_000;
    }
    let stats = region.change();
    let held = (stats.bytes_allocated as isize - stats.bytes_deallocated as isize) as usize;
    let own = pair.server.memory(pair.streams[0].1).expect("it lives");
    println!(
        "memory per idle connection: {} bytes from the allocator (tables, timers and buffers included), {own} of its own",
        (held - (1 << 20)) / (2 * connections)
    );
}

criterion_group!(benches, segments, memory);
criterion_main!(benches);
