//! Cost of a segment with one connection and with ten thousand, and memory of an idle connection.
//!
//! Two stacks run in one thread and exchange frames in memory. A cost per segment includes both sides and the
//! acknowledgement; `receive` and `send` measure one side each.

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

/// Maximum number of frames per burst.
const BURST: usize = 64;
const MSS: usize = 1448;

/// Frame sink that reuses its memory.
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

struct TwoHosts {
    now: u64,
    client: Stack,
    server: Stack,
    ring: Ring,
    /// Both sockets of each connection: the client's and the server's.
    streams: Vec<(SocketId, SocketId)>,
    buffer: Vec<u8>,
    time: [Duration; 2],
}

fn stack(last: u8, offloads: Offloads) -> Stack {
    let settings = Settings {
        mac: [2, 0, 0, 0, 0, last],
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

impl TwoHosts {
    fn new(connections: usize, offloads: Offloads) -> Self {
        let mut hosts = Self {
            now: 1_000_000_000,
            client: stack(1, offloads),
            server: stack(2, offloads),
            ring: Ring::default(),
            streams: Vec::new(),
            buffer: vec![7; 1 << 20],
            time: [Duration::ZERO; 2],
        };
        let listener = hosts.server.listen("0.0.0.0:80".parse().expect("an address"), 4096).expect("free");
        while hosts.streams.len() < connections {
            let now = Instant(hosts.now);
            let client = hosts.client.connect(now, "10.0.0.2:80".parse().expect("an address")).expect("free");
            hosts.exchange();
            let server = hosts.server.accept(listener).expect("connected");
            hosts.streams.push((client, server));
        }
        while hosts.client.poll_event().is_some() || hosts.server.poll_event().is_some() {}
        hosts
    }

    /// Exchanges frames until there are none, and times the client's sending and the server's receiving.
    fn exchange(&mut self) {
        self.now += 20_000;
        let now = Instant(self.now);
        loop {
            let begun = Clock::now();
            self.ring.used = 0;
            self.client.poll_transmit_burst(now, &mut self.ring, BURST);
            self.time[0] += begun.elapsed();
            let sent = self.ring.used;
            let begun = Clock::now();
            self.server.handle_frames(now, self.ring.frames());
            self.time[1] += begun.elapsed();
            self.ring.used = 0;
            self.server.poll_transmit_burst(now, &mut self.ring, BURST);
            let answered = self.ring.used;
            self.client.handle_frames(now, self.ring.frames());
            if sent + answered == 0 {
                return;
            }
        }
    }

    /// Transfers one burst of in-order data on connection `index`.
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

    /// Transfers a request and its response of 100 bytes each.
    fn request_response(&mut self, index: usize) {
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
            let mut hosts = TwoHosts::new(connections, offloads);
            let mut group = criterion.benchmark_group(format!("{connections} connections, {checksums}"));
            let mut turn = 0;
            for (side, name) in ["send", "receive"].into_iter().enumerate() {
                group.throughput(Throughput::Elements(10));
                group.bench_function(format!("{name} (10 segments of {MSS} bytes)"), |bencher| {
                    bencher.iter_custom(|rounds| {
                        hosts.time = [Duration::ZERO; 2];
                        for _ in 0..rounds {
                            turn = (turn + 7919) % connections;
                            hosts.burst(turn, 10);
                        }
                        hosts.time[side]
                    });
                });
            }
            group.throughput(Throughput::Elements(1));
            group.bench_function("request and response, both sides", |bencher| {
                bencher.iter(|| {
                    turn = (turn + 7919) % connections;
                    hosts.request_response(turn);
                });
            });
            group.finish();
        }
    }
}

/// Prints the memory of ten thousand idle connections that have carried data.
fn memory(_: &mut Criterion) {
    let connections = 10_000;
    let region = stats_alloc::Region::new(ALLOCATOR);
    let mut hosts = TwoHosts::new(connections, Offloads::default());
    for index in 0..connections {
        hosts.request_response(index);
        hosts.now += 1_000_000;
    }
    let stats = region.change();
    let held = (stats.bytes_allocated as isize - stats.bytes_deallocated as isize) as usize;
    let own = hosts.server.memory(hosts.streams[0].1).expect("it lives");
    println!(
        "memory per idle connection: {} bytes from the allocator with tables, timers and buffers; {own} of the socket itself",
        (held - (1 << 20)) / (2 * connections)
    );
}

criterion_group!(benches, segments, memory);
criterion_main!(benches);
