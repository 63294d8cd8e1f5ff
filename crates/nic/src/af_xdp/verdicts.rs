//! Verdicts of the XDP program on frames made by hand (BPF_PROG_TEST_RUN), and what they cost.
//!
//! `cargo test -p abey-nic --lib verdicts -- --nocapture` prints the durations.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;

use super::ports::Redirect;
use super::{Ports, XdpQueue, XdpShape};
use crate::interface::Interface;
use crate::queue::QueuePair;
use crate::redirect::Protocol;

/// Results of an XDP program in `linux/bpf.h`.
const PASS: u32 = 2;
const REDIRECT: u32 = 4;

/// Runs a test in a namespace with the veth pair `v0` (10.8.0.1) and `v1` (10.8.0.2, static neighbours), whose queue is open.
fn with_device(test: impl FnOnce(&mut XdpQueue, &Ports, u32) + Send) {
    if !nix::unistd::geteuid().is_root() || Command::new("ip").arg("-V").output().is_err() {
        eprintln!("skipped: needs root and the `ip` program to make a device");
        return;
    }
    let run = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a namespace");
        for words in [
            "link set lo up",
            "link add v0 type veth peer name v1",
            "addr add 10.8.0.1/24 dev v0",
            "link set v0 up",
            "link set v1 up",
            "neigh add 10.8.0.2 lladdr 02:00:00:00:08:02 dev v0",
        ] {
            ip(words);
        }
        let (mut queues, ports, _) = super::open("v0", XdpShape::default()).expect("open");
        ports.serve([10, 8, 0, 1].into(), true).expect("serve");
        ports.register(Protocol::Tcp, 80).expect("register");
        ports.register(Protocol::Udp, 80).expect("register");
        test(&mut queues[0], &ports, Interface::new("v0").expect("a socket").index().expect("a device"));
    };
    std::thread::scope(|scope| {
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn ip(words: &str) {
    assert!(Command::new("ip").args(words.split(' ')).status().expect("ip").success(), "{words}");
}

/// A frame with the headers of IPv4 and of TCP (17 for UDP) to `to`:port from a peer's port, without checksums.
fn frame(protocol: u8, to: [u8; 4], port: u16, from_port: u16, flags: u8) -> Vec<u8> {
    let mut bytes = vec![2; 12];
    bytes.extend([0x08, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
    bytes.extend([[10, 8, 0, 2], to].concat());
    bytes.extend([from_port.to_be_bytes(), port.to_be_bytes()].concat());
    bytes.extend([0, 0, 0, 9, 0, 0, 0, 9, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    bytes
}

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;
const OWN: [u8; 4] = [10, 8, 0, 1];

#[test]
fn the_kernel_keeps_what_is_its_own() {
    with_device(|_, ports, index| {
        let Redirect::Program { program, .. } = &ports.redirect else { panic!("an own program") };
        let verdict = |what: &str, frame: &[u8]| {
            let (verdict, duration) = program.try_on(index, frame, 100_000).expect("a run");
            println!("{duration:4} ns  {what}");
            verdict
        };
        let segment = |port, from, flags| frame(6, OWN, port, from, flags);
        assert_eq!(verdict("a port that is not registered", &segment(81, 4000, ACK)), PASS);
        assert_eq!(verdict("another host's address", &frame(6, [10, 8, 0, 9], 80, 4000, ACK)), PASS);
        assert_eq!(verdict("UDP", &frame(17, OWN, 80, 4000, 0)), REDIRECT);
        assert_eq!(verdict("a segment, and no socket of the kernel", &segment(80, 4000, ACK)), REDIRECT);
        let listener = TcpListener::bind("0.0.0.0:80").expect("bound");
        assert_eq!(verdict("a segment, and a listener of the kernel", &segment(80, 4000, ACK)), REDIRECT);
        assert_eq!(verdict("a first segment, and a listener of the kernel", &segment(80, 4000, SYN)), REDIRECT);

        // A connection over loopback whose far end has the address 10.8.0.2.
        ip("addr add 10.8.0.2/32 dev lo");
        let far = UdpSocket::bind("10.8.0.2:0").expect("the address").local_addr().expect("bound").port();
        let connected = std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = nix::sys::socket::socket(
                    nix::sys::socket::AddressFamily::Inet,
                    nix::sys::socket::SockType::Stream,
                    nix::sys::socket::SockFlag::empty(),
                    None,
                )
                .expect("a socket");
                let at = |last, port| nix::sys::socket::SockaddrIn::new(10, 8, 0, last, port);
                use std::os::fd::AsRawFd;
                nix::sys::socket::bind(socket.as_raw_fd(), &at(2, far)).expect("bound");
                nix::sys::socket::connect(socket.as_raw_fd(), &at(1, 80)).expect("connected");
                TcpStream::from(socket)
            });
            listener.accept().expect("accepted").0
        });
        let from = connected.peer_addr().expect("connected").port();
        assert_eq!(verdict("a segment of a connection of the kernel", &segment(80, from, ACK)), PASS);
        assert_eq!(verdict("a forged first segment of it", &segment(80, from, SYN)), PASS);
    });
}

#[test]
fn frames_for_the_kernel_find_buffers_although_nothing_is_received() {
    with_device(|queue, _, _| {
        // Twice as many datagrams as the receive ring holds, of which none is received.
        let length = XdpShape::default().slots;
        flood(2 * length);
        let (full, empty) = queue.shortages();
        assert!(full >= u64::from(length), "{full} frames found the ring full");
        assert_eq!(empty, 0, "each frame found a buffer");
        assert!(queue.counters().drops.kernel >= full);
    });
}

/// Sends frames to port 80 into `v1`, and so out of `v0`'s receive queue.
fn flood(frames: u32) {
    let (mut queues, _ports, _) = super::open("v1", XdpShape::default()).expect("open");
    let frame = crate::frame::Frame::from(&frame(17, OWN, 80, 4000, 0)[..]);
    for _ in 0..frames {
        while queues[0].transmit(std::slice::from_ref(&frame)).expect("transmit") == 0 {
            queues[0].kick().expect("kick");
        }
        queues[0].kick().expect("kick");
    }
}
