//! TCP connections segment by segment: setup, close, and resistance to spoofed segments and floods.

mod budgets;
mod common;
mod ecn;
mod ends;
mod export;
mod hostile;
mod options;
mod overflow;
mod sack;
mod stalls;
mod states;
mod windows;

use abey_tcpip::{IoError, Readiness, Shutdown, SocketError};
use common::{
    SECOND,
    script::{OWN, PEER, Script, ranges, seg},
};

fn script() -> Script {
    Script::new(|_| ())
}

/// RFC 9293, 3.5: three-way handshake with negotiated options.
#[test]
fn a_passive_open_agrees_on_options() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    script.inject(&seg("S", 0, 0).options(1400, Some(3), true).timestamp(77, 0));
    let answer = script.expect_one();
    assert_eq!((answer.flags.as_str(), answer.seq, answer.ack), ("SA", 0, 1));
    assert_eq!((answer.mss, answer.scale, answer.sack_permitted), (Some(1460), Some(7), true));
    let (value, echo) = answer.timestamp.unwrap();
    assert_eq!(echo, 77);
    assert_eq!(script.stack.accept(listener), Err(IoError::WouldBlock), "not before the ACK");
    script.inject(&seg("A", 1, 1).timestamp(78, value));
    let id = script.stack.accept(listener).unwrap();
    assert_eq!(script.stack.peer_addr(id).unwrap(), "10.0.0.1:4000".parse().unwrap());
    assert!(script.stack.readiness(id).contains(Readiness::WRITABLE));
    // 1400 bytes less the 12 bytes of the timestamp option.
    script.write(id, 3000);
    assert_eq!(ranges(&script.sent()), [(1, 1388), (1389, 1388)], "Nagle holds the rest");
}

/// RFC 9293, 3.7.1: without an MSS option segments have 536 bytes. Options that the peer did not offer are not used.
#[test]
fn no_options_are_sent_to_a_peer_without_options() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0));
    script.write(id, 600);
    let sent = script.sent();
    assert_eq!(ranges(&sent), [(1, 536)], "Nagle holds the rest");
    assert_eq!((sent[0].timestamp, sent[0].sack.len()), (None, 0));
}

/// RFC 9293, 3.10.7.3: active open, and how an attempt fails.
#[test]
fn an_active_open_connects_or_is_refused() {
    let mut script = script();
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    assert_eq!(script.stack.write(id, b"early"), Err(IoError::WouldBlock));
    let syn = script.expect_one();
    assert_eq!((syn.flags.as_str(), syn.seq, syn.mss), ("S", 0, Some(1460)));
    script.inject(&seg("RA", 0, 7));
    assert_eq!(script.sent().len(), 0, "a reset of something that was never sent");
    script.inject(&seg("A", 0, 7));
    assert_eq!(script.expect_one().flags, "R");
    script.inject(&seg("SA", 0, 1).options(1000, None, true));
    let ack = script.expect_one();
    assert_eq!((ack.flags.as_str(), ack.seq, ack.ack), ("A", 1, 1));
    assert!(script.stack.is_connected(id));

    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    script.expect_one();
    script.inject(&seg("RA", 0, 1));
    assert!(script.stack.readiness(id).contains(Readiness::ERROR | Readiness::HANG_UP));
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::Refused)));
    assert_eq!(script.stack.take_error(id), Ok(None));
}

/// RFC 6298, 5: a SYN is retransmitted after 1, 2, 4 ... seconds until the attempt fails.
#[test]
fn an_unanswered_syn_times_out() {
    let mut script = Script::new(|settings| settings.syn_retries = 3);
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    script.expect_one();
    let sent = script.advance(100 * SECOND);
    let seconds: Vec<_> = sent.iter().map(|(at, segment)| (at / SECOND, segment.flags.as_str())).collect();
    assert_eq!(seconds, [(1, "S"), (3, "S"), (7, "S")]);
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
    assert_eq!((script.stack.timer_count(), script.stack.flow_count()), (0, 0));
}

