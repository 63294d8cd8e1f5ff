//! System calls per request when the server always has work. One thread is client and server in turn, so the result does not
//! depend on other programs: whenever the server waits, its queue has requests.

#[path = "../modes/support.rs"]
#[allow(dead_code)]
mod support;

use std::time::Duration;

use abey_datapath::{Counters, Epoll, Interest, TcpListener, TcpStream};

use support::{HANG_LIMIT, at, connect, mode, pair};

/// The number of requests without an answer.
const DEPTH: usize = 64;

/// Reads a message from every stream that has one, and writes one back. Returns their number.
fn turn(epoll: &Epoll, streams: &[TcpStream], timeout: Duration) -> u64 {
    let mut events = Vec::new();
    epoll.wait(&mut events, DEPTH, Some(timeout)).expect("a wait");
    for event in &events {
        let stream = &streams[event.token as usize];
        stream.read_exact(&mut [0; 8]).expect("a whole message");
        stream.write_all(&[7; 8]).expect("written");
    }
    events.len() as u64
}

/// Returns the server's counters for `requests`.
fn saturate(name: &str, requests: u64) -> Counters {
    let (client, server) = pair(mode(name), 1);
    client.set_mode(mode("fullbusy")).expect("a mode");
    let listener = TcpListener::bind(&server, at(7)).expect("a listener");
    listener.set_timeout(Some(HANG_LIMIT));
    let (here, there) = (server.epoll(), client.epoll());
    let (mut accepted, mut connected) = (Vec::new(), Vec::new());
    for token in 0..DEPTH as u64 {
        let stream = connect(&client, at(7));
        let (other, _) = listener.accept().expect("a connection");
        other.set_nodelay(true).expect("open");
        for (epoll, stream) in [(&here, &other), (&there, &stream)] {
            stream.set_nonblocking(true);
            epoll.add(stream, token, Interest::IN).expect("new");
        }
        stream.write_all(&[7; 8]).expect("written");
        accepted.push(other);
        connected.push(stream);
    }
    let before = server.counters(None);
    let mut answered = 0;
    while answered < requests {
        answered += turn(&here, &accepted, HANG_LIMIT);
        turn(&there, &connected, Duration::ZERO);
    }
    server.counters(None).since(&before)
}

#[test]
fn a_saturated_server_makes_no_system_calls_in_suspend_and_fullbusy() {
    const REQUESTS: u64 = 50_000;
    for name in ["suspend20", "suspend50", "fullbusy"] {
        let counters = saturate(name, REQUESTS);
        let calls = counters.system_calls() as f64 / REQUESTS as f64;
        eprintln!("{name}: {calls:.5} system calls a request, {counters:?}");
        assert!(calls < 0.02, "{name}: {calls} system calls a request: {counters:?}");
        assert!(counters.busy_poll_packets > REQUESTS / 2, "{name}: {counters:?}");
    }
    // The counters show the system calls of other modes.
    let counters = saturate("base", REQUESTS / 10);
    eprintln!("base: {counters:?}");
    assert!(counters.system_calls() > REQUESTS / 500, "{counters:?}");
}
