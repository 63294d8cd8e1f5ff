//! Data transfer segment by segment: windows, acknowledgements, Nagle, keep-alive and events.

mod common;

use abey_tcpip::{Keepalive, Readiness, SocketError};
use common::{
    MILLISECOND, SECOND,
    script::{Script, Seg, ranges, seg},
};

fn script() -> Script {
    Script::new(|_| ())
}

/// RFC 7323, 2: the window field is scaled, except in SYNs.
#[test]
fn windows_are_scaled() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, Some(2), true).window(1000));
    // The last ACK advertised 1000 << 2, less than the ten segments of the initial window.
    script.write(id, 20_000);
    assert_eq!(script.sent().len(), 4);
    script.inject(&seg("A", 1, 4001).window(2500));
    assert_eq!(script.sent().len(), 10);
    // The stack's own window is 128 KiB in units of 2^7.
    script.inject(&seg("PA", 1, 4001).data(1).window(2500));
    assert_eq!(script.sent().last().unwrap().window, 1023);
}

/// RFC 9293, 3.8.6.1 and 3.8.6.2.1: a closed window is probed, and opens.
#[test]
fn a_closed_window_is_probed_and_tiny_segments_are_not_sent() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(2000));
    script.write(id, 5000);
    assert_eq!(script.sent().len(), 2);
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 2001).window(0));
    script.expect_nothing();
    let probes = script.advance(2 * SECOND);
    assert!(probes.len() >= 2 && probes.iter().all(|(_, probe)| probe.seq == 2000 && probe.payload.is_empty()));
    script.inject(&seg("A", 1, 2001).window(10));
    script.expect_nothing();
    script.inject(&seg("A", 1, 2001).window(5000));
    assert_eq!(script.sent().len(), 3);
    assert!(script.stack.counters().tcp_window_probes >= 2);
}

/// The peer rejects a probe and ignores its other fields, so a pending acknowledgement stays pending.
#[test]
fn a_window_probe_leaves_an_acknowledgement_pending() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(1000));
    script.write(id, 1000);
    script.sent();
    script.inject(&seg("A", 1, 1001).window(0));
    script.write(id, 1000);
    script.expect_nothing();
    // After quick mode ends, the pending acknowledgement is delayed by 40 ms, and the probe is sent first.
    script.inject(&seg("PA", 1, 1001).data(10).window(0));
    script.sent();
    script.advance(190 * MILLISECOND);
    for seq in 1..17 {
        script.inject(&seg("PA", seq * 10 + 1, 1001).data(10).window(0));
        script.sent();
    }
    script.inject(&seg("PA", 171, 1001).data(10).window(0));
    script.expect_nothing();
    let sent = script.advance(60 * MILLISECOND);
    let seen: Vec<_> = sent.iter().map(|(_, segment)| (segment.seq, segment.ack)).collect();
    assert_eq!(seen, [(1000, 181), (1001, 181)], "a probe, and then the acknowledgement");
}

/// RFC 9293, 3.8.6.2.2: the window opens in large steps, which are announced to the peer.
#[test]
fn the_receive_window_closes_and_opens_in_large_steps() {
    let mut script = Script::new(|settings| {
        settings.receive_buffer = 4096;
        settings.receive_buffer_limit = 4096;
    });
    let id = script.accepted_with_sack();
    script.inject_burst(&[1, 1001, 2001, 3001].map(|seq| seg("A", seq, 1).data(1000)));
    script.inject(&seg("PA", 4001, 1).data(96));
    assert_eq!(script.sent().last().unwrap().window, 0);
    script.inject(&seg("A", 4097, 1).data(10));
    assert_eq!(script.expect_one().ack, 4097, "a probe is answered and its data is dropped");
    script.stack.read(id, &mut [0; 100]).unwrap();
    script.expect_nothing();
    assert_eq!(script.read(id).len(), 3996);
    let update = script.expect_one();
    assert_eq!((update.ack, update.window), (4097, 4096));
}

