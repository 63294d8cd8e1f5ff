//! System calls a request when the server is the bottleneck. Alone in its process: whoever shares the CPUs with it decides
//! how often the server runs out of work.

#[path = "../modes/support.rs"]
#[allow(dead_code)]
mod support;

use std::time::Duration;

use abey_datapath::{Counters, Interest};

use support::{EchoServer, PATIENCE, connect, mode, pair, round_trip};

/// Requests that are under way at the same time.
const DEPTH: usize = 64;

/// Keeps a server busy until it has answered `requests`; what it counted meanwhile.
fn saturate(name: &str, requests: u64) -> Counters {
    let (client, server) = pair(mode(name), 1);
    client.set_mode(mode("fullbusy")).expect("a mode");
    let echo = EchoServer::start_with(&server, 7, Duration::from_secs(1), 300);
    let streams: Vec<_> = (0..DEPTH).map(|_| connect(&client, echo.address)).collect();
    let epoll = client.epoll();
    for (token, stream) in streams.iter().enumerate() {
        round_trip(stream, token as u64);
        stream.set_nonblocking(true);
        epoll.add(stream, token as u64, Interest::IN).expect("new");
        stream.write_all(&[7; 8]).expect("written");
    }
    let before = server.counters(None);
    let (mut events, mut answered) = (Vec::new(), 0);
    while answered < requests {
        assert!(epoll.wait(&mut events, DEPTH, Some(PATIENCE)).expect("a wait") > 0, "{answered} were answered");
        for event in &events {
            let stream = &streams[event.token as usize];
            stream.read_exact(&mut [0; 8]).expect("a whole response");
            stream.write_all(&[7; 8]).expect("written");
            answered += 1;
        }
    }
    server.counters(None).since(&before)
}

#[test]
fn a_saturated_server_makes_no_system_calls_in_suspend_and_fullbusy() {
    const REQUESTS: u64 = 20_000;
    for name in ["suspend20", "fullbusy"] {
        // A client that lost its CPU to somebody else leaves the server without work: that is no saturation.
        let few = (0..10).any(|_| {
            let counters = saturate(name, REQUESTS);
            let calls = counters.system_calls() as f64 / REQUESTS as f64;
            eprintln!("{name}: {calls:.5} system calls a request, {counters:?}");
            calls < 0.02
        });
        assert!(few, "{name}: 0.02 system calls a request or more, every time");
    }
    // The same count sees what other modes do.
    let counters = saturate("base", REQUESTS / 10);
    eprintln!("base: {counters:?}");
    assert!(counters.system_calls() > REQUESTS / 100, "{counters:?}");
}
