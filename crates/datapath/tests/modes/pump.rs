//! Connections over a NIC that no kernel shares: a hand-over gives a pump.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use abey_datapath::handover::{HandOverError, HandedOver};
use abey_datapath::{Error, IoError, Readiness, Runtime, TcpListener, TcpStream};
use rustix::fd::AsFd;

use crate::support::{HANG_LIMIT, at, connect, eventually, mode, pair};

/// Returns the client's and the server's end of a new connection.
fn connected(client: &Runtime, server: &Runtime) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(server, at(7)).expect("a listener");
    listener.set_timeout(Some(HANG_LIMIT));
    let near = connect(client, at(7));
    let (far, _) = listener.accept().expect("a connection");
    far.set_timeout(Some(HANG_LIMIT));
    (near, far)
}

fn pumped(stream: &TcpStream) -> UnixStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    match stream.hand_over(socket.as_fd()).expect("handed over") {
        HandedOver::Pump(end) => with_timeouts(end),
        HandedOver::Kernel => panic!("no kernel has this NIC"),
    }
}

fn with_timeouts(end: OwnedFd) -> UnixStream {
    let end = UnixStream::from(end);
    end.set_read_timeout(Some(HANG_LIMIT)).expect("set");
    end.set_write_timeout(Some(HANG_LIMIT)).expect("set");
    end
}

/// Sends bytes that depend on their positions.
fn send(mut to: impl Write, positions: Range<usize>) {
    let bytes: Vec<_> = positions.map(|at| (at % 251) as u8).collect();
    to.write_all(&bytes).expect("written");
}

/// Receives until the end, which must come after `count` such bytes.
fn receive(mut from: impl Read, count: usize) {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).expect("read");
    assert_eq!(bytes.len(), count);
    assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
}

#[test]
fn bytes_before_and_after_pass_in_both_directions_and_each_half_closes() {
    const BYTES: usize = 3 << 20;
    let (client, server) = pair(mode("base"), 1);
    let (near, far) = connected(&client, &server);
    // Some bytes wait in each direction.
    send(&far, 0..1000);
    eventually("the bytes arrive", || near.readable_bytes().is_ok_and(|bytes| bytes == 1000));
    let end = pumped(&near);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send(&end, 0..BYTES);
            end.shutdown(Shutdown::Write).expect("open");
        });
        scope.spawn(|| receive(&end, BYTES));
        scope.spawn(|| {
            send(&far, 1000..BYTES);
            far.shutdown(abey_datapath::Shutdown::Write).expect("open");
        });
        receive(&far, BYTES);
    });
    drop((end, near, far));
    eventually("the pump ends", || client.census().held == 0 && server.census().held == 0);
}

#[test]
fn every_owner_learns_where_the_connection_went() {
    let (client, server) = pair(mode("base"), 1);
    let (near, far) = connected(&client, &server);
    let requests = client.serve_hand_overs(None).expect("a thread");
    assert!(near.handed_over().is_none());
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| near.read(&mut [0]));
        // Another process would do the same.
        let end = match requests.address().request(near.key(), socket.as_fd()).expect("handed over") {
            HandedOver::Pump(end) => with_timeouts(end),
            HandedOver::Kernel => panic!("no kernel has this NIC"),
        };
        let moved = blocked.join().expect("no panic");
        assert!(matches!(moved, Err(Error::Socket(IoError::Moved))), "{moved:?}");
        assert_eq!(near.readiness(), Readiness::ALL);
        // A second request, and the stream itself, have the same end.
        let Ok(HandedOver::Pump(again)) = requests.address().request(near.key(), socket.as_fd()) else {
            panic!("again")
        };
        let Some(HandedOver::Pump(own)) = near.handed_over() else { panic!("its own") };
        far.write_all(b"abc").expect("written");
        let mut bytes = [0; 3];
        for (mut from, at) in [(end, 0), (with_timeouts(again), 1), (with_timeouts(own), 2)] {
            from.read_exact(&mut bytes[at..=at]).expect("read");
        }
        assert_eq!(&bytes, b"abc");
    });
    // The name of a closed stream is stale.
    let key = near.key();
    drop(near);
    let error = requests.address().request(key, socket.as_fd()).expect_err("closed").to_string();
    assert_eq!(error, HandOverError::from(IoError::NoSuchSocket).to_string());
}

