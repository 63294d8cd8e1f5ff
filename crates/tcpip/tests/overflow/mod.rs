//! What a listener leaves to the kernel's: SYNs that it has no room for, and connections that no process accepts.

use std::time::Duration;

use abey_tcpip::{Overdue, Overflow};

use crate::common::script::{Script, seg};

fn script() -> Script {
    Script::new(|_| ())
}

fn overflow(limit: usize, timeout: Option<u64>) -> Overflow {
    Overflow { limit, accept_timeout: timeout.map(Duration::from_millis) }
}

/// A SYN beyond the limit is answered when the limit rises in time, and is otherwise due for the kernel.
#[test]
fn a_listener_at_its_limit_holds_syns_for_a_moment() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 4).unwrap();
    script.stack.set_overflow(script.at(), listener, overflow(0, None)).unwrap();
    let syn = seg("S", 0, 0).options(1000, Some(5), true).timestamp(50, 0);
    for _ in 0..2 {
        script.inject(&syn);
        script.expect_nothing();
    }
    assert!(script.stack.take_overflow_notice() && !script.stack.take_overflow_notice());
    script.stack.set_overflow(script.at(), listener, overflow(1, None)).unwrap();
    script.expect_one();
    // The half-open connection counts.
    script.ports.1 += 1;
    script.inject(&syn);
    script.expect_nothing();
    assert_eq!(script.stack.take_overdue(script.at()), []);
    let due = script.stack.overdue_deadline().expect("a SYN is held");
    let passed = script.stack.take_overdue(due);
    let [Overdue::Syn(passed)] = &passed[..] else { panic!("{passed:?}") };
    assert_eq!((passed.remote.port(), passed.local.port()), (script.ports.1, 80));
    // It is the SYN that arrived.
    script.stack.set_overflow(script.at(), listener, overflow(9, None)).unwrap();
    script.stack.handle_frame(script.at(), &passed.frame);
    assert_eq!(script.expect_one().timestamp.unwrap().1, 50);
    assert_eq!((script.stack.counters().tcp_passed_syns, script.stack.overdue_deadline()), (1, None));
    let stale = script.stack.set_overflow(script.at(), abey_tcpip::SocketId::default(), overflow(1, None));
    assert!(stale.is_err());
}

/// A listener without a limit of its own is full when its backlog is, and resumes when half of that was accepted.
#[test]
fn a_full_backlog_leaves_syns_to_the_kernel_until_it_is_half_empty() {
    let mut script = script();
    let address = "0.0.0.0:80".parse().unwrap();
    let listener = script.stack.listen(address, 4).unwrap();
    script.stack.set_overflow(script.at(), listener, overflow(usize::MAX, None)).unwrap();
    for port in 4000..4004 {
        establish(&mut script, port);
    }
    assert_eq!(
        script.stack.take_overdue(script.at() + Duration::from_secs(1)),
        [],
        "connections wait as long as it takes"
    );
    script.ports.1 = 4004;
    script.inject(&seg("S", 0, 0));
    script.expect_nothing();
    let due = script.stack.overdue_deadline().expect("a SYN is held");
    assert!(matches!(script.stack.take_overdue(due)[..], [Overdue::Syn(_)]));
    for waiting in [3, 2] {
        assert_eq!(script.stack.poll_resumed_listener(), None, "{} wait", waiting + 1);
        script.stack.accept(listener).unwrap();
    }
    assert_eq!(script.stack.poll_resumed_listener(), Some(address));
    // Half-open connections count for half of the room.
    for port in 5000..5004 {
        script.ports.1 = port;
        script.initial = None;
        script.inject(&seg("S", 0, 0));
        assert_eq!(script.sent().len(), usize::from(port < 5002), "{port}");
    }
    assert_eq!(script.stack.counters().tcp_listen_drops, 0);
}

fn establish(script: &mut Script, port: u16) {
    script.ports.1 = port;
    script.initial = None;
    script.inject(&seg("S", 0, 0).options(1000, Some(5), true).timestamp(50, 0));
    let answer = script.expect_one();
    script.inject(&seg("A", 1, 1).timestamp(51, answer.timestamp.unwrap().0));
}

