//! The cost of a request at the server with 100 and with 10,000 connections, at the same rate.
//!
//! Open loop over the shared-memory NIC: requests leave at fixed rates, each on a random connection. It measures the CPU time
//! of the server's thread and its service thread. The two numbers of connections alternate, and their medians are compared.
//! It also measures the stack alone, in one thread: segments are passed in memory, and the server's half is timed.
//!
//! `cargo bench -p abey-datapath --bench connections [-- MODE...]`

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abey_datapath::{Epoll, Event, Interest, TcpStream};
use abey_delivery::Mode;
use abey_nic::MemoryShape;
use abey_tcpip::{Config, Frames, Settings, SocketId, Stack};

const CONNECTIONS: [usize; 2] = [100, 10_000];
/// Requests a second.
const RATES: [u64; 2] = [50_000, 150_000];
const WARM_UP: Duration = Duration::from_millis(300);
const SPAN: Duration = Duration::from_millis(1000);
const REPETITIONS: usize = 5;
const MESSAGE: usize = 64;

/// A pseudorandom number generator (xorshift64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound
    }
}

fn add_all(epoll: &Epoll, streams: &[TcpStream]) {
    for (token, stream) in streams.iter().enumerate() {
        epoll.add(stream, token as u64, Interest::IN).expect("new");
    }
}

/// Answers until `stop` is set. Returns the number of answers and the thread's CPU time between the first two marks.
fn serve(epoll: &Epoll, streams: &[TcpStream], phase: &AtomicBool, stop: &AtomicBool) -> (u64, Duration) {
    let (mut events, mut buffer) = (Vec::<Event>::new(), [0; MESSAGE]);
    let (mut answered, mut begun) = (0, None);
    while !stop.load(Ordering::Relaxed) {
        epoll.wait(&mut events, 64, Some(Duration::from_millis(100))).expect("a wait");
        if begun.is_none() && phase.load(Ordering::Relaxed) {
            begun = Some(common::thread_time());
            answered = 0;
        }
        for event in &events {
            let stream = &streams[event.token as usize];
            // One connection may have two requests.
            let got = stream.read(&mut buffer).expect("a request");
            stream.write_all(&buffer[..got]).expect("written");
            answered += got as u64;
        }
    }
    (answered / MESSAGE as u64, common::thread_time().saturating_sub(begun.unwrap_or_default()))
}

/// Sends at the intended times, and reads the answers. Returns the number of requests in the measured time.
fn load(epoll: &Epoll, streams: &[TcpStream], rate: u64, span: Duration) -> u64 {
    let (mut dice, mut events, mut buffer) = (Dice(0x9e37_79b9_7f4a_7c15), Vec::<Event>::new(), [0; 4 * MESSAGE]);
    let (begun, mut sent) = (Instant::now(), 0);
    loop {
        let elapsed = begun.elapsed();
        if elapsed >= span {
            return sent;
        }
        let due = elapsed.as_nanos() as u64 * rate / 1_000_000_000;
        while sent < due {
            streams[dice.below(streams.len())].write_all(&[7; MESSAGE]).expect("written");
            sent += 1;
        }
        epoll.wait(&mut events, 256, Some(Duration::ZERO)).expect("a wait");
        for event in &events {
            // A request that does not fit is reported as writable again.
            streams[event.token as usize].read(&mut buffer).expect("a response");
        }
    }
}

/// Runs once. Returns the server's CPU time per request in microseconds; `None` if the machine was too busy.
fn run(mode: Mode, rate: u64, connections: usize) -> Option<f64> {
    let (client, server) = common::hosts(MemoryShape::default());
    let (ours, theirs) = common::connect(&client, &server, connections);
    client.set_mode(common::mode("fullbusy")).expect("a mode");
    server.set_mode(mode).expect("a mode");
    let (here, there) = (client.epoll(), server.epoll());
    add_all(&here, &ours);
    add_all(&there, &theirs);
    let (phase, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let serving = common::spawn_on(scope, common::SERVER_CPU, || serve(&there, &theirs, &phase, &stop));
        let loading = common::spawn_on(scope, common::CLIENT_CPU, || {
            load(&here, &ours, rate, WARM_UP);
            let before = common::named_time(&["napi/server"]);
            phase.store(true, Ordering::Relaxed);
            let sent = load(&here, &ours, rate, SPAN);
            let service = common::named_time(&["napi/server"]).saturating_sub(before);
            stop.store(true, Ordering::Relaxed);
            (sent, service)
        });
        let (sent, service) = loading.join().expect("loaded");
        let (answered, own) = serving.join().expect("served");
        let expected = rate as f64 * SPAN.as_secs_f64();
        let undisturbed = answered * 100 >= sent * 98 && sent as f64 >= 0.98 * expected;
        undisturbed.then(|| (own + service).as_secs_f64() * 1e6 / answered as f64)
    })
}

