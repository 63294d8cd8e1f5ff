//! TCP's connections, segment by segment: how they begin and end, and what a spoofer or a flood can do to them.

mod common;

use abey_tcpip::{IoError, Readiness, Shutdown, SocketError};
use common::{
    SECOND,
    script::{OWN, PEER, Script, ranges, seg},
};

fn script() -> Script {
    Script::new(|_| ())
}

/// RFC 9293, 3.5: the three-way handshake, with the options both sides agree on.
#[test]
fn a_passive_open_agrees_on_options() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    script.inject(&seg("S", 0, 0).options(1400, Some(3), true).timestamp(77, 0));
    let answer = script.one();
    assert_eq!((answer.flags.as_str(), answer.seq, answer.ack), ("SA", 0, 1));
    assert_eq!((answer.mss, answer.scale, answer.sack_permitted), (Some(1460), Some(7), true));
    let (value, echo) = answer.timestamp.unwrap();
    assert_eq!(echo, 77);
    assert_eq!(script.stack.accept(listener), Err(IoError::WouldBlock), "not before the ACK");
    script.inject(&seg("A", 1, 1).timestamp(78, value));
    let id = script.stack.accept(listener).unwrap();
    assert_eq!(script.stack.peer_addr(id).unwrap(), "10.0.0.1:4000".parse().unwrap());
    assert!(script.stack.readiness(id).contains(Readiness::WRITABLE));
    // 1400 less the 12 bytes of timestamps.
    script.write(id, 3000);
    assert_eq!(ranges(&script.sent()), [(1, 1388), (1389, 1388)], "the rest is small and waits");
}

/// RFC 9293, 3.7.1: a peer that says nothing takes 536 bytes; what it did not offer is not used.
#[test]
fn a_peer_without_options_gets_none() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0));
    script.write(id, 600);
    let sent = script.sent();
    assert_eq!(ranges(&sent), [(1, 536)], "the rest is small and waits");
    assert_eq!((sent[0].timestamp, sent[0].sack.len()), (None, 0));
}

/// RFC 9293, 3.10.7.3: an active open, and what ends an attempt.
#[test]
fn an_active_open_connects_or_is_refused() {
    let mut script = script();
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    assert_eq!(script.stack.write(id, b"early"), Err(IoError::WouldBlock));
    let syn = script.one();
    assert_eq!((syn.flags.as_str(), syn.seq, syn.mss), ("S", 0, Some(1460)));
    script.inject(&seg("RA", 0, 7));
    assert_eq!(script.sent().len(), 0, "a reset of something that was never sent");
    script.inject(&seg("A", 0, 7));
    assert_eq!(script.one().flags, "R");
    script.inject(&seg("SA", 0, 1).options(1000, None, true));
    let ack = script.one();
    assert_eq!((ack.flags.as_str(), ack.seq, ack.ack), ("A", 1, 1));
    assert!(script.stack.is_connected(id));

    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    script.one();
    script.inject(&seg("RA", 0, 1));
    assert!(script.stack.readiness(id).contains(Readiness::ERROR | Readiness::HANG_UP));
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::Refused)));
    assert_eq!(script.stack.take_error(id), Ok(None));
}

/// RFC 6298, 5: a SYN is retransmitted after 1, 2, 4 ... seconds, and given up.
#[test]
fn a_syn_without_an_answer_is_given_up() {
    let mut script = Script::new(|settings| settings.syn_retries = 3);
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    script.one();
    let sent = script.pass(100 * SECOND);
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
    script.one();
    script.inject(&seg("S", 0, 0).options(1000, None, true));
    let answer = script.one();
    assert_eq!((answer.flags.as_str(), answer.seq, answer.ack), ("SA", 0, 1));
    script.inject(&seg("SA", 0, 1).options(1000, None, true));
    assert!(script.stack.is_connected(id));
    script.inject(&seg("PA", 1, 1).data(5));
    assert_eq!(script.read(id).len(), 5);
}

/// RFC 9293, 3.10.7.4: the SYN comes again, so our answer was lost.
#[test]
fn a_repeated_syn_is_answered_again() {
    let mut script = script();
    script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    for _ in 0..3 {
        script.inject(&seg("S", 0, 0));
        assert_eq!(script.one().flags, "SA");
    }
    script.inject(&seg("R", 1, 0));
    assert_eq!((script.stack.socket_count(), script.stack.timer_count()), (1, 0));
}

