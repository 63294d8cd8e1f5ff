//! Common programs as peers: curl gets a page, nc sends lines and half closes, iperf3 measures.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abey_datapath::{Error, Runtime, TcpListener, TcpStream};

use crate::common::{HANG_LIMIT, TestBed, Wire, has, in_namespace, is_possible, ours};
use crate::support::EchoServer;

fn listen(runtime: &Runtime, port: u16) -> TcpListener {
    let listener = TcpListener::bind(runtime, SocketAddr::from(([0_u16; 8], port))).expect("a listener");
    listener.set_timeout(Some(Duration::from_millis(100)));
    listener
}

/// Runs a test over both wires, if `program` is installed.
fn with(program: &str, argument: &str, test: impl Fn(&TestBed) + Sync) {
    for wire in [Wire::Tap, Wire::Xdp] {
        if has(program, argument) && is_possible(wire) {
            in_namespace(|| test(&TestBed::new(wire, "suspend20", |builder| builder)));
        }
    }
}

/// Stops a server when it is dropped, even by a panic, because the scope waits for the server.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Accepts connections one at a time until `stop`.
fn serve(listener: &TcpListener, stop: &AtomicBool, each: impl Fn(TcpStream)) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_timeout(Some(HANG_LIMIT));
                each(stream);
            }
            Err(Error::TimedOut) => {}
            Err(error) => panic!("accept: {error}"),
        }
    }
}

/// Serves HTTP/1.1 with the same body for every request.
fn http(stream: &TcpStream, body: &[u8]) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer).expect("read") {
            0 => return,
            count => request.extend_from_slice(&buffer[..count]),
        }
        while let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            request.drain(..end + 4);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).expect("written");
            stream.write_all(body).expect("written");
        }
    }
}

/// curl gets `bytes` twice over one connection.
pub(crate) fn curl(bed: &TestBed, bytes: u32) {
    let body: Vec<u8> = (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 17) as u8).collect();
    let (listener, stop) = (listen(&bed.runtime, 80), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, &stop, |stream| http(&stream, &body)));
        let stop = Stop(&stop);
        for is_v4 in [true, false] {
            let url = format!("http://{}/", ours(is_v4, 80));
            let output = bed.at_peer(|| {
                let mut curl = Command::new("curl");
                curl.args(["-sS", "-g", "--http1.1", "--noproxy", "*", "--max-time", "60", &url, &url]);
                curl.output().expect("curl runs")
            });
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout.len() == 2 * body.len() && output.stdout.chunks(body.len()).all(|got| got == body));
        }
        drop(stop);
        server.join().expect("served");
    });
}

#[test]
fn curl_gets_ten_megabytes_twice_over_one_connection() {
    with("curl", "--version", |bed| curl(bed, 10_000_000));
}

/// nc sends lines and gets them back.
pub(crate) fn nc(bed: &TestBed, lines: u32) {
    let text: Vec<u8> = (0..lines).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    let any = SocketAddr::from(([0_u16; 8], 7));
    let _server = EchoServer::start_at(&bed.runtime, any, Duration::from_millis(100));
    for is_v4 in [true, false] {
        let address = ours(is_v4, 7).ip().to_string();
        let mut nc = bed.at_peer(|| {
            let mut nc = Command::new("nc");
            nc.args(["-N", "-w", "20", &address, "7"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            nc.spawn().expect("nc runs")
        });
        let (mut input, mut output) = (nc.stdin.take().expect("piped"), nc.stdout.take().expect("piped"));
        let mut back = Vec::new();
        std::thread::scope(|scope| {
            // Dropped after the last byte, which makes nc shut down its direction.
            scope.spawn(|| input.write_all(&text).map(|()| drop(input)).expect("written"));
            output.read_to_end(&mut back).expect("read");
        });
        assert!(nc.wait().expect("waited").success() && back == text);
    }
}

#[test]
fn nc_gets_back_what_it_sent_and_closed_after() {
    with("nc", "-h", |bed| nc(bed, 200_000));
}

/// Runs iperf3 in both directions with a number of bytes in its own notation.
pub(crate) fn iperf3(bed: &TestBed, bytes: &str) {
    let (listener, stop) = (listen(&bed.runtime, 5201), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            serve(&listener, &stop, |control| crate::iperf3::serve(&control, &listener));
        });
        let stop = Stop(&stop);
        for (is_v4, direction) in [(true, None), (true, Some("-R")), (false, None), (false, Some("-R"))] {
            let address = ours(is_v4, 5201).ip().to_string();
            let output = bed.at_peer(|| {
                let mut client = Command::new("iperf3");
                client.args(["-c", &address, "-n", bytes, "-J"]).args(direction);
                client.output().expect("iperf3 runs")
            });
            let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a document");
            assert!(output.status.success() && report["error"].is_null(), "{report:#}");
            let received = &report["end"]["sum_received"];
            assert!(received["bytes"].as_u64().is_some_and(|bytes| bytes > 100_000), "{received}");
            let rate = received["bits_per_second"].as_f64().expect("a rate");
            eprintln!("iperf3 {address} {}: {:.0} Mbit/s", direction.unwrap_or("  "), rate / 1e6);
        }
        drop(stop);
        server.join().expect("served");
    });
}

#[test]
fn iperf3_measures_both_directions() {
    with("iperf3", "--version", |bed| iperf3(bed, "64M"));
}
