//! A runtime that connects to its own addresses: on `memory:self`, which has no peer, and on a NIC that has one.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use abey_datapath::{Runtime, Shutdown, TcpListener, TcpStream, UdpSocket};
use abey_nic::Options;

use crate::support::{EchoServer, HANG_LIMIT, builders, connect, every_mode, mode, round_trip};

const LOOPBACK: [&str; 3] = ["127.0.0.1", "127.8.8.8", "::1"];

/// Returns a runtime on `memory:self`.
fn alone(name: &str, queues: usize) -> Runtime {
    let mut options = Options::default();
    options.memory.queues = queues;
    let builder = Runtime::builder().nic("memory:self", options).mode(mode(name));
    let builder = builder.address([127, 0, 0, 1].into(), 8).address(ip("::1"), 128);
    builder.build().expect("a runtime")
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(address), port)
}

#[test]
fn a_program_connects_to_itself_in_every_mode() {
    for mode in every_mode() {
        let runtime = alone(&mode.to_string(), 1);
        for (address, port) in LOOPBACK.into_iter().zip(7..) {
            let echo = EchoServer::start_at(&runtime, at(address, port), Duration::from_millis(100));
            let stream = connect(&runtime, echo.address);
            (0..100).for_each(|number| round_trip(&stream, number));
        }
        let counters = runtime.counters(None);
        assert!(counters.looped > 600 && counters.packets == 0, "{mode}: {counters:?}");
        assert_eq!(runtime.nic_counters().drops.total(), 0, "{mode}");
    }
}

#[test]
fn the_connections_of_several_queues_live_in_all_of_them() {
    let runtime = alone("suspend20", 4);
    let echo = EchoServer::start_at(&runtime, at("127.0.0.1", 7), Duration::from_millis(100));
    let streams: Vec<TcpStream> = (0..32).map(|_| connect(&runtime, echo.address)).collect();
    for number in 0..20 {
        streams.iter().for_each(|stream| round_trip(stream, number));
    }
    for shard in 0..4 {
        assert!(runtime.counters(Some(shard)).looped > 0, "queue {shard}");
    }
}

#[test]
fn one_thread_is_both_ends() {
    let runtime = alone("base", 2);
    let listener = TcpListener::bind(&runtime, at("::1", 7)).expect("a listener");
    let client = connect(&runtime, at("::1", 7));
    let (server, peer) = listener.accept().expect("a connection");
    assert_eq!(Ok(peer), client.local_addr().map_err(|error| error.to_string()));
    client.write_all(b"hello").expect("written");
    let mut buffer = [0; 8];
    server.set_nonblocking(true);
    assert_eq!(server.read(&mut buffer).expect("delivered when the write returned"), 5);
    client.shutdown(Shutdown::Write).expect("open");
    assert_eq!(server.read(&mut buffer).expect("the end"), 0);
}

#[test]
fn bulk_data_between_two_threads_arrives_bit_exact() {
    let runtime = alone("base", 2);
    let listener = TcpListener::bind(&runtime, at("127.0.0.1", 9)).expect("a listener");
    let data: Vec<u8> = (0..16 << 20).map(|at: u32| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stream = connect(&runtime, at("127.0.0.1", 9));
            stream.write_all(&data).expect("written");
        });
        let (stream, _) = listener.accept().expect("a connection");
        stream.set_timeout(Some(HANG_LIMIT));
        let mut back = vec![0; data.len()];
        stream.read_exact(&mut back).expect("all of it");
        assert!(back == data);
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    });
    assert_eq!(runtime.stack_counters().tcp_retransmitted_segments, 0);
}

#[test]
fn datagrams_reach_any_queue_and_a_closed_port_refuses() {
    let runtime = alone("base", 4);
    for address in LOOPBACK {
        let server = UdpSocket::bind(&runtime, at(address, 5353)).expect("bound");
        server.set_timeout(Some(HANG_LIMIT));
        for length in [0, 1, 1400, 40_000] {
            let client = UdpSocket::bind(&runtime, at(address, 0)).expect("bound");
            client.set_timeout(Some(HANG_LIMIT));
            client.connect(Some(at(address, 5353))).expect("connected");
            client.send_to(&vec![7; length], None).expect("sent");
            let mut buffer = vec![0; 65_536];
            let (count, from, to) = server.recv_from(&mut buffer).expect("received");
            assert_eq!((count, from, to), (length, client.local_addr().expect("bound"), ip(address)));
            server.send_to(&buffer[..count], Some(from)).expect("sent");
            assert_eq!(client.recv_from(&mut buffer).expect("answered").0, length);
        }
        drop(server);
        let client = UdpSocket::bind(&runtime, at(address, 0)).expect("bound");
        client.connect(Some(at(address, 5353))).expect("connected");
        client.send_to(b"x", None).expect("sent");
        let refused = client.recv_from(&mut [0]).expect_err("nothing has the port");
        assert!(refused.to_string().contains("refused"), "{refused}");
        let refused = TcpStream::connect_timeout(&runtime, at(address, 5353), Some(HANG_LIMIT));
        assert!(refused.expect_err("nothing listens").to_string().contains("refused"));
    }
}

#[test]
fn on_a_nic_with_a_peer_the_own_address_is_looped_and_the_peers_is_not() {
    for queues in [1, 4] {
        let (one, other) = builders(queues);
        let (one, other) = (one.build().expect("a runtime"), other.build().expect("a runtime"));
        let servers = ["10.0.0.1", "fd00::1"].map(|address| {
            let echo = EchoServer::start_at(&one, at(address, 7), Duration::from_millis(100));
            let stream = connect(&one, echo.address);
            (0..50).for_each(|number| round_trip(&stream, number));
            echo
        });
        // The other host has sent nothing yet.
        let own = one.counters(None);
        assert!(own.looped > 200 && own.packets == 0, "{own:?}");
        for echo in &servers {
            let stream = connect(&other, echo.address);
            (0..50).for_each(|number| round_trip(&stream, number));
        }
        assert_eq!(other.counters(None).looped, 0);
    }
}
