//! An idle datapath with open connections makes no polls and has no wake-ups, in every mode that sleeps. The tests read
//! counters, and do not measure time: a period must pass in which no counter changes.

#[path = "modes/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the modes")]
mod support;

use std::time::{Duration, Instant};

use abey_datapath::{Counters, Interest, Runtime, TcpListener, TcpStream};
use abey_delivery::Mode;

const CONNECTIONS: u64 = 32;
/// The length of the period. It is longer than every timer of a mode (20 ms), and than TCP's timers after traffic has ended.
const STRETCH: Duration = Duration::from_millis(300);

/// Waits for a period in which no counter changes. Returns the changes of the last period if there is none.
fn unrest(runtime: &Runtime) -> Option<Counters> {
    let deadline = Instant::now() + support::HANG_LIMIT;
    loop {
        let before = runtime.counters(None);
        std::thread::sleep(STRETCH);
        let counted = runtime.counters(None).since(&before);
        if counted == Counters::default() {
            return None;
        }
        if Instant::now() > deadline {
            return Some(counted);
        }
    }
}

/// Returns connections that have carried a message each way.
fn connections(client: &Runtime, server: &Runtime) -> Vec<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(server, support::at(7)).expect("a listener");
    let pairs = (0..CONNECTIONS).map(|number| {
        let ours = support::connect(client, listener.local_addr().expect("open"));
        let (theirs, _) = listener.accept().expect("a connection");
        for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
            from.write_all(&number.to_le_bytes()).expect("written");
            let mut message = [0; 8];
            to.read_exact(&mut message).expect("a message");
            assert_eq!(message, number.to_le_bytes());
        }
        (ours, theirs)
    });
    pairs.collect()
}

/// One thread waits for events of all connections, another for data of one. The server's runtime becomes idle, and both
/// threads are woken afterwards.
fn rests(mode: Mode) {
    let (client, server) = support::pair(mode, 1);
    let pairs = connections(&client, &server);
    let epoll = server.epoll();
    for ((_, theirs), token) in pairs[1..].iter().zip(1..) {
        epoll.add(theirs, token, Interest::IN).expect("new");
    }
    std::thread::scope(|scope| {
        let events = scope.spawn(|| {
            let mut events = Vec::new();
            epoll.wait(&mut events, 1, None).expect("a wait");
            events[0].token
        });
        pairs[0].1.set_timeout(None);
        let message = scope.spawn(|| {
            let mut message = [0; 1];
            pairs[0].1.read_exact(&mut message).expect("a message");
            message[0]
        });
        let unrest = unrest(&server);
        pairs[0].0.write_all(&[9]).expect("written");
        pairs[5].0.write_all(&[9]).expect("written");
        assert_eq!(message.join().expect("read"), 9, "{mode}");
        assert_eq!(events.join().expect("waited"), 5, "{mode}");
        assert_eq!(unrest, None, "{mode} never rests");
    });
}

#[test]
fn every_mode_that_sleeps_becomes_idle() {
    let sleeping = support::every_mode().filter(|mode| ![Mode::FullBusy, Mode::ThreadedBusy].contains(mode));
    std::thread::scope(|scope| {
        for mode in sleeping {
            scope.spawn(move || rests(mode));
        }
    });
}

/// No application thread waits: the service thread handles the open connections, and sleeps.
#[test]
fn a_runtime_without_waiting_threads_becomes_idle() {
    for name in ["base", "suspend20", "threaded", "hold50-timer"] {
        let (client, server) = support::pair(support::mode(name), 1);
        let pairs = connections(&client, &server);
        assert_eq!(unrest(&server), None, "{name} never rests");
        drop(pairs);
    }
}