/// RFC 9293, 3.5, figure 7: two SYNs cross.
#[test]
fn a_simultaneous_open_is_one_connection() {
    let mut script = script();
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    script.expect_one();
    script.inject(&seg("S", 0, 0).options(1000, None, true));
    let answer = script.expect_one();
    assert_eq!((answer.flags.as_str(), answer.seq, answer.ack), ("SA", 0, 1));
    script.inject(&seg("SA", 0, 1).options(1000, None, true));
    assert!(script.stack.is_connected(id));
    script.inject(&seg("PA", 1, 1).data(5));
    assert_eq!(script.read(id).len(), 5);
}

/// RFC 9293, 3.10.7.4: a repeated SYN shows that the SYN-ACK was lost.
#[test]
fn a_repeated_syn_is_answered_again() {
    let mut script = script();
    script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    for _ in 0..3 {
        script.inject(&seg("S", 0, 0));
        assert_eq!(script.expect_one().flags, "SA");
    }
    script.inject(&seg("R", 1, 0));
    assert_eq!((script.stack.socket_count(), script.stack.timer_count()), (1, 0));
}

/// RFC 9293, 3.10.7.1: segments that belong to no connection.
#[test]
fn segments_without_a_connection_are_reset_with_valid_numbers() {
    let mut script = script();
    script.initial = Some(5000);
    script.inject(&seg("S", 0, 0).data(3));
    let reset = script.expect_one();
    assert_eq!((reset.flags.as_str(), reset.ack), ("RA", 4));
    script.inject(&seg("A", 7, 9));
    let reset = script.expect_one();
    assert_eq!((reset.flags.as_str(), reset.seq), ("R", 9));
    script.inject(&seg("R", 7, 0));
    script.inject(&seg("RA", 7, 9));
    script.expect_nothing();
}

/// RFC 9293, 3.6: the ways to close a connection.
#[test]
fn an_active_close_ends_in_time_wait_which_expires() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.shutdown(script.at(), id, Shutdown::Write).unwrap();
    let fin = script.expect_one();
    assert_eq!((fin.flags.as_str(), fin.seq), ("FA", 1));
    assert_eq!(script.stack.write(id, b"x"), Err(IoError::BrokenPipe));
    script.inject(&seg("A", 1, 2));
    // Half closed: the peer may still send.
    script.inject(&seg("PA", 1, 2).data(10));
    assert_eq!(script.read(id).len(), 10);
    script.sent();
    script.inject(&seg("FA", 11, 2));
    assert_eq!(script.expect_one().ack, 12);
    assert_eq!(script.stack.read(id, &mut [0; 9]), Ok(0));
    script.stack.close(script.at(), id).unwrap();
    assert_eq!((script.stack.socket_count(), script.stack.time_wait_count()), (1, 1));
    // A repeated FIN is acknowledged, and restarts TIME-WAIT.
    script.advance(50 * SECOND);
    script.inject(&seg("FA", 11, 2));
    assert_eq!(script.expect_one().ack, 12);
    // RFC 1337: a reset does not end TIME-WAIT.
    script.inject(&seg("R", 12, 0));
    script.advance(50 * SECOND);
    assert_eq!(script.stack.time_wait_count(), 1);
    script.advance(20 * SECOND);
    assert_eq!((script.stack.time_wait_count(), script.stack.flow_count(), script.stack.poll_timeout()), (0, 0, None));
}

#[test]
fn a_passive_close_ends_with_the_last_ack() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("FA", 1, 1));
    assert_eq!(script.expect_one().ack, 2);
    assert!(script.stack.readiness(id).contains(Readiness::READABLE | Readiness::READ_CLOSED));
    assert!(!script.stack.readiness(id).contains(Readiness::HANG_UP));
    script.write(id, 100);
    script.stack.close(script.at(), id).unwrap();
    let last = script.expect_one();
    assert_eq!((last.flags.as_str(), last.payload.len()), ("FPA", 100));
    script.inject(&seg("A", 2, 102));
    assert_eq!((script.stack.socket_count(), script.stack.flow_count(), script.stack.timer_count()), (1, 0, 0));
}