/// RFC 9293, 3.10.7.1: segments for nobody.
#[test]
fn what_is_for_nobody_is_refused_with_the_right_numbers() {
    let mut script = script();
    script.initial = Some(5000);
    script.inject(&seg("S", 0, 0).data(3));
    let reset = script.one();
    assert_eq!((reset.flags.as_str(), reset.ack), ("RA", 4));
    script.inject(&seg("A", 7, 9));
    let reset = script.one();
    assert_eq!((reset.flags.as_str(), reset.seq), ("R", 9));
    script.inject(&seg("R", 7, 0));
    script.inject(&seg("RA", 7, 9));
    script.nothing();
}

/// RFC 9293, 3.6: the four ways to end.
#[test]
fn an_active_close_ends_in_time_wait_and_is_forgotten() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.shutdown(script.at(), id, Shutdown::Write).unwrap();
    let fin = script.one();
    assert_eq!((fin.flags.as_str(), fin.seq), ("FA", 1));
    assert_eq!(script.stack.write(id, b"x"), Err(IoError::BrokenPipe));
    script.inject(&seg("A", 1, 2));
    // Half closed: the peer may go on.
    script.inject(&seg("PA", 1, 2).data(10));
    assert_eq!(script.read(id).len(), 10);
    script.sent();
    script.inject(&seg("FA", 11, 2));
    assert_eq!(script.one().ack, 12);
    assert_eq!(script.stack.read(id, &mut [0; 9]), Ok(0));
    script.stack.close(script.at(), id).unwrap();
    assert_eq!((script.stack.socket_count(), script.stack.time_wait_count()), (1, 1));
    // The FIN again: acknowledged again, and the wait begins again.
    script.pass(50 * SECOND);
    script.inject(&seg("FA", 11, 2));
    assert_eq!(script.one().ack, 12);
    // RFC 1337: a reset does not end it.
    script.inject(&seg("R", 12, 0));
    script.pass(50 * SECOND);
    assert_eq!(script.stack.time_wait_count(), 1);
    script.pass(20 * SECOND);
    assert_eq!((script.stack.time_wait_count(), script.stack.flow_count(), script.stack.poll_timeout()), (0, 0, None));
}

#[test]
fn a_passive_close_ends_with_the_last_ack() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("FA", 1, 1));
    assert_eq!(script.one().ack, 2);
    assert!(script.stack.readiness(id).contains(Readiness::READABLE | Readiness::READ_CLOSED));
    assert!(!script.stack.readiness(id).contains(Readiness::HANG_UP));
    script.write(id, 100);
    script.stack.close(script.at(), id).unwrap();
    let last = script.one();
    assert_eq!((last.flags.as_str(), last.payload.len()), ("FPA", 100));
    script.inject(&seg("A", 2, 102));
    assert_eq!((script.stack.socket_count(), script.stack.flow_count(), script.stack.timer_count()), (1, 0, 0));
}

#[test]
fn a_simultaneous_close_ends_in_time_wait() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.close(script.at(), id).unwrap();
    assert_eq!(script.one().flags, "FA");
    script.inject(&seg("FA", 1, 1));
    assert_eq!(script.one().ack, 2);
    script.inject(&seg("A", 2, 2));
    assert_eq!((script.stack.socket_count(), script.stack.time_wait_count()), (1, 1));
}

/// RFC 2525, 2.17; RFC 1122, 4.2.2.13: data that nobody will read is answered with a reset.
#[test]
fn closing_with_unread_data_or_after_it_resets() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("PA", 1, 1).data(10));
    script.sent();
    script.stack.close(script.at(), id).unwrap();
    assert_eq!(script.one().flags, "RA");
    assert_eq!(script.stack.socket_count(), 1);

    let mut script = self::script();
    let id = script.accepted_with_sack();
    script.stack.close(script.at(), id).unwrap();
    script.one();
    script.inject(&seg("PA", 1, 2).data(10));
    assert_eq!(script.one().flags, "RA");
    assert_eq!(script.stack.counters().tcp_aborted_on_data, 1);
    assert_eq!((script.stack.socket_count(), script.stack.flow_count()), (1, 0));
}

#[test]
fn lingering_for_no_time_resets_and_for_some_time_gives_up() {
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
    let sent = script.pass(10 * SECOND);
    let (at, last) = sent.last().unwrap();
    assert_eq!((at / SECOND, last.flags.as_str()), (3, "RA"));
    assert_eq!(script.stack.socket_count(), 1);
}

