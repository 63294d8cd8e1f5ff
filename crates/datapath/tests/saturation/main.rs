//! System calls a request when the server always has work. One thread plays client and server in turn, so that whoever
//! else wants the CPUs has no say in it: whenever the server waits, requests are in its queue.

#[path = "../modes/support.rs"]
#[allow(dead_code)]
mod support;

use std::time::Duration;

use abey_datapath::{Counters, Epoll, Interest, TcpListener, TcpStream};

use support::{PATIENCE, at, connect, mode, pair};

/// Requests that are under way at the same time.
const DEPTH: usize = 64;

/// Reads a message from every stream that has one, and writes one back: how many.
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

/// What a server counted while it answered `requests`.
fn saturate(name: &str, requests: u64) -> Counters {
    let (client, server) = pair(mode(name), 1);
    client.set_mode(mode("fullbusy")).expect("a mode");
    let listener = TcpListener::bind(&server, at(7)).expect("a listener");
    listener.set_timeout(Some(PATIENCE));
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
        answered += turn(&here, &accepted, PATIENCE);
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
    // The same count sees what other modes do.
    let counters = saturate("base", REQUESTS / 10);
    eprintln!("base: {counters:?}");
    assert!(counters.system_calls() > REQUESTS / 500, "{counters:?}");
}