/// RFC 9293, 3.8.6.3: delayed acknowledgements, one per two full segments, and quick mode at the start.
#[test]
fn acknowledgements_are_delayed_after_a_response() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("PA", 1, 1).data(10));
    assert_eq!(script.expect_one().ack, 11, "quick mode");
    script.inject(&seg("PA", 11, 1).data(10));
    script.write(id, 5);
    let response = script.expect_one();
    assert_eq!((response.ack, response.payload.len()), (21, 5), "one segment carries both");
    script.inject(&seg("PA", 21, 6).data(10));
    script.expect_nothing();
    let sent = script.advance(50 * MILLISECOND);
    assert_eq!((sent.len(), sent[0].0 / MILLISECOND, sent[0].1.ack), (1, 40, 31));
    script.inject(&seg("A", 31, 6).data(1000));
    script.expect_nothing();
    script.inject(&seg("A", 1031, 6).data(1000));
    assert_eq!(script.expect_one().ack, 2031);
}

/// A merged burst is acknowledged once.
#[test]
fn a_burst_is_merged_and_acknowledged_once() {
    let mut script = script();
    let id = script.accepted_with_sack();
    let burst: Vec<Seg> = (0..20).map(|number| seg("A", 1 + number * 1000, 1).data(1000)).collect();
    script.inject_burst(&burst);
    assert_eq!(script.expect_one().ack, 20_001);
    assert_eq!(script.stack.counters().tcp_coalesced, 19);
    let read = script.read(id);
    assert_eq!(read.len(), 20_000);
    assert!(read.iter().enumerate().all(|(at, &byte)| byte == (at + 1) as u8));
}

/// RFC 896 and TCP_NODELAY.
#[test]
fn nagle_holds_small_writes_unless_nodelay_is_set() {
    for nodelay in [false, true] {
        let mut script = script();
        let id = script.accepted_with_sack();
        script.stack.set_nodelay(id, nodelay).unwrap();
        script.write(id, 10);
        assert_eq!(ranges(&script.sent()), [(1, 10)]);
        script.write(id, 10);
        assert_eq!(script.sent().len(), usize::from(nodelay));
        script.write(id, 20);
        assert_eq!(script.sent().len(), usize::from(nodelay));
        script.inject(&seg("A", 1, 11));
        assert_eq!(ranges(&script.sent()), if nodelay { vec![] } else { vec![(11, 30)] });
    }
}

/// RFC 9293, 3.8.4: keep-alive.
#[test]
fn keepalive_probes_and_aborts() {
    let mut script = script();
    let id = script.accepted_with_sack();
    let seconds = core::time::Duration::from_secs;
    let keepalive = Keepalive { idle: seconds(10), interval: seconds(2), probes: 3 };
    script.stack.set_keepalive(script.at(), id, Some(keepalive)).unwrap();
    let sent = script.advance(11 * SECOND);
    assert_eq!((sent.len(), sent[0].1.seq, sent[0].1.payload.len()), (1, 0, 0));
    script.inject(&seg("A", 1, 1));
    script.expect_nothing();
    let sent = script.advance(100 * SECOND);
    let seen: Vec<_> = sent.iter().map(|(at, segment)| (at / SECOND, segment.flags.as_str())).collect();
    assert_eq!(seen, [(10, "A"), (12, "A"), (14, "A"), (16, "RA")]);
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
}

/// Events are edges: new data is one even if old data was not read; room is one only after a refused write.
#[test]
fn events_are_edges() {
    let mut script = script();
    let id = script.accepted_with_sack();
    let edges = |script: &mut Script| {
        let mut edges = Readiness::NONE;
        while let Some(event) = script.stack.poll_event() {
            if event.socket == id {
                edges |= event.edges;
            }
        }
        edges
    };
    assert_eq!(edges(&mut script), Readiness::WRITABLE);
    for seq in [1, 11] {
        script.inject(&seg("PA", seq, 1).data(10));
        assert_eq!(edges(&mut script), Readiness::READABLE);
        assert!(script.stack.readiness(id).contains(Readiness::READABLE));
    }
    script.inject(&seg("A", 21, 1));
    assert_eq!(edges(&mut script), Readiness::NONE);
    let mut peeked = [0; 30];
    assert_eq!(script.stack.peek(id, &mut peeked), Ok(20));
    assert_eq!(script.read(id).len(), 20);
    assert!(!script.stack.readiness(id).contains(Readiness::READABLE));
    script.inject(&seg("FA", 21, 1));
    assert_eq!(edges(&mut script), Readiness::READABLE | Readiness::READ_CLOSED);
}