/// An application that is gone waits for the peer's FIN only so long.
#[test]
fn fin_wait_2_of_nobody_ends() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.close(script.at(), id).unwrap();
    script.one();
    script.inject(&seg("A", 1, 2));
    assert_eq!(script.stack.socket_count(), 2);
    script.pass(61 * SECOND);
    assert_eq!((script.stack.socket_count(), script.stack.flow_count(), script.stack.timer_count()), (1, 0, 0));
}

/// RFC 5961, 3: a reset counts only with exactly the expected number.
#[test]
fn a_spoofed_reset_gets_a_challenge() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("R", 100, 0));
    let challenge = script.one();
    assert_eq!((challenge.flags.as_str(), challenge.seq, challenge.ack), ("A", 1, 1));
    script.inject(&seg("R", 1_000_000, 0));
    script.nothing();
    assert!(script.stack.is_connected(id));
    script.inject(&seg("R", 1, 0));
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::Reset)));
    assert_eq!(script.stack.counters().tcp_challenge_acks, 1);
}

/// RFC 5961, 4 and 5: SYNs in a connection and ACKs of what was not sent; at a limited rate.
#[test]
fn spoofed_syns_and_acks_get_challenges_at_a_limited_rate() {
    let mut script = Script::new(|settings| settings.challenge_rate = 5);
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
    assert_eq!(challenges, 5);
    assert!(script.stack.is_connected(id));
    assert!(script.read(id).is_empty(), "data with a bad ACK is not taken");
}

/// RFC 7323, 5: PAWS.
#[test]
fn old_timestamps_are_rejected_and_resets_are_not() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0));
    script.inject(&seg("PA", 1, 1).data(10).timestamp(1001, 0));
    assert_eq!(script.one().timestamp.unwrap().1, 1001);
    script.inject(&seg("PA", 11, 1).data(10).timestamp(990, 0));
    let answer = script.one();
    assert_eq!((answer.ack, answer.timestamp.unwrap().1), (11, 1001));
    script.inject(&seg("PA", 11, 1).data(10));
    assert_eq!(script.one().ack, 11, "without a timestamp it is not one of ours");
    assert_eq!(script.stack.counters().tcp_paws_rejected, 2);
    assert_eq!(script.read(id).len(), 10);
    script.inject(&seg("R", 11, 0).timestamp(1, 0));
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::Reset)));
}

/// A segment that a retransmission overtook has an older timestamp, by a tick; it is not an old one.
#[test]
fn a_tick_of_reordering_is_no_wraparound() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0));
    script.inject(&seg("A", 1, 1).data(10).timestamp(1010, 0));
    script.sent();
    script.inject(&seg("A", 11, 1).data(10).timestamp(1009, 0));
    assert_eq!(script.one().timestamp.unwrap().1, 1010, "and the clock does not go back");
    assert_eq!((script.read(id).len(), script.stack.counters().tcp_paws_rejected), (20, 0));
}

/// RFC 7323, 4.3: a segment out of order does not move TS.Recent.
#[test]
fn the_echoed_timestamp_is_that_of_the_segment_in_order() {
    let mut script = script();
    script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0));
    script.inject(&seg("PA", 11, 1).data(10).timestamp(1005, 0));
    assert_eq!(script.one().timestamp.unwrap().1, 1000);
    script.inject(&seg("PA", 1, 1).data(10).timestamp(1006, 0));
    assert_eq!(script.one().timestamp.unwrap().1, 1006);
}

