//! Connections that the kernel has at a port that is redirected: attacked from the wire, and in each of their states.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use abey_nic::{Frame, Nic, Options, Ports, Protocol, QueuePair, open};

use crate::common::{HANG_LIMIT, in_namespace, inside, until};
use crate::segment::{ACK, FIN, SYN, Segment};
use crate::{open_near, veth};

/// Where the kernel listens in each test.
const ADDRESSES: [&str; 2] = ["10.8.0.1:80", "[fd08::1]:80"];

/// A NIC at the near end that serves the addresses of the device, and an attacker at the far end.
struct Bed {
    far: File,
    _nic: Nic,
    ports: Ports,
    queue: Box<dyn QueuePair>,
    attacker: Box<dyn QueuePair>,
    _far_nic: Nic,
    far_ports: Ports,
}

fn single_queue(nic: &mut Nic) -> Box<dyn QueuePair> {
    nic.take_queues().pop().expect("a queue")
}

impl Bed {
    fn new() -> Self {
        let far = veth(1);
        let mut nic = open_near();
        let mut far_nic = inside(&far, || open("af_xdp:far0", &Options::default()).expect("open"));
        let (ports, far_ports) = (nic.ports().expect("ports").clone(), far_nic.ports().expect("ports").clone());
        let (queue, attacker) = (single_queue(&mut nic), single_queue(&mut far_nic));
        far_ports.serve("10.8.0.2".parse().expect("an address"), true).expect("serve");
        Self { far, _nic: nic, ports, queue, attacker, _far_nic: far_nic, far_ports }
    }

    /// Sends frames from the far end.
    fn send(&mut self, frames: &[Frame]) {
        let mut sent = 0;
        until("the frames are sent", || {
            sent += self.attacker.transmit(&frames[sent..]).expect("transmit");
            self.attacker.kick().expect("kick");
            sent == frames.len()
        });
    }

    /// Receives a segment over IPv4 that the attacker's port was sent.
    fn answer(&mut self) -> Segment {
        let mut into = Frame::burst(1, 1500);
        until("an answer", || self.attacker.receive(&mut into).expect("receive") == 1);
        Segment::parse_v4(&into[0]).expect("a segment")
    }

    /// The number of frames that were redirected since the last call.
    fn redirected(&mut self) -> usize {
        self.queue.receive(&mut Frame::burst(64, 1500)).expect("receive")
    }

    fn connect(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let to = listener.local_addr().expect("bound");
        let far_end = inside(&self.far, || TcpStream::connect_timeout(&to, HANG_LIMIT).expect("connected"));
        let near_end = listener.accept().expect("accepted").0;
        for stream in [&near_end, &far_end] {
            stream.set_read_timeout(Some(HANG_LIMIT)).expect("timeout");
        }
        (near_end, far_end)
    }
}

fn exchange(near: &mut TcpStream, far: &mut TcpStream) {
    let mut byte = [0];
    far.write_all(b"x").expect("sent");
    near.read_exact(&mut byte).expect("received");
    near.write_all(b"y").expect("sent");
    far.read_exact(&mut byte).expect("received");
}

#[test]
fn a_forged_syn_does_not_end_a_connection_of_the_kernel() {
    in_namespace(|| {
        let mut bed = Bed::new();
        for at in ADDRESSES {
            let listener = TcpListener::bind(at).expect("bind");
            let (mut near_end, mut far_end) = bed.connect(&listener);
            bed.ports.register(Protocol::Tcp, 80).expect("register");
            let (from, to) = (near_end.peer_addr().expect("connected"), near_end.local_addr().expect("connected"));
            bed.send(&[Segment::syn(from, to).frame()]);
            exchange(&mut near_end, &mut far_end);
            assert_eq!(bed.redirected(), 0, "{at}");
            bed.ports.release(Protocol::Tcp, 80).expect("release");
        }
    });
}

#[test]
fn a_flood_of_syns_does_not_end_connections_of_the_kernel() {
    // More than any map of the program has entries.
    const SOURCES: u32 = 70_000;
    in_namespace(|| {
        let mut bed = Bed::new();
        let listener = TcpListener::bind("10.8.0.1:80").expect("bind");
        let (mut near_end, mut far_end) = bed.connect(&listener);
        bed.ports.register(Protocol::Tcp, 80).expect("register");
        // The kernel drops what it would have to answer by a route that it does not have.
        for first in (0..SOURCES).step_by(1000) {
            let forged = |number: u32| {
                let from =
                    SocketAddr::from(([198, 18 + (number >> 16) as u8, (number >> 8) as u8, number as u8], 4000));
                Segment::syn(from, "10.8.0.1:22".parse().expect("an address")).frame()
            };
            bed.send(&(first..first + 1000).map(forged).collect::<Vec<_>>());
        }
        exchange(&mut near_end, &mut far_end);
        assert_eq!(bed.redirected(), 0);
    });
}