/// Memory of an idle connection.
#[test]
fn idle_connections_are_small() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("PA", 1, 1).data(500));
    script.read(id);
    script.write(id, 5000);
    script.sent();
    script.inject(&seg("A", 501, 5001));
    let memory = script.stack.memory(id).unwrap();
    assert!(memory < 1536, "{memory} bytes, and the tables take some more");
}

/// The congestion window counts bytes; the number of tiny segments has its own limit.
#[test]
fn the_number_of_tiny_segments_is_bounded() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.set_nodelay(id, true).unwrap();
    let mut sent = 0;
    for _ in 0..2000 {
        script.write(id, 1);
        sent += script.sent().len();
    }
    assert_eq!(sent, 8 * 12, "eight for each of the ten segments of the initial window, and for two more");
    // The delayed bytes are sent together.
    script.inject(&seg("A", 1, 97));
    let rest = script.sent();
    assert_eq!(ranges(&rest), [(97, 1000), (1097, 904)]);
}

/// A peer whose data fills the window after a hole sends its acknowledgements from the right edge.
#[test]
fn an_acknowledgement_from_the_edge_of_a_full_window_is_accepted() {
    let mut script = Script::new(|settings| {
        settings.receive_buffer = 2048;
        settings.receive_buffer_limit = 2048;
    });
    let id = script.accepted_with_sack();
    script.write(id, 1000);
    script.sent();
    script.inject(&seg("A", 1001, 1).data(1000));
    script.inject(&seg("A", 2001, 1).data(48));
    script.sent();
    script.inject(&seg("A", 2049, 1001));
    assert_eq!(script.stack.unacknowledged_bytes(id), Ok(0));
}

/// A peer's retransmission has an old sequence number, but its acknowledgement and window are new: SND.WND must not
/// move with SND.UNA beyond what the peer offered.
#[test]
fn the_window_of_a_retransmission_is_used_if_it_acknowledges_more() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(2000));
    script.write(id, 5000);
    assert_eq!(script.sent().len(), 2);
    script.inject(&seg("A", 1001, 1).data(1000).window(2000));
    script.sent();
    script.inject(&seg("A", 1, 2001).data(1000).window(0));
    let sent = script.sent();
    assert!(sent.iter().all(|segment| segment.payload.is_empty()), "the window is closed: {sent:?}");
}

/// A peer that runs out of memory shrinks its window, and ignores segments that start beyond it. Acknowledgements
/// must start inside the window.
#[test]
fn acknowledgements_start_inside_a_shrunk_window() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(5000));
    script.write(id, 5000);
    assert_eq!(script.sent().len(), 5);
    script.inject(&seg("A", 1, 1001).window(0));
    script.sent();
    script.inject(&seg("A", 1, 1001).data(1000).window(0));
    let ack = script.expect_one();
    assert_eq!((ack.seq, ack.ack), (1001, 1001));
    // Retransmissions must fit into the window as well. The first segment is sent as a probe.
    let again = |script: &mut Script| {
        let sent: Vec<_> = script.advance(3 * SECOND).into_iter().map(|(_, segment)| segment).collect();
        ranges(&sent)
    };
    assert!(again(&mut script).iter().all(|&range| range == (1001, 1000)));
    script.inject(&seg("PA", 1001, 1001).data(1).window(300));
    script.sent();
    let sent = again(&mut script);
    assert!(!sent.is_empty() && sent.iter().all(|&range| range == (1001, 300)), "{sent:?}");
    script.inject(&seg("PA", 1002, 1301).data(1).window(5000));
    let sent = ranges(&script.sent());
    assert_eq!(sent[0], (1301, 700), "{sent:?}");
}

/// RFC 9293, 3.8.6.1: a connection survives while the peer answers with a closed window, and times out otherwise.
#[test]
fn a_window_that_closed_over_data_may_stay_closed() {
    let mut script = Script::new(|settings| settings.retries = 4);
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(5000));
    script.write(id, 2000);
    script.sent();
    for _ in 0..50 {
        script.inject(&seg("A", 1, 1).window(0));
        script.advance(SECOND / 10);
        script.inject(&seg("A", 1, 1).window(0));
        script.advance(SECOND);
    }
    assert_eq!(script.stack.take_error(id), Ok(None));
    script.advance(1000 * SECOND);
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
}