/// RFC 4987: under a flood nothing is stored, and the ACK brings everything back.
#[test]
fn a_flood_is_answered_with_cookies_that_work() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 4).unwrap();
    for port in 0..1000 {
        script.ports.1 = 10_000 + port;
        script.inject(&seg("S", 0, 0).options(1000, Some(5), true).timestamp(50, 0));
    }
    assert_eq!(script.sent().len(), 1000);
    assert_eq!(script.stack.socket_count(), 5, "the listener and its backlog");
    assert_eq!(script.stack.counters().tcp_syncookies_sent, 996);
    // A peer that means it.
    script.ports.1 = 4000;
    script.inject(&seg("S", 0, 0).options(1000, Some(5), true).timestamp(50, 0));
    let answer = script.one();
    script.inject(&seg("PA", 1, 1).data(7).timestamp(51, answer.timestamp.unwrap().0).window(1000));
    let id = script.stack.accept(listener).unwrap();
    assert_eq!(script.read(id).len(), 7);
    script.sent();
    // 1000 << 5 is a window for 32 segments; the initial window is 10, of a size the cookie rounds down.
    script.write(id, 20_000);
    let sent = script.sent();
    assert_eq!((sent.len(), sent[0].payload.len()), (10, 524));
    // A guess.
    script.ports.1 = 4001;
    script.inject(&seg("A", 1, 12_345));
    script.nothing();
    assert_eq!(script.stack.accept(listener), Err(IoError::WouldBlock));
    assert_eq!(script.stack.counters().tcp_syncookies_failed, 1);
}

/// RFC 6191: a SYN that is newer takes over a connection in TIME-WAIT; an older one does not.
#[test]
fn time_wait_is_taken_over_by_a_newer_connection_only() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(1000, 0));
    script.stack.close(script.at(), id).unwrap();
    script.sent();
    script.inject(&seg("FA", 1, 2).timestamp(1001, 0));
    script.sent();
    assert_eq!(script.stack.time_wait_count(), 1);
    script.inject(&seg("S", 0, 0).options(1000, None, true).timestamp(900, 0));
    assert_eq!(script.one().flags, "A", "an old one is acknowledged");
    let old = script.initial.unwrap();
    script.inject(&seg("S", 5000, 0).options(1000, None, true).timestamp(1002, 0));
    assert_eq!(script.one().flags, "SA");
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
        script.one();
        script.inject(&seg("A", 1, 1));
        let id = script.stack.accept(listener).unwrap();
        script.stack.close(script.at(), id).unwrap();
        script.sent();
        script.inject(&seg("FA", 1, 2));
        script.sent();
    }
    assert_eq!((script.stack.time_wait_count(), script.stack.flow_count()), (10, 10));
    assert_eq!(script.stack.counters().tcp_time_wait_overflows, 40);
    script.pass(100 * SECOND);
    assert_eq!((script.stack.flow_count(), script.stack.poll_timeout()), (0, None));
}

/// The accept queue is bounded; who does not fit tries again, and gets in.
#[test]
fn a_full_accept_queue_makes_peers_wait() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 1).unwrap();
    let mut initials = Vec::new();
    for port in [4000, 4001] {
        script.ports.1 = port;
        script.inject(&seg("S", 0, 0));
        script.one();
        initials.push(script.initial);
    }
    for (port, initial) in [4000, 4001].into_iter().zip(initials) {
        (script.ports.1, script.initial) = (port, initial);
        script.inject(&seg("A", 1, 1));
    }
    script.nothing();
    assert_eq!(script.stack.counters().tcp_listen_overflows, 1);
    script.ports.1 = 4002;
    script.inject(&seg("S", 0, 0));
    script.nothing();
    script.stack.accept(listener).unwrap();
    script.ports.1 = 4001;
    script.inject(&seg("A", 1, 1));
    let id = script.stack.accept(listener).unwrap();
    assert_eq!(script.stack.peer_addr(id).unwrap().port(), 4001);
}

/// A stale id is an error and never another socket.
#[test]
fn stale_ids_are_harmless() {
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

/// RFC 1191 and RFC 5927: a smaller path, believed only from someone who saw the segment.
#[test]
fn a_smaller_path_shortens_segments_if_it_is_plausible() {
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
    script.nothing();
    assert_eq!(script.stack.counters().icmp_in_strays, 1);
    script.stack.handle_frame(script.at(), &notice(1, 1300));
    let again = script.sent();
    assert_eq!(ranges(&again)[..2], [(1, 1260), (1261, 200)]);
    script.stack.handle_frame(script.at(), &notice(1, 68));
    assert!(script.sent().iter().all(|segment| segment.payload.len() <= 512), "never below 552");
    assert_eq!(script.stack.counters().tcp_path_mtu_lowered, 2);

    // The next connection to the same host begins with it, until it is forgotten; what is announced is the link's.
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

/// An IPv4 packet from the peer, as a frame.
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

/// RFC 5927: a connection that is established does not believe that the port is unreachable; an attempt does.
#[test]
fn unreachable_ends_attempts_only() {
    let mut script = script();
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    script.one();
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
