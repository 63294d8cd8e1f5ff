//! Requests and responses, bulk data, many connections, peers that die: in every mode.

use std::net::SocketAddr;

use abey_datapath::{Error, OpenError, Runtime, Shutdown, SocketError, TcpListener, TcpStream};
use abey_nic::{LinkState, MemoryEnd, Options};

use crate::support::{EchoServer, HANG_LIMIT, at, connect, eventually, every_mode, pair, round_trip};

#[test]
fn requests_are_answered_in_every_mode() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 1);
        let echo = EchoServer::start(&server, 7);
        let stream = connect(&client, echo.address);
        for number in 0..200 {
            round_trip(&stream, number);
        }
        assert_eq!(stream.incoming_napi_id(), client.napi_ids()[0]);
        let counters = server.counters(None);
        assert!(counters.packets >= 200, "{mode}: {counters:?}");
        let by_context = [counters.thread_polls > 0, counters.worker_polls > 0, counters.busy_polls > 0];
        let name = mode.to_string();
        let expected = [
            name.starts_with("threaded"),
            name == "workqueue",
            ["napibusy", "fullbusy", "suspend20"].contains(&&*name),
        ];
        assert_eq!(by_context, expected, "{mode}: {counters:?}");
        assert_eq!(counters.suspensions > 0, name == "suspend20", "{mode}: {counters:?}");
        // A packet for which no thread was woken would be sent again. (A thread that lost its CPU has the same effect, but
        // not every time.)
        let again = server.stack_counters().tcp_retransmitted_segments;
        assert!(again < 40, "{mode}: {again} segments were sent again");
    }
}

/// Returns the byte of the stream at a position.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

#[test]
fn bulk_data_arrives_bit_exact_in_every_mode() {
    const BYTES: usize = 64 << 20;
    let table: Vec<u8> = (0..1 << 20).map(pattern).collect();
    for mode in every_mode() {
        let (client, server) = pair(mode, 1);
        let listener = TcpListener::bind(&server, at(9)).expect("a listener");
        listener.set_timeout(Some(HANG_LIMIT));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let stream = connect(&client, at(9));
                for _ in 0..BYTES / table.len() {
                    stream.write_all(&table).expect("written");
                }
                stream.shutdown(Shutdown::Write).expect("open");
                assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0);
            });
            let (stream, _) = listener.accept().expect("a connection");
            stream.set_timeout(Some(HANG_LIMIT));
            let mut buffer = vec![0; 256 << 10];
            let mut received = 0;
            loop {
                let count = stream.read(&mut buffer).expect("data");
                if count == 0 {
                    break;
                }
                let mut data = &buffer[..count];
                while !data.is_empty() {
                    let expected = &table[received % table.len()..];
                    let same = data.len().min(expected.len());
                    assert!(data[..same] == expected[..same], "{mode}: within {same} bytes from {received}");
                    (data, received) = (&data[same..], received + same);
                }
            }
            assert_eq!(received, BYTES, "{mode}");
        });
    }
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 2);
        let echo = EchoServer::start(&server, 7);
        for batch in 0..20 {
            let streams: Vec<_> = (0..50).map(|_| connect(&client, echo.address)).collect();
            for (number, stream) in streams.iter().enumerate() {
                round_trip(stream, batch * 100 + number as u64);
            }
        }
        eventually("all connections have ended", || {
            let (ours, theirs) = (client.census(), server.census());
            // The listener has a socket in each shard.
            (ours.sockets, ours.held, ours.time_waits) == (0, 0, 0)
                && (theirs.sockets, theirs.held, theirs.time_waits) == (2, 2, 0)
        });
        let counters = server.stack_counters();
        assert_eq!(counters.tcp_passive_opens, 1000, "{mode}");
        drop(echo);
        assert_eq!(server.census().held, 0, "{mode}");
    }
}

#[test]
fn a_peer_whose_process_ends_is_noticed_in_every_mode() {
    for mode in every_mode() {
        let (client, server) = pair(mode, 1);
        let listener = TcpListener::bind(&server, at(9)).expect("a listener");
        listener.set_timeout(Some(HANG_LIMIT));
        let there = connect(&client, at(9));
        let (here, _) = listener.accept().expect("a connection");
        here.set_timeout(Some(HANG_LIMIT));
        round_trip_once(&there, &here);
        // The peer's runtime is dropped, which resets its connections.
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| here.read(&mut [0; 8]));
            drop(client);
            let read = reader.join().expect("joined");
            let reset = abey_datapath::IoError::Network(SocketError::Reset);
            assert!(matches!(&read, Err(Error::Socket(error)) if *error == reset), "{mode}: {read:?}");
        });
        assert!(matches!(there.read(&mut [0; 8]), Err(Error::RuntimeDropped)), "{mode}");
        assert!(matches!(there.write(&[0; 8]), Err(Error::RuntimeDropped)), "{mode}");
    }
}

fn round_trip_once(there: &TcpStream, here: &TcpStream) {
    there.write_all(b"ping").expect("written");
    let mut buffer = [0; 4];
    here.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"ping");
}

#[test]
fn connecting_fails_when_the_link_goes_down() {
    for mode in every_mode() {
        let name = format!("memory:abey-ended-{}-{mode}", std::process::id());
        let mut options = Options::default();
        options.end = MemoryEnd::Create;
        let server = abey_nic::open(&name, &options).expect("created");
        let client = Runtime::builder().nic(&name, Options::default()).mode(mode).address([10, 0, 0, 2].into(), 24);
        let client = client.build().expect("attached");
        assert_eq!(client.link(), LinkState::Up);
        // The peer has no stack that would answer.
        let unreachable = SocketAddr::from(([10, 0, 0, 1], 9));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| TcpStream::connect(&client, unreachable).map(drop));
            eventually("it asks for the neighbour", || client.counters(None).transmitted > 0);
            drop(server);
            let error = waiting.join().expect("joined").expect_err("no answer");
            assert!(matches!(error, OpenError::LinkDown { .. }), "{error}");
        });
        assert_eq!(client.link(), LinkState::Down);
    }
}
