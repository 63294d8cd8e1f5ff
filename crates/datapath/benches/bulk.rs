//! Bulk TCP through the shared-memory NIC: one connection, a thread that writes on one CPU, one that reads on the other.
//!
//! Both ends are in the same mode. It prints payload gigabits per second, medians of three runs, and the CPU time of the two
//! threads and their service threads.
//!
//! `cargo bench -p abey-datapath --bench bulk [-- MODE...]`

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abey_datapath::{Event, Interest, Runtime, Shutdown, TcpStream};
use abey_delivery::Mode;
use abey_nic::MemoryShape;

const SPAN: Duration = Duration::from_millis(800);
const REPETITIONS: usize = 3;
const CHUNK: usize = 256 << 10;

/// Writes until `stop` is set.
fn send(runtime: &Runtime, stream: &TcpStream, stop: &AtomicBool) {
    let epoll = runtime.epoll();
    epoll.add(stream, 0, Interest::OUT).expect("new");
    let (mut events, chunk) = (Vec::<Event>::new(), vec![7; CHUNK]);
    while !stop.load(Ordering::Relaxed) {
        match stream.write(&chunk) {
            Ok(_) => {}
            Err(error) if error.is_would_block() => {
                epoll.wait(&mut events, 1, Some(Duration::from_millis(100))).expect("a wait");
            }
            Err(error) => panic!("{error}"),
        }
    }
    stream.shutdown(Shutdown::Write).expect("open");
}

/// Reads to the end. Returns the number of bytes within the span, and the length of the span.
fn receive(runtime: &Runtime, stream: &TcpStream, stop: &AtomicBool) -> (u64, Duration) {
    let epoll = runtime.epoll();
    epoll.add(stream, 0, Interest::IN).expect("new");
    let (mut events, mut buffer) = (Vec::<Event>::new(), vec![0; CHUNK]);
    let (mut begun, mut total, mut result) = (None, 0, None);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return result.expect("the span is over before the end"),
            Ok(count) => total += count as u64,
            Err(error) if error.is_would_block() => {
                epoll.wait(&mut events, 1, Some(Duration::from_millis(100))).expect("a wait");
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        let now = Instant::now();
        // The slow start is not measured.
        match begun {
            None => begun = Some((now + SPAN / 8, 0)),
            Some((at, 0)) if now >= at => begun = Some((now, total)),
            Some((at, before)) if before > 0 && result.is_none() && now >= at + SPAN => {
                result = Some((total - before, now - at));
                stop.store(true, Ordering::Relaxed);
            }
            Some(_) => {}
        }
    }
}

/// Runs once. Returns gigabits per second.
fn run(mode: Mode, mtu: usize) -> f64 {
    let (client, server) = common::hosts(MemoryShape { mtu, ..MemoryShape::default() });
    let (ours, theirs) = common::connect(&client, &server, 1);
    client.set_mode(mode).expect("a mode");
    server.set_mode(mode).expect("a mode");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        common::spawn_on(scope, common::CLIENT_CPU, || send(&client, &ours[0], &stop));
        let receiving = common::spawn_on(scope, common::SERVER_CPU, || receive(&server, &theirs[0], &stop));
        let (bytes, span) = receiving.join().expect("received");
        bytes as f64 * 8.0 / span.as_secs_f64() / 1e9
    })
}

fn main() {
    let chosen = common::chosen();
    println!("bulk TCP, Gbit/s of payload, medians of {REPETITIONS} (target 10)");
    println!("{:<16} {:>8} {:>8}", "mode", "1500", "9000");
    for name in Mode::EXAMPLES {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            let figure = |mtu| common::median((0..REPETITIONS).map(|_| run(common::mode(name), mtu)).collect());
            println!("{name:<16} {:>8.2} {:>8.2}", figure(1500), figure(9000));
        }
    }
}