fn stack(last: u8) -> Stack {
    let settings = Settings {
        mac: [2, 0, 0, 0, 0, last],
        addresses: vec![([10, 0, 0, last].into(), 24)],
        offloads: abey_tcpip::Offloads { receive_verified: true, transmit_filled: true },
        ..Settings::default()
    };
    let mut stack = Stack::new(Config::new(settings).expect("valid"), last.into());
    let peer = 3 - last;
    stack.insert_neighbor(abey_tcpip::Instant(0), [10, 0, 0, peer].into(), [2, 0, 0, 0, 0, peer]);
    stack
}

/// Measures the stack alone, in bursts of `depth` requests. Returns microseconds of the server's half per request.
fn alone(connections: usize, depth: usize) -> f64 {
    const REQUESTS: usize = 100_000;
    let (mut client, mut server) = (stack(1), stack(2));
    let listener = server.listen(common::SERVER, 1024).expect("free");
    let mut now = abey_tcpip::Instant(1_000_000_000);
    let mut wire = Frames::default();
    let mut streams: Vec<(SocketId, SocketId)> = Vec::with_capacity(connections);
    while streams.len() < connections {
        let ours = client.connect(now, common::SERVER).expect("free");
        for _ in 0..2 {
            client.poll_transmit_burst(now, &mut wire, 64);
            server.handle_frames(now, wire.frames.drain(..).collect::<Vec<_>>().iter().map(Vec::as_slice));
            server.poll_transmit_burst(now, &mut wire, 64);
            client.handle_frames(now, wire.frames.drain(..).collect::<Vec<_>>().iter().map(Vec::as_slice));
        }
        let theirs = server.accept(listener).expect("connected");
        server.set_nodelay(theirs, true).expect("open");
        streams.push((ours, theirs));
    }
    while client.poll_event().is_some() || server.poll_event().is_some() {}
    let ends: std::collections::HashMap<SocketId, SocketId> =
        streams.iter().map(|&(ours, theirs)| (theirs, ours)).collect();
    let (mut dice, mut buffer, mut spent) = (Dice(0x9e37_79b9_7f4a_7c15), [0; MESSAGE], Duration::ZERO);
    let mut answered = Vec::with_capacity(depth);
    for _ in 0..REQUESTS / depth {
        now = abey_tcpip::Instant(now.0 + 20_000 * depth as u64);
        for _ in 0..depth {
            client.write(streams[dice.below(connections)].0, &[7; MESSAGE]).expect("room");
        }
        client.poll_transmit_burst(now, &mut wire, 1024);
        let requests = std::mem::take(&mut wire.frames);
        wire.frames.reserve(2 * depth);
        let begun = Instant::now();
        server.handle_frames(now, requests.iter().map(Vec::as_slice));
        while let Some(event) = server.poll_event() {
            while let Ok(got) = server.read(event.socket, &mut buffer) {
                server.write(event.socket, &buffer[..got]).expect("room");
            }
            answered.push(event.socket);
        }
        server.poll_transmit_burst(now, &mut wire, 1024);
        server.handle_timeout(now);
        spent += begun.elapsed();
        client.handle_frames(now, wire.frames.iter().map(Vec::as_slice));
        wire.frames.clear();
        for theirs in answered.drain(..) {
            while client.read(ends[&theirs], &mut buffer).is_ok() {}
        }
        while client.poll_event().is_some() {}
        client.handle_timeout(now);
    }
    spent.as_secs_f64() * 1e6 / (REQUESTS / depth * depth) as f64
}

fn report(what: &str, runs: [Vec<f64>; 2]) {
    let [few, many] = runs.map(common::median);
    println!("{what:<28} {few:>8.3} {many:>8.3} {:>+8.1} %", (many / few - 1.0) * 100.0);
}

fn compare(what: &str, repetitions: usize, mut measure: impl FnMut(usize) -> Option<f64>) {
    let (mut runs, mut disturbed) = ([Vec::new(), Vec::new()], 0);
    while runs.iter().any(|runs| runs.len() < repetitions) && disturbed < 2 * repetitions {
        for (runs, connections) in runs.iter_mut().zip(CONNECTIONS) {
            match measure(connections) {
                Some(figure) => runs.push(figure),
                None => disturbed += 1,
            }
        }
    }
    if runs.iter().any(Vec::is_empty) {
        println!("{what:<28} the machine cannot keep up just now");
        return;
    }
    report(what, runs);
    if disturbed > 0 {
        println!("{:<28} ({disturbed} more runs fell short of the rate and do not count)", "");
    }
}

fn main() {
    let chosen = common::chosen();
    let wanted = |name: &str| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name);
    println!("server CPU in us for a request, medians of {REPETITIONS}");
    println!("{:<28} {:>8} {:>8} {:>10}", "connections:", CONNECTIONS[0], CONNECTIONS[1], "growth");
    for name in ["base", "suspend20"] {
        if wanted(name) {
            for rate in RATES {
                let what = format!("{name} at {rate}/s");
                compare(&what, REPETITIONS, |connections| run(common::mode(name), rate, connections));
            }
        }
    }
    if wanted("stack") {
        for depth in [1, 4, 16] {
            compare(&format!("the stack alone, bursts of {depth}"), 3, |connections| Some(alone(connections, depth)));
        }
    }
}