#[test]
fn a_simultaneous_close_ends_in_time_wait() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.close(script.at(), id).unwrap();
    assert_eq!(script.expect_one().flags, "FA");
    script.inject(&seg("FA", 1, 1));
    assert_eq!(script.expect_one().ack, 2);
    script.inject(&seg("A", 2, 2));
    assert_eq!((script.stack.socket_count(), script.stack.time_wait_count()), (1, 1));
}

/// RFC 2525, 2.17; RFC 1122, 4.2.2.13: data that the application will not read is answered with a reset.
#[test]
fn closing_with_unread_data_or_after_it_resets() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("PA", 1, 1).data(10));
    script.sent();
    script.stack.close(script.at(), id).unwrap();
    assert_eq!(script.expect_one().flags, "RA");
    assert_eq!(script.stack.socket_count(), 1);

    let mut script = self::script();
    let id = script.accepted_with_sack();
    script.stack.close(script.at(), id).unwrap();
    script.expect_one();
    script.inject(&seg("PA", 1, 2).data(10));
    assert_eq!(script.expect_one().flags, "RA");
    assert_eq!(script.stack.counters().tcp_aborted_on_data, 1);
    assert_eq!((script.stack.socket_count(), script.stack.flow_count()), (1, 0));
}

#[test]
fn a_zero_linger_time_resets_and_a_longer_one_aborts_at_its_end() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.set_linger(id, Some(core::time::Duration::ZERO)).unwrap();
    script.write(id, 10);
    script.stack.close(script.at(), id).unwrap();
    assert!(script.sent().iter().any(|segment| segment.has('R')));

    let mut script = self::script();
    let id = script.accepted_with_sack();
    script.stack.set_linger(id, Some(core::time::Duration::from_secs(3))).unwrap();
    script.write(id, 10);
    script.stack.close(script.at(), id).unwrap();
    let sent = script.advance(10 * SECOND);
    let (at, last) = sent.last().unwrap();
    assert_eq!((at / SECOND, last.flags.as_str()), (3, "RA"));
    assert_eq!(script.stack.socket_count(), 1);
}

/// A closed connection waits for the peer's FIN for a limited time.
#[test]
fn fin_wait_2_of_an_orphan_ends() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.close(script.at(), id).unwrap();
    script.expect_one();
    script.inject(&seg("A", 1, 2));
    assert_eq!(script.stack.socket_count(), 2);
    script.advance(61 * SECOND);
    assert_eq!((script.stack.socket_count(), script.stack.flow_count(), script.stack.timer_count()), (1, 0, 0));
}

/// RFC 5961, 3: a reset is accepted only with exactly the expected sequence number.
#[test]
fn a_spoofed_reset_gets_a_challenge() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("R", 100, 0));
    let challenge = script.expect_one();
    assert_eq!((challenge.flags.as_str(), challenge.seq, challenge.ack), ("A", 1, 1));
    script.inject(&seg("R", 1_000_000, 0));
    script.expect_nothing();
    assert!(script.stack.is_connected(id));
    script.inject(&seg("R", 1, 0));
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::Reset)));
    assert_eq!(script.stack.counters().tcp_challenge_acks, 1);
}

/// A reset after the peer's FIN does not hide that the stream is complete. The error is still reported to others.
#[test]
fn a_reset_after_the_fin_leaves_the_end_of_the_stream() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("FPA", 1, 1).data(10));
    script.inject(&seg("R", 12, 0));
    assert_eq!(script.read(id).len(), 10);
    for _ in 0..2 {
        assert_eq!(script.stack.read(id, &mut [0; 1]), Ok(0));
    }
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::Reset)));
}