#[test]
fn another_process_gets_a_connection_that_was_closed_here() {
    let (client, server) = pair(mode("base"), 1);
    let requests = client.serve_hand_overs(None).expect("a thread");
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let (near, far) = connected(&client, &server);
    let key = near.key();
    drop(near.hand_over_inherited(socket.as_fd(), || true).expect("handed over"));
    drop(near);
    let HandedOver::Pump(end) = requests.address().request(key, socket.as_fd()).expect("handed over") else {
        panic!("no kernel has this NIC")
    };
    let end = with_timeouts(end);
    send(&far, 0..1000);
    far.shutdown(abey_datapath::Shutdown::Write).expect("open");
    receive(&end, 1000);
    drop(end);
    assert_eq!(far.read(&mut [0]).expect("the end"), 0);
    drop(far);
    // No process asks for this one.
    let (near, far) = connected(&client, &server);
    let is_inherited = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let asked = is_inherited.clone();
    let check = move || asked.load(std::sync::atomic::Ordering::SeqCst);
    drop(near.hand_over_inherited(socket.as_fd(), check).expect("handed over"));
    drop(near);
    is_inherited.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(far.read(&mut [0]).expect("the end"), 0);
    drop(far);
    eventually("the pumps end", || client.census().held == 0 && server.census().held == 0);
}

#[test]
fn urgent_data_stays_in_the_stream() {
    let (client, server) = pair(mode("base"), 1);
    let (near, far) = connected(&client, &server);
    let end = pumped(&near);
    rustix::net::send(&end, b"abc", rustix::net::SendFlags::OOB).expect("sent");
    end.shutdown(Shutdown::Write).expect("open");
    let mut bytes = [0; 8];
    let mut count = 0;
    while count < 3 {
        let more = far.read(&mut bytes[count..]).expect("read");
        assert_ne!(more, 0, "{:?}", &bytes[..count]);
        count += more;
    }
    assert_eq!(&bytes[..3], b"abc");
}

#[test]
fn a_program_that_does_not_read_stops_the_peer() {
    let (client, server) = pair(mode("base"), 1);
    let (near, far) = connected(&client, &server);
    let mut end = pumped(&near);
    far.set_timeout(Some(Duration::from_millis(300)));
    let mut written = 0;
    let bytes = vec![7; 64 << 10];
    while let Ok(count) = far.write(&bytes) {
        written += count;
        assert!(written < 64 << 20, "the pump keeps everything");
    }
    // All of it arrives.
    far.shutdown(abey_datapath::Shutdown::Write).expect("open");
    let mut read = Vec::new();
    end.read_to_end(&mut read).expect("read");
    assert_eq!(read.len(), written);
}

#[test]
fn a_reset_and_a_close_pass_through() {
    let (client, server) = pair(mode("base"), 1);
    // The peer resets.
    let (near, far) = connected(&client, &server);
    let mut end = pumped(&near);
    far.set_linger(Some(Duration::ZERO)).expect("set");
    drop(far);
    let read = end.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(read, Ok(0) | Err(ErrorKind::ConnectionReset)), "{read:?}");
    eventually("writing fails", || end.write(b"x").is_err());
    drop(near);
    // The program closes its last descriptor.
    let (near, far) = connected(&client, &server);
    let end = pumped(&near);
    drop(near);
    (&end).write_all(b"bye").expect("written");
    drop(end);
    let mut text = String::new();
    Read::read_to_string(&mut &far, &mut text).expect("read");
    assert_eq!(text, "bye");
    drop(far);
    eventually("the pumps end", || client.census().held == 0);
}
