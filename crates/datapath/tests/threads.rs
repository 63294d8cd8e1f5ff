//! Several threads that wait in one epoll: each request is reported to one thread, and none is lost.

#[path = "modes/support.rs"]
#[allow(dead_code, reason = "another program uses the rest")]
mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use abey_datapath::{Epoll, Interest, TcpListener, TcpStream};
use support::{HANG_LIMIT, at, builders, connect, mode, round_trip};

const CONNECTIONS: usize = 24;
const ROUNDS: u64 = 40;
const WORKERS: usize = 3;

/// A connection, and whether a thread serves it.
struct Session {
    stream: TcpStream,
    busy: AtomicBool,
}

/// Runs one of the threads. After an event of a one-shot socket no other thread has one until this thread re-arms it.
fn work(epoll: &Epoll, sessions: &[Session], open: &AtomicU32, interest: Interest) {
    let mut events = Vec::new();
    while open.load(Ordering::Acquire) > 0 {
        epoll.wait(&mut events, 4, Some(Duration::from_millis(50))).expect("a wait");
        for event in &events {
            let session = &sessions[event.token as usize];
            assert!(!session.busy.swap(true, Ordering::AcqRel), "one event was reported to two threads");
            let over = serve(&session.stream);
            session.busy.store(false, Ordering::Release);
            if over {
                epoll.remove(&session.stream).expect("added");
                open.fetch_sub(1, Ordering::AcqRel);
            } else {
                epoll.modify(&session.stream, event.token, interest).expect("added");
            }
        }
    }
}

/// Echoes the data of a connection. Returns whether the stream has ended.
fn serve(stream: &TcpStream) -> bool {
    let mut buffer = [0; 64];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(count) => stream.write_all(&buffer[..count]).expect("short messages"),
            Err(error) if error.is_would_block() => return false,
            Err(error) => panic!("read: {error}"),
        }
    }
}

fn several_threads(name: &str, interest: Interest) {
    let (client, server) = builders(2);
    let (client, server) = (client.build().expect("a client"), server.mode(mode(name)).build().expect("a server"));
    let listener = TcpListener::bind(&server, at(7)).expect("a listener");
    listener.set_timeout(Some(HANG_LIMIT));
    let (callers, sessions): (Vec<_>, Vec<_>) = (0..CONNECTIONS)
        .map(|_| {
            let caller = connect(&client, at(7));
            let stream = listener.accept().expect("a connection").0;
            stream.set_nonblocking(true);
            stream.set_nodelay(true).expect("open");
            (caller, Session { stream, busy: AtomicBool::new(false) })
        })
        .unzip();
    let epoll = server.epoll();
    for (token, session) in sessions.iter().enumerate() {
        epoll.add(&session.stream, token as u64, interest).expect("new");
    }
    let open = AtomicU32::new(CONNECTIONS as u32);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(&epoll, &sessions, &open, interest));
        }
        for callers in callers.chunks(CONNECTIONS / 2) {
            scope.spawn(move || {
                for number in 0..ROUNDS {
                    for caller in callers {
                        round_trip(caller, number);
                    }
                }
                for caller in callers {
                    caller.shutdown(abey_datapath::Shutdown::Write).expect("open");
                }
            });
        }
    });
    assert!(epoll.is_empty(), "{name}");
}

#[test]
fn each_request_is_reported_to_one_thread_in_every_kind_of_mode() {
    for name in ["base", "napibusy", "suspend20", "threaded"] {
        several_threads(name, Interest::IN | Interest::ONESHOT);
    }
}

#[test]
fn each_edge_of_a_one_shot_is_reported_to_one_thread() {
    several_threads("suspend20", Interest::IN | Interest::EDGE | Interest::ONESHOT);
}