/// RFC 5961, 4 and 5: SYNs in a connection, and ACKs of data that was not sent, are answered at a limited rate.
#[test]
fn spoofed_syns_and_acks_get_challenges_at_a_limited_rate() {
    let mut script = Script::new(|settings| settings.challenge_rate = 6);
    let id = script.accepted_with_sack();
    let mut challenges = 0;
    for number in 0..20 {
        let spoofed = match number % 4 {
            0 => seg("S", 50, 0),
            1 => seg("SA", 1, 1),
            2 => seg("A", 1, 2000),
            _ => seg("PA", 1, 0x8000_0000).data(10),
        };
        script.inject(&spoofed);
        challenges += script.sent().len();
    }
    assert!((3..=9).contains(&challenges), "{challenges}");
    assert_eq!(challenges as u64, script.stack.counters().tcp_challenge_acks);
    assert_eq!(20 - challenges as u64, script.stack.counters().tcp_acks_skipped);
    assert!(script.stack.is_connected(id));
    assert!(script.read(id).is_empty(), "data with a bad ACK is not taken");
}

/// RFC 7323, 5: PAWS.
#[test]
fn old_timestamps_are_rejected_and_resets_are_not() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0));
    script.inject(&seg("PA", 1, 1).data(10).timestamp(1001, 0));
    assert_eq!(script.expect_one().timestamp.unwrap().1, 1001);
    script.inject(&seg("PA", 11, 1).data(10).timestamp(990, 0));
    let answer = script.expect_one();
    assert_eq!((answer.ack, answer.timestamp.unwrap().1), (11, 1001));
    script.inject(&seg("PA", 11, 1).data(10));
    assert_eq!(script.expect_one().ack, 11, "a segment without a timestamp is dropped");
    assert_eq!(script.stack.counters().tcp_paws_rejected, 2);
    assert_eq!(script.read(id).len(), 10);
    script.inject(&seg("R", 11, 0).timestamp(1, 0));
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::Reset)));
}

/// A segment that a retransmission overtook has a timestamp that is older by one tick. PAWS accepts it.
#[test]
fn paws_accepts_a_tick_of_reordering() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0));
    script.inject(&seg("A", 1, 1).data(10).timestamp(1010, 0));
    script.sent();
    script.inject(&seg("A", 11, 1).data(10).timestamp(1009, 0));
    assert_eq!(script.expect_one().timestamp.unwrap().1, 1010, "TS.Recent does not go back");
    assert_eq!((script.read(id).len(), script.stack.counters().tcp_paws_rejected), (20, 0));
}

/// RFC 7323, 4.3: an out-of-order segment does not update TS.Recent.
#[test]
fn the_echoed_timestamp_is_that_of_the_last_in_order_segment() {
    let mut script = script();
    script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0));
    script.inject(&seg("PA", 11, 1).data(10).timestamp(1005, 0));
    assert_eq!(script.expect_one().timestamp.unwrap().1, 1000);
    script.inject(&seg("PA", 1, 1).data(10).timestamp(1006, 0));
    assert_eq!(script.expect_one().timestamp.unwrap().1, 1006);
}

/// RFC 4987: during a flood no state is stored, and the final ACK returns it.
#[test]
fn a_syn_flood_is_answered_with_valid_cookies() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 4).unwrap();
    for port in 0..1000 {
        script.ports.1 = 10_000 + port;
        script.inject(&seg("S", 0, 0).options(1000, Some(5), true).timestamp(50, 0));
    }
    assert_eq!(script.sent().len(), 1000);
    assert_eq!(script.stack.socket_count(), 5, "the listener and its backlog");
    assert_eq!(script.stack.counters().tcp_syncookies_sent, 996);
    // A genuine peer.
    script.ports.1 = 4000;
    script.inject(&seg("S", 0, 0).options(1000, Some(5), true).timestamp(50, 0));
    let answer = script.expect_one();
    script.inject(&seg("PA", 1, 1).data(7).timestamp(51, answer.timestamp.unwrap().0).window(1000));
    let id = script.stack.accept(listener).unwrap();
    assert_eq!(script.read(id).len(), 7);
    script.sent();
    // 1000 << 5 is a window of 32 segments. The initial window is 10 segments, of a size that the cookie rounds down.
    script.write(id, 20_000);
    let sent = script.sent();
    assert_eq!((sent.len(), sent[0].payload.len()), (10, 524));
    // A guessed cookie.
    script.ports.1 = 4001;
    script.inject(&seg("A", 1, 12_345));
    script.expect_nothing();
    assert_eq!(script.stack.accept(listener), Err(IoError::WouldBlock));
    assert_eq!(script.stack.counters().tcp_syncookies_failed, 1);
}

