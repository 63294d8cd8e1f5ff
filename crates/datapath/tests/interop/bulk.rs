//! Bulk data in both directions at once, over perfect and impaired wires.

use std::io::{Read, Write};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use abey_datapath::{Shutdown, TcpListener, TcpStream};
use abey_nic::Impairment;

use crate::common::{
    Around, HANG_LIMIT, TestBed, Wire, connect, in_namespace, is_possible, ours, theirs, with_timeouts,
};

/// The data, which is repeated. Its length is prime, so that no segment or buffer boundary repeats.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(1_048_573).collect()
});

/// Returns the next piece of `bytes` bytes after `at` of them were sent.
fn piece(at: u64, bytes: u64) -> &'static [u8] {
    let from = (at % PATTERN.len() as u64) as usize;
    let most = (bytes - at).min(64 << 10) as usize;
    &PATTERN[from..PATTERN.len().min(from + most)]
}

fn send(mut to: impl Write, bytes: u64) {
    let mut sent = 0;
    while sent < bytes {
        sent += to.write(piece(sent, bytes)).expect("written") as u64;
    }
}

/// Receives until the end, which must come after `bytes` of them.
fn receive(mut from: impl Read, bytes: u64) {
    let mut buffer = vec![0; 64 << 10];
    let mut received = 0;
    loop {
        let most = piece(received, bytes).len().max(1);
        let count = from.read(&mut buffer[..most]).expect("read");
        if count == 0 {
            break;
        }
        assert!(buffer[..count] == piece(received, bytes)[..count], "after {received} bytes");
        received += count as u64;
    }
    assert_eq!(received, bytes);
}

/// Sends and receives at the same time, at the runtime's end.
fn exchange_ours(stream: &TcpStream, bytes: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(stream, bytes);
            stream.shutdown(Shutdown::Write).expect("open");
        });
        receive(stream, bytes);
    });
}

/// Sends and receives at the same time, at the kernel's end.
fn exchange_kernels(stream: std::net::TcpStream, bytes: u64) {
    let stream = with_timeouts(stream);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(&stream, bytes);
            stream.shutdown(std::net::Shutdown::Write).expect("open");
        });
        receive(&stream, bytes);
    });
}

/// Loses, reorders and duplicates in both directions.
pub(crate) fn bad() -> Impairment {
    Impairment {
        loss: 0.01,
        delay: Duration::from_micros(100),
        reorder: 0.01,
        reorder_by: Duration::from_micros(500),
        duplicate: 0.005,
        ..Impairment::default()
    }
}

fn bytes(megabytes: u64) -> u64 {
    let asked = std::env::var("ABEY_MEGABYTES").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(megabytes) << 20
}

/// Each end is client and server over each IP version.
pub(crate) fn transfers(bed: &TestBed, wire: Wire, bytes: u64) {
    for is_v4 in [true, false] {
        let at = ours(is_v4, 5001);
        let listener = TcpListener::bind(&bed.runtime, at).expect("a listener");
        listener.set_timeout(Some(HANG_LIMIT));
        timed(wire, is_v4, "server", bytes, || {
            std::thread::scope(|scope| {
                let kernel = bed.at_peer(|| std::net::TcpStream::connect(at).expect("connected"));
                scope.spawn(|| exchange_kernels(kernel, bytes));
                let (stream, _) = listener.accept().expect("a connection");
                stream.set_timeout(Some(HANG_LIMIT));
                exchange_ours(&stream, bytes);
            });
        });
        let at = theirs(is_v4, 5001);
        let listener = bed.at_peer(|| std::net::TcpListener::bind(at).expect("bound"));
        timed(wire, is_v4, "client", bytes, || {
            std::thread::scope(|scope| {
                scope.spawn(|| exchange_kernels(listener.accept().expect("a connection").0, bytes));
                exchange_ours(&connect(&bed.runtime, at), bytes);
            });
        });
    }
    let counters = bed.runtime.stack_counters();
    let wrong = counters.tcp_in_errors + counters.tcp_in_checksum_errors + counters.ip_in_header_errors;
    assert_eq!(wrong + counters.tcp_established_resets, 0, "{counters:#?}");
}

fn timed(wire: Wire, is_v4: bool, role: &str, bytes: u64, work: impl FnOnce()) {
    let started = Instant::now();
    work();
    let seconds = started.elapsed().as_secs_f64();
    let rate = bytes as f64 * 8.0 / seconds / 1e6;
    let version = if is_v4 { 4 } else { 6 };
    eprintln!(
        "{wire:?}, IPv{version}, we are {role}: {} MiB each way in {seconds:.2} s ({rate:.0} Mbit/s each way)",
        bytes >> 20
    );
}

fn over(wire: Wire, impairment: Option<Impairment>, megabytes: u64) {
    if !is_possible(wire) {
        return;
    }
    in_namespace(|| {
        let bed = TestBed::with(wire, "suspend20", Around { impairment, recording: None }, |builder| builder);
        transfers(&bed, wire, bytes(megabytes));
        let counters = bed.runtime.stack_counters();
        assert!(impairment.is_none() || counters.tcp_sack_recoveries > 0, "the wire was good: {counters:#?}");
    });
}

#[test]
fn over_tap() {
    over(Wire::Tap, None, 32);
}

#[test]
fn over_af_xdp() {
    over(Wire::Xdp, None, 32);
}

#[test]
fn over_an_impaired_wire_and_tap() {
    over(Wire::Tap, Some(bad()), 4);
}

#[test]
fn over_an_impaired_wire_and_af_xdp() {
    over(Wire::Xdp, Some(bad()), 4);
}