/// A connection that is not accepted in time is due for the kernel; it is accepted here if the kernel does not take it.
#[test]
fn an_unaccepted_connection_is_due_for_the_kernel() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 4).unwrap();
    script.stack.set_overflow(script.at(), listener, overflow(usize::MAX, Some(20))).unwrap();
    establish(&mut script, 4000);
    script.inject(&seg("AP", 1, 1).data(8).timestamp(60, 0));
    script.inject(&seg("FA", 9, 1).timestamp(61, 0));
    script.sent();
    assert!(script.stack.take_overflow_notice());
    let due = script.stack.overdue_deadline().expect("it waits");
    assert_eq!(due, script.at() + Duration::from_millis(20));
    // Another one later is no news.
    establish(&mut script, 4001);
    assert!(!script.stack.take_overflow_notice());
    assert_eq!(script.stack.take_overdue(script.at()), []);
    let overdue = script.stack.take_overdue(due);
    let [Overdue::Connection(first, 80), Overdue::Connection(second, 80)] = overdue[..] else { panic!("{overdue:?}") };
    assert_eq!(script.stack.take_overdue(due), [], "both are tried again later");
    assert!(script.stack.overdue_deadline().is_some_and(|again| again > due));

    let exported = script.stack.export_unaccepted(due, first).unwrap();
    assert_eq!(
        (&exported.connection.receive.unread[..], exported.is_half_open),
        (&[1, 2, 3, 4, 5, 6, 7, 8][..], false)
    );
    assert_eq!(exported.connection.timestamps.unwrap().recent, 60);
    let frames: Vec<_> = exported.ack([2; 6]).into_iter().chain(exported.segments([2; 6], 9)).collect();
    let found: Vec<_> = frames
        .iter()
        .map(|frame| abey_tcpip::is_segment_of(frame, exported.connection.local, exported.connection.remote))
        .collect();
    assert_eq!(found, [true; 3], "the end of the handshake, the question and the FIN");
    script.stack.move_out_unaccepted(due, first).unwrap();
    // What arrives late is dropped.
    script.ports.1 = 4000;
    script.inject(&seg("A", 10, 1).timestamp(62, 0));
    script.expect_nothing();
    assert_eq!(script.stack.counters().tcp_moved_unaccepted, 1);
    assert_eq!(script.stack.accept(listener), Ok(second));
    assert!(script.stack.accept(listener).is_err());
    assert!(script.stack.export_unaccepted(due, second).is_err(), "it was accepted");
    assert_eq!(script.stack.overdue_deadline(), None);
}

/// Before a listener is closed, all that it has can be taken: a held SYN, a half-open and an established connection.
#[test]
fn all_of_a_listener_can_be_taken() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 9).unwrap();
    script.stack.set_overflow(script.at(), listener, overflow(2, None)).unwrap();
    establish(&mut script, 4000);
    for (port, answers) in [(4001, 1), (4002, 0)] {
        script.ports.1 = port;
        script.inject(&seg("S", 0, 0));
        assert_eq!(script.sent().len(), answers);
    }
    let all = script.stack.take_all_unaccepted(listener);
    let [Overdue::Syn(_), Overdue::Connection(established, 80), Overdue::Connection(half_open, 80)] = all[..] else {
        panic!("{all:?}")
    };
    for (id, is_half_open) in [(established, false), (half_open, true)] {
        let exported = script.stack.export_unaccepted(script.at(), id).unwrap();
        assert_eq!((exported.is_half_open, exported.ack([2; 6]).is_none()), (is_half_open, is_half_open));
        script.stack.move_out_unaccepted(script.at(), id).unwrap();
    }
    script.stack.close(script.at(), listener).unwrap();
    script.expect_nothing();
    assert_eq!(script.stack.socket_count(), 0);
}

/// A listener that ends resets the half-open connections that it has answered. Of the others the peer knows nothing: its SYN,
/// sent again, may find the kernel's listener.
#[test]
fn a_syn_that_was_not_answered_is_not_reset() {
    for is_answered in [true, false] {
        let mut script = script();
        let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 9).unwrap();
        script.inject(&seg("S", 0, 0));
        if is_answered {
            assert!(script.expect_one().has('S'));
        }
        script.stack.close(script.at(), listener).unwrap();
        let sent = script.sent();
        assert_eq!(sent.iter().map(|reset| reset.has('R')).collect::<Vec<_>>(), vec![true; usize::from(is_answered)]);
        assert_eq!(script.stack.socket_count(), 0);
    }
}
