//! Runtimes in every mode on a TAP device and on AF_XDP, against the kernel's own TCP, both ways.

mod common;

use std::io::{Read, Write};

use abey_datapath::{Runtime, Shutdown, TcpListener};
use common::{HANG_LIMIT, TestBed, Wire, connect, echo, in_namespace, is_possible, ours, theirs, with_timeouts};

const MODES: [&str; 8] = ["base", "defer50", "napibusy", "fullbusy", "suspend20", "threaded", "workqueue", "hold50"];

fn every_mode(wire: Wire) {
    if !is_possible(wire) {
        return;
    }
    for mode in MODES {
        in_namespace(|| {
            let bed = TestBed::new(wire, mode, |builder| builder);
            for is_v4 in [true, false] {
                client(&bed, is_v4, mode);
                server(&bed, is_v4, mode);
            }
        });
    }
}

#[test]
fn the_kernel_is_client_and_server_over_tap() {
    every_mode(Wire::Tap);
}

#[test]
fn the_kernel_is_client_and_server_over_af_xdp() {
    every_mode(Wire::Xdp);
}

/// The kernel connects, makes round trips, and sends bulk data which comes back.
fn client(bed: &TestBed, is_v4: bool, mode: &str) {
    const BULK: usize = 2 << 20;
    let at = ours(is_v4, 7);
    let runtime: &Runtime = &bed.runtime;
    let listener = TcpListener::bind(runtime, at).expect("a listener");
    listener.set_timeout(Some(HANG_LIMIT));
    let data: Vec<u8> = (0..BULK).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| echo(runtime, &listener));
        let mut kernel = with_timeouts(bed.at_peer(|| std::net::TcpStream::connect(at).expect("connected")));
        kernel.set_nodelay(true).expect("open");
        for number in 0..100_u64 {
            kernel.write_all(&number.to_le_bytes()).expect("written");
            let mut answer = [0; 8];
            kernel.read_exact(&mut answer).expect("answered");
            assert_eq!(u64::from_le_bytes(answer), number, "{mode}");
        }
        let mut sender = kernel.try_clone().expect("cloned");
        let sent = &data;
        scope.spawn(move || {
            sender.write_all(sent).expect("written");
            sender.shutdown(std::net::Shutdown::Write).expect("open");
        });
        let mut back = Vec::new();
        kernel.read_to_end(&mut back).expect("all");
        assert!(back == data, "{mode}: bit-exact");
        assert_eq!(echo.join().expect("joined"), BULK + 800, "{mode}");
    });
}

/// The runtime connects to the kernel.
fn server(bed: &TestBed, is_v4: bool, mode: &str) {
    let at = theirs(is_v4, 9);
    let kernel = bed.at_peer(|| std::net::TcpListener::bind(at).expect("bound"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (stream, _) = kernel.accept().expect("a connection");
            let mut stream = with_timeouts(stream);
            let mut request = Vec::new();
            stream.read_to_end(&mut request).expect("a request");
            stream.write_all(&request).expect("written");
        });
        let stream = connect(&bed.runtime, at);
        stream.write_all(b"from user space").expect("written");
        stream.shutdown(Shutdown::Write).expect("open");
        let mut answer = Vec::new();
        (&stream).read_to_end(&mut answer).expect("an answer");
        assert_eq!(answer, b"from user space", "{mode}");
    });
}
