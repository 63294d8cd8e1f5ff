//! What a blind attacker's segments change: timestamps, resets, TIME-WAIT and listeners (RFC 5961, RFC 7323, RFC 1337).

use abey_tcpip::{IoError, SocketId};

use super::{
    common::{
        MILLISECOND,
        script::{Script, seg},
    },
    script,
};

/// Establishes a connection with timestamps. The peer's clock shows 1000.
fn with_timestamps(script: &mut Script) -> SocketId {
    script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0))
}

/// RFC 5961, 5 and RFC 7323, 4.3: TS.Recent comes only from a segment whose ACK is acceptable. Otherwise one blind
/// segment inside the window would make PAWS reject each genuine one.
#[test]
fn a_segment_with_a_bad_ack_does_not_change_the_echoed_timestamp() {
    for ack in [5000, 0x8000_0000_u32.wrapping_neg(), 100_000_u32.wrapping_neg()] {
        let mut script = script();
        let id = with_timestamps(&mut script);
        script.inject(&seg("PA", 1, ack).data(10).timestamp(1000 + (1 << 30), 0));
        let challenge = script.expect_one();
        assert_eq!((challenge.ack, challenge.timestamp.unwrap().1), (1, 1000), "ACK {ack:#x}");
        script.inject(&seg("PA", 1, 1).data(10).timestamp(1001, 0));
        assert_eq!(script.expect_one().timestamp.unwrap().1, 1001);
        assert_eq!((script.read(id).len(), script.stack.counters().tcp_paws_rejected), (10, 0));
    }
}

/// RFC 9293, 3.10.7.4: in SYN-RECEIVED a segment with a wrong ACK is answered with a reset and changes nothing.
#[test]
fn a_bad_ack_does_not_stop_a_handshake() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    script.inject(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0));
    let value = script.expect_one().timestamp.unwrap().0;
    for ack in [0, 2, 0x4000_0000] {
        script.inject(&seg("A", 1, ack).timestamp(1000 + (1 << 30), 0));
        let reset = script.expect_one();
        assert_eq!((reset.flags.as_str(), reset.seq), ("R", ack));
    }
    script.inject(&seg("A", 1, 1).timestamp(1001, value));
    assert!(script.stack.accept(listener).is_ok(), "the genuine ACK passes PAWS");
}

/// The lost acknowledgement of a retransmission echoes its timestamp only if its ACK is acceptable.
#[test]
fn a_repeated_segment_with_a_bad_ack_does_not_change_the_echoed_timestamp() {
    let mut script = script();
    with_timestamps(&mut script);
    script.inject(&seg("PA", 1, 1).data(10).timestamp(1001, 0));
    script.sent();
    script.inject(&seg("PA", 1, 0x7000_0000).data(10).timestamp(1000 + (1 << 30), 0));
    assert_eq!(script.expect_one().timestamp.unwrap().1, 1001);
    script.inject(&seg("PA", 1, 1).data(10).timestamp(1002, 0));
    assert_eq!(script.expect_one().timestamp.unwrap().1, 1002, "a genuine retransmission");
}

/// RFC 5961, 5.2: an ACK may be old by as much as the peer's largest window, but not older than the connection.
#[test]
fn an_ack_of_bytes_from_before_the_connection_is_challenged() {
    let mut script = script();
    let id = script.accepted_with_sack();
    // The peer's window is 60,000 bytes, but this host has sent only its SYN.
    for ack in [1_u32.wrapping_neg(), 50_000_u32.wrapping_neg()] {
        script.inject(&seg("PA", 1, ack).data(10));
        assert_eq!(script.expect_one().ack, 1, "the data is not taken");
    }
    assert_eq!(script.stack.counters().tcp_challenge_acks, 2);
    script.write(id, 1000);
    script.sent();
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1001));
    script.inject(&seg("PA", 1, 1).data(10));
    assert_eq!(script.expect_one().ack, 11, "an old ACK, reordered");
    assert_eq!(script.read(id).len(), 10);
}