/// RFC 6191: a newer SYN replaces a connection in TIME-WAIT; an older one does not.
#[test]
fn only_a_newer_syn_replaces_time_wait() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0));
    script.stack.close(script.at(), id).unwrap();
    script.sent();
    script.inject(&seg("FA", 1, 2).timestamp(1001, 0));
    script.sent();
    assert_eq!(script.stack.time_wait_count(), 1);
    script.inject(&seg("S", 0, 0).options(1000, None, true).timestamp(900, 0));
    assert_eq!(script.expect_one().flags, "A", "an old SYN is acknowledged");
    let old = script.initial.unwrap();
    script.inject(&seg("S", 5000, 0).options(1000, None, true).timestamp(1002, 0));
    assert_eq!(script.expect_one().flags, "SA");
    assert!(script.initial.unwrap().wrapping_sub(old) > 65_000, "numbers past the old connection's");
    assert_eq!((script.stack.time_wait_count(), script.stack.counters().tcp_time_wait_reused), (0, 1));
}

#[test]
fn time_wait_is_bounded() {
    let mut script = Script::new(|settings| settings.time_waits = 10);
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    for port in 1000..1050 {
        script.ports.1 = port;
        script.inject(&seg("S", 0, 0));
        script.expect_one();
        script.inject(&seg("A", 1, 1));
        let id = script.stack.accept(listener).unwrap();
        script.stack.close(script.at(), id).unwrap();
        script.sent();
        script.inject(&seg("FA", 1, 2));
        script.sent();
    }
    assert_eq!((script.stack.time_wait_count(), script.stack.flow_count()), (10, 10));
    assert_eq!(script.stack.counters().tcp_time_wait_overflows, 40);
    script.advance(100 * SECOND);
    assert_eq!((script.stack.flow_count(), script.stack.poll_timeout()), (0, None));
}

/// The accept queue is bounded. A peer that finds it full retries successfully.
#[test]
fn peers_retry_while_the_accept_queue_is_full() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 1).unwrap();
    let mut initials = Vec::new();
    for port in [4000, 4001] {
        script.ports.1 = port;
        script.inject(&seg("S", 0, 0));
        script.expect_one();
        initials.push(script.initial);
    }
    for (port, initial) in [4000, 4001].into_iter().zip(initials) {
        (script.ports.1, script.initial) = (port, initial);
        script.inject(&seg("A", 1, 1));
    }
    script.expect_nothing();
    assert_eq!(script.stack.counters().tcp_listen_overflows, 1);
    script.ports.1 = 4002;
    script.inject(&seg("S", 0, 0));
    script.expect_nothing();
    script.stack.accept(listener).unwrap();
    script.ports.1 = 4001;
    script.inject(&seg("A", 1, 1));
    let id = script.stack.accept(listener).unwrap();
    assert_eq!(script.stack.peer_addr(id).unwrap().port(), 4001);
}

