//! An idle datapath does nothing: with connections open and nothing to do there are no polls and no wake-ups, in every mode
//! that sleeps. Judged by counters, not by time: some stretch must pass in which nothing at all was counted.

#[path = "modes/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the modes")]
mod support;

use std::time::{Duration, Instant};

use abey_datapath::{Counters, Interest, Runtime, TcpListener, TcpStream};
use abey_delivery::Mode;

const CONNECTIONS: u64 = 32;
/// How long nothing may happen. Longer than every timer of a mode (20 ms), and than TCP's after traffic has ended.
const STRETCH: Duration = Duration::from_millis(300);

/// Waits for a stretch in which nothing was counted. What was in the last one, if it never comes.
fn unrest(runtime: &Runtime) -> Option<Counters> {
    let deadline = Instant::now() + support::PATIENCE;
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

/// Connections that have carried a message each way.
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

/// With a thread that waits for events of all connections, and another that waits for data of one, the runtime of the server
/// comes to rest; and both threads are still woken.
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
fn every_mode_that_sleeps_rests() {
    let sleeping = support::every_mode().filter(|mode| ![Mode::FullBusy, Mode::ThreadedBusy].contains(mode));
    std::thread::scope(|scope| {
        for mode in sleeping {
            scope.spawn(move || rests(mode));
        }
    });
}

/// Nobody waits: what is open is the service thread's, which sleeps.
#[test]
fn a_runtime_that_nobody_waits_for_rests() {
    for name in ["base", "suspend20", "threaded", "hold50-timer"] {
        let (client, server) = support::pair(support::mode(name), 1);
        let pairs = connections(&client, &server);
        assert_eq!(unrest(&server), None, "{name} never rests");
        drop(pairs);
    }
}