/// RFC 9293, 3.10.7.4: the window is half open, so a reset at its right edge is outside and dropped.
#[test]
fn a_reset_at_the_right_edge_of_the_window_is_dropped() {
    let mut script = Script::new(|settings| settings.receive_buffer = 4000);
    let id = script.accepted_with_sack();
    let edge = 1 + 4000;
    for seq in [edge, edge + 1, 0, 0_u32.wrapping_sub(1000)] {
        script.inject(&seg("R", seq, 0));
        script.expect_nothing();
    }
    assert_eq!(script.stack.counters().tcp_challenge_acks, 0);
    script.inject(&seg("R", edge - 1, 0));
    assert_eq!(script.expect_one().flags, "A");
    assert!(script.stack.is_connected(id));
    // With a closed window only RCV.NXT is acceptable.
    script.inject(&seg("PA", 1, 1).data(1000));
    script.inject(&seg("PA", 1001, 1).data(1000));
    script.inject(&seg("PA", 2001, 1).data(1000));
    script.inject(&seg("PA", 3001, 1).data(1000));
    assert_eq!(script.sent().last().unwrap().window, 0);
    script.inject(&seg("R", edge + 1, 0));
    script.expect_nothing();
    script.inject(&seg("R", edge, 0));
    assert!(!script.stack.is_connected(id));
}

/// Moves a new connection to TIME-WAIT. RCV.NXT is 2.
fn in_time_wait() -> Script {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.close(script.at(), id).unwrap();
    script.sent();
    script.inject(&seg("FA", 1, 2));
    assert_eq!((script.expect_one().ack, script.stack.time_wait_count()), (2, 1));
    script
}

/// A SYN with FIN is no connection attempt: it replaces no connection in TIME-WAIT.
#[test]
fn a_syn_with_fin_does_not_replace_time_wait() {
    let mut script = in_time_wait();
    script.inject(&seg("SF", 50_000, 0).options(1000, None, true));
    assert_eq!(script.expect_one().flags, "A");
    assert_eq!((script.stack.time_wait_count(), script.stack.socket_count()), (1, 1));
    script.inject(&seg("S", 50_000, 0).options(1000, None, true));
    assert_eq!(script.expect_one().flags, "SA");
}

/// A SYN that the listener drops does not end TIME-WAIT either (RFC 1337).
#[test]
fn a_syn_to_a_full_listener_does_not_end_time_wait() {
    let mut script = Script::new(|_| ());
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 1).unwrap();
    script.inject(&seg("S", 0, 0));
    script.expect_one();
    script.inject(&seg("A", 1, 1));
    let id = script.stack.accept(listener).unwrap();
    script.stack.close(script.at(), id).unwrap();
    script.sent();
    script.inject(&seg("FA", 1, 2));
    script.sent();
    let (port, initial) = (script.ports.1, script.initial);
    script.ports.1 = 4001;
    script.inject(&seg("S", 0, 0));
    script.expect_one();
    script.inject(&seg("A", 1, 1));
    (script.ports.1, script.initial) = (port, initial);
    script.inject(&seg("S", 50_000, 0));
    script.expect_nothing();
    assert_eq!((script.stack.time_wait_count(), script.stack.counters().tcp_listen_overflows), (1, 1));
}

/// RFC 9293, 3.10.7.4: TIME-WAIT acknowledges everything but the bare ACK that it expects, at a limited rate.
#[test]
fn time_wait_acknowledges_segments_beyond_the_expected_one() {
    let mut script = in_time_wait();
    script.inject(&seg("A", 2, 2));
    script.expect_nothing();
    for segment in [seg("A", 3, 2), seg("A", 100_000, 2), seg("FA", 500, 2), seg("PA", 500, 2).data(10)] {
        script.now += 500 * MILLISECOND;
        script.inject(&segment);
        let answer = script.expect_one();
        assert_eq!((answer.flags.as_str(), answer.seq, answer.ack), ("A", 2, 2), "to {segment:?}");
    }
    // Two hosts in TIME-WAIT must not acknowledge each other's ACKs for ever.
    script.now += 500 * MILLISECOND;
    let answers: usize = (0..20)
        .map(|_| {
            script.inject(&seg("A", 100_000, 2));
            script.inject(&seg("A", 1, 2));
            script.sent().len()
        })
        .sum();
    assert_eq!(answers, 1);
}

/// RFC 9293, 3.10.7.2: a listener drops what is neither a SYN nor an answer to one of its own.
#[test]
fn a_listener_drops_segments_without_syn_and_ack() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    for flags in ["", "F", "P", "FP", "R", "RA", "SR", "SF"] {
        script.inject(&seg(flags, 7, 9).data(5));
        assert_eq!(script.sent(), [], "to {flags:?}");
    }
    script.inject(&seg("A", 7, 9));
    assert_eq!(script.expect_one().flags, "R");
    script.inject(&seg("SA", 7, 9));
    assert_eq!(script.expect_one().flags, "R");
    assert_eq!(script.stack.accept(listener), Err(IoError::WouldBlock));
    // Where nothing listens, RFC 9293, 3.10.7.1 applies.
    script.ports.0 = 81;
    script.inject(&seg("F", 7, 0));
    assert_eq!(script.expect_one().flags, "RA");
}