/// A stale id is an error.
#[test]
fn stale_ids_are_errors() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.abort(script.at(), id).unwrap();
    let other = script.stack.bind("0.0.0.0:5".parse().unwrap()).unwrap();
    assert_ne!(id, other);
    let now = script.at();
    let stack = &mut script.stack;
    assert_eq!(stack.read(id, &mut [0; 1]), Err(IoError::NoSuchSocket));
    assert_eq!(stack.write(id, &[0; 1]), Err(IoError::NoSuchSocket));
    assert_eq!(stack.close(now, id), Err(IoError::NoSuchSocket));
    assert_eq!(stack.shutdown(now, id, Shutdown::Both), Err(IoError::NoSuchSocket));
    assert_eq!(stack.readiness(id), Readiness::NONE);
    assert_eq!(stack.read(other, &mut [0; 1]), Err(IoError::WrongKind));
    assert_eq!(stack.accept(other), Err(IoError::WrongKind));
}

/// RFC 1191 and RFC 5927: an ICMP error that quotes a segment in flight lowers the path MTU.
#[test]
fn a_plausible_icmp_error_lowers_the_path_mtu() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1460, None, true));
    script.write(id, 4000);
    assert_eq!(ranges(&script.sent())[0].1, 1460);
    let initial = script.initial.unwrap();
    let notice = |seq: u32, mtu: u16| {
        let mut quoted = vec![0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, 6, 0, 0];
        quoted.extend(OWN.iter().chain(&PEER));
        quoted.extend([0, 80, 0x0f, 0xa0]);
        quoted.extend(initial.wrapping_add(seq).to_be_bytes());
        let mut icmp = vec![3, 4, 0, 0, 0, 0];
        icmp.extend(mtu.to_be_bytes());
        icmp.extend(quoted);
        frame(1, &icmp, |icmp| smoltcp::wire::Icmpv4Packet::new_unchecked(icmp).fill_checksum())
    };
    script.stack.handle_frame(script.at(), &notice(9_000_000, 1300));
    script.expect_nothing();
    assert_eq!(script.stack.counters().icmp_in_strays, 1);
    script.stack.handle_frame(script.at(), &notice(1, 1300));
    let again = script.sent();
    assert_eq!(ranges(&again)[..2], [(1, 1260), (1261, 200)]);
    script.stack.handle_frame(script.at(), &notice(1, 68));
    assert!(script.sent().iter().all(|segment| segment.payload.len() <= 512), "never below 552");
    assert_eq!(script.stack.counters().tcp_path_mtu_lowered, 2);

    // The next connection to the host uses the lower path MTU until it expires. The announced MSS is that of the
    // link.
    for (passed, len) in [(0, 512), (600 * SECOND, 1460)] {
        script.now += passed;
        let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(script.sent().last().unwrap().mss, Some(1460));
        script.inject(&seg("SA", 0, 1).options(1460, None, true));
        script.write(id, 4000);
        let longest = script.sent().iter().map(|segment| segment.payload.len()).max();
        assert_eq!(longest, Some(len));
        script.stack.abort(script.at(), id).unwrap();
        assert_eq!(script.sent().last().unwrap().flags, "RA");
    }
}

/// Builds a frame with an IPv4 packet from the peer.
fn frame(protocol: u8, payload: &[u8], finish: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((20 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    frame.extend(PEER.iter().chain(&OWN));
    frame.extend(payload);
    smoltcp::wire::Ipv4Packet::new_unchecked(&mut frame[14..]).fill_checksum();
    finish(&mut frame[34..]);
    frame
}

/// RFC 5927: an unreachable error ends a connection attempt, but not an established connection.
#[test]
fn unreachable_errors_end_attempts_only() {
    let mut script = script();
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    script.expect_one();
    let mut quoted = vec![0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 6, 0, 0];
    quoted.extend(OWN.iter().chain(&PEER));
    quoted.extend(script.ports.0.to_be_bytes());
    quoted.extend(script.ports.1.to_be_bytes());
    quoted.extend(script.initial.unwrap().to_be_bytes());
    let icmp = [&[3, 1, 0, 0, 0, 0, 0, 0][..], &quoted].concat();
    let notice = frame(1, &icmp, |icmp| smoltcp::wire::Icmpv4Packet::new_unchecked(icmp).fill_checksum());
    script.stack.handle_frame(script.at(), &notice);
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::HostUnreachable)));
}