#[test]
fn full_maps_do_not_end_connections_of_the_kernel() {
    in_namespace(|| {
        let bed = Bed::new();
        let listener = TcpListener::bind("10.8.0.1:80").expect("bind");
        let (mut near_end, mut far_end) = bed.connect(&listener);
        // The session's own port is one of them.
        for port in 1..=u16::MAX {
            bed.ports.register(Protocol::Tcp, port).expect("register");
        }
        bed.ports.register(Protocol::Udp, 1).expect("register");
        bed.ports.register(Protocol::Udp, 2).expect_err("the map of ports is full");
        let address = |number: u16| std::net::IpAddr::from([10, 9, (number >> 8) as u8, number as u8]);
        let full = (0..u16::MAX).find(|number| bed.ports.serve(address(*number), true).is_err());
        assert_eq!(full, Some(4094), "the map of addresses is full: two are those of the device");
        let to: SocketAddr = "10.8.0.1:80".parse().expect("an address");
        let full =
            (1..u16::MAX).find(|port| bed.ports.pass_flow(to, SocketAddr::new(address(1), *port), false).is_err());
        assert_eq!(full, Some(4097), "the map of held flows is full");
        exchange(&mut near_end, &mut far_end);
    });
}

#[test]
fn a_connection_from_before_the_program_is_the_kernels() {
    in_namespace(|| {
        let far = veth(1);
        let listener = TcpListener::bind("10.8.0.1:80").expect("bind");
        let mut far_end = inside(&far, || TcpStream::connect("10.8.0.1:80").expect("connected"));
        let mut near_end = listener.accept().expect("accepted").0;
        for stream in [&near_end, &far_end] {
            stream.set_read_timeout(Some(HANG_LIMIT)).expect("timeout");
        }
        let nic = open_near();
        nic.ports().expect("ports").register(Protocol::Tcp, 80).expect("register");
        exchange(&mut near_end, &mut far_end);
    });
}

/// A peer that no kernel has, so that a test sends each of its segments.
const PEER: &str = "10.8.0.2:4000";

/// Answers the kernel's SYN-ACK by hand, with `between` before the last segment of the handshake.
fn shake_hands(bed: &mut Bed, between: impl FnOnce(&Bed)) -> Segment {
    let (from, to) = (PEER.parse().expect("an address"), ADDRESSES[0].parse().expect("an address"));
    bed.far_ports.register(Protocol::Tcp, 4000).expect("register");
    bed.send(&[Segment::syn(from, to).frame()]);
    let answer = bed.answer();
    assert_eq!((answer.flags, answer.ack), (SYN | ACK, 78));
    between(bed);
    let last = Segment { flags: ACK, seq: answer.ack, ack: answer.seq.wrapping_add(1), ..Segment::syn(from, to) };
    bed.send(&[last.frame()]);
    last
}

#[test]
fn a_handshake_of_the_kernel_goes_on_after_the_port_is_registered() {
    // With cookies the kernel keeps nothing of the handshake.
    for cookies in ["1", "2"] {
        in_namespace(|| {
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", cookies).expect("a setting");
            let mut bed = Bed::new();
            let listener = TcpListener::bind(ADDRESSES[0]).expect("bind");
            listener.set_nonblocking(true).expect("non-blocking");
            shake_hands(&mut bed, |bed| bed.ports.register(Protocol::Tcp, 80).expect("register"));
            until("the connection is accepted", || listener.accept().is_ok());
            // A segment of neither a connection nor a handshake goes where the port does.
            let (from, to) = ("10.8.0.2:4001".parse().expect("an address"), ADDRESSES[0].parse().expect("an address"));
            bed.send(&[Segment { flags: ACK, ack: 1, ..Segment::syn(from, to) }.frame()]);
            until("it is redirected", || bed.redirected() == 1);
        });
    }
}

#[test]
fn time_wait_of_the_kernel_stays_the_kernels() {
    in_namespace(|| {
        let mut bed = Bed::new();
        let listener = TcpListener::bind(ADDRESSES[0]).expect("bind");
        let last = shake_hands(&mut bed, |_| ());
        bed.ports.register(Protocol::Tcp, 80).expect("register");
        drop(listener.accept().expect("accepted"));
        let mut fin = bed.answer();
        while fin.flags & FIN == 0 {
            fin = bed.answer();
        }
        let closing = Segment { flags: FIN | ACK, ack: fin.seq.wrapping_add(1), ..last };
        // The first ends the connection, the second is a retransmission that finds TIME-WAIT.
        for _ in 0..2 {
            bed.send(&[closing.frame()]);
            let answer = bed.answer();
            assert_eq!((answer.flags, answer.ack), (ACK, closing.seq.wrapping_add(1)));
        }
        assert_eq!(bed.redirected(), 0);
    });
}
