//! TCP's transfer of data, segment by segment: windows, SACK, recovery, timers, acknowledgements.

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
    // The last ACK said 1000 << 2; ten segments of the initial window would be allowed.
    script.write(id, 20_000);
    assert_eq!(script.sent().len(), 4);
    script.inject(&seg("A", 1, 4001).window(2500));
    assert_eq!(script.sent().len(), 10);
    // And ours: 128 KiB in units of 2^7.
    script.inject(&seg("PA", 1, 4001).data(1).window(2500));
    assert_eq!(script.sent().last().unwrap().window, 1023);
}

/// RFC 2018 and RFC 2883: what the receiver reports.
#[test]
fn islands_are_reported_the_latest_first_and_duplicates_before_them() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("A", 101, 1).data(100));
    assert_eq!(script.one().sack, [(101, 201)]);
    script.inject(&seg("A", 301, 1).data(100));
    let ack = script.one();
    assert_eq!((ack.ack, ack.sack.as_slice()), (1, &[(301, 401), (101, 201)][..]));
    script.inject(&seg("A", 301, 1).data(100));
    assert_eq!(script.one().sack, [(301, 401), (301, 401), (101, 201)]);
    script.inject(&seg("A", 1, 1).data(100));
    let ack = script.one();
    assert_eq!((ack.ack, ack.sack.as_slice()), (201, &[(301, 401)][..]));
    script.inject(&seg("A", 1, 1).data(100));
    assert_eq!(script.one().sack, [(1, 101), (301, 401)]);
    script.inject(&seg("A", 201, 1).data(100));
    assert_eq!((script.one().ack, script.read(id).len()), (401, 400));
}

/// RFC 6675 and RFC 8985: three segments SACKed behind a hole; the hole is filled, once, and the window is cut once.
#[test]
fn a_hole_is_retransmitted_at_once_and_once() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 30_000);
    assert_eq!(ranges(&script.sent()).len(), 10, "the initial window of RFC 6928");
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1001));
    assert_eq!(ranges(&script.sent()), [(10_001, 1000), (11_001, 1000)], "slow start");
    script.now += MILLISECOND;
    script.inject(&seg("A", 1, 1001).sack(&[(2001, 3001)]));
    script.inject(&seg("A", 1, 1001).sack(&[(2001, 4001)]));
    let before = script.sent();
    assert!(before.iter().all(|segment| segment.seq > 11_000), "not yet: {before:?}");
    script.inject(&seg("A", 1, 1001).sack(&[(2001, 5001)]));
    assert_eq!(ranges(&script.sent())[0], (1001, 1000));
    script.inject(&seg("A", 1, 1001).sack(&[(2001, 6001)]));
    assert!(script.sent().iter().all(|segment| segment.seq > 1001), "not twice");
    assert_eq!(
        (script.stack.counters().tcp_sack_recoveries, script.stack.counters().tcp_retransmitted_segments),
        (1, 1)
    );
}

/// RFC 2018, 4: data goes both ways, so what arrived early is reported on data segments too, which are cut to leave it room.
#[test]
fn islands_are_reported_on_data_segments() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 3000);
    script.inject(&seg("A", 101, 1).data(100));
    let sent = script.sent();
    // 4 bytes for the option and its padding, 8 for the block.
    assert_eq!(ranges(&sent), [(1, 988), (989, 988), (1977, 988)]);
    assert!(sent.iter().all(|segment| segment.sack == [(101, 201)]), "{sent:?}");
    script.inject(&seg("A", 1, 2965).data(100));
    let rest = script.one();
    assert_eq!((rest.ack, rest.payload.len(), rest.sack.len()), (201, 36, 0));
}

/// RFC 9937: while a hole is repaired sending goes on, in proportion to what arrives, and ends with the window cut.
#[test]
fn recovery_sends_evenly() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 200_000);
    let mut next = 1;
    for _ in 0..2 {
        next += script.sent().len() as u32 * 1000;
        script.now += 20 * MILLISECOND;
        script.inject(&seg("A", 1, next));
    }
    // Slow start: forty segments are in flight, of which the first is lost.
    assert_eq!((next, script.sent().len()), (30_001, 40));
    script.now += 20 * MILLISECOND;
    // Before the peer's window, which begins at the hole, ends it.
    let sent: Vec<usize> = (1..30)
        .map(|number| {
            script.inject(&seg("A", 1, next).sack(&[(next + 1000, next + 1000 * (number + 1))]));
            script.sent().len()
        })
        .collect();
    let recovering = &sent[3..];
    assert!(recovering.windows(3).all(|few| few.iter().sum::<usize>() > 0), "never silent: {sent:?}");
    assert!(recovering.iter().all(|&few| few <= 2), "never a burst: {sent:?}");
    let share = recovering.iter().sum::<usize>() as f64 / recovering.len() as f64;
    assert!((0.6..0.8).contains(&share), "CUBIC cuts to 0.7, not {share}: {sent:?}");
    assert_eq!(script.stack.counters().tcp_retransmitted_segments, 1);
}

/// A connection with timestamps that has twenty segments of 988 bytes in flight, from 9881 on, and 20 ms of round trip; the
/// stamp of these segments.
fn twenty_in_flight(script: &mut Script) -> u32 {
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).timestamp(50, 0));
    script.write(id, 100_000);
    let first = script.sent();
    assert_eq!(first.len(), 10);
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 9881).timestamp(51, first[0].timestamp.unwrap().0));
    let second = script.sent();
    assert_eq!((second.len(), second[0].seq), (20, 9881));
    second[0].timestamp.unwrap().0
}

/// RFC 3522 and RFC 4015: the path became slow, the timer went off, and then everything arrives.
#[test]
fn a_timeout_without_a_loss_is_undone() {
    let mut script = script();
    let stamp = twenty_in_flight(&mut script);
    let sent = script.pass(400 * MILLISECOND);
    assert!(script.stack.counters().tcp_timeouts >= 1, "{sent:?}");
    let resent = script.stack.counters().tcp_retransmitted_segments;
    script.inject(&seg("A", 1, 9881 + 2 * 988).timestamp(52, stamp));
    let highest = sent.iter().map(|(_, segment)| segment.seq).max().unwrap().max(9881 + 19 * 988);
    let more = script.sent();
    assert!(!more.is_empty() && more.len() <= 4 && more.iter().all(|segment| segment.seq > highest), "{more:?}");
    assert_eq!(script.stack.counters().tcp_undone, 1);
    // As many as before are in flight again, and nothing is sent twice.
    script.inject(&seg("A", 1, 9881 + 20 * 988).timestamp(53, stamp));
    assert!(script.sent().len() >= 10);
    assert_eq!(script.stack.counters().tcp_retransmitted_segments, resent);
    // The timeout learnt: two thirds of a second of silence are not enough any more.
    let timeouts = script.stack.counters().tcp_timeouts;
    script.pass(600 * MILLISECOND);
    assert_eq!(script.stack.counters().tcp_timeouts, timeouts);
}

/// The echo is that of the retransmission, so the original was lost: nothing is undone.
#[test]
fn a_timeout_with_a_loss_is_not_undone() {
    let mut script = script();
    twenty_in_flight(&mut script);
    let sent = script.pass(400 * MILLISECOND);
    let (_, again) = sent.iter().rfind(|(_, segment)| segment.seq == 9881).expect("sent again");
    script.inject(&seg("A", 1, 9881 + 988).timestamp(52, again.timestamp.unwrap().0));
    assert_eq!(ranges(&script.sent())[0], (9881 + 988, 988), "slow start from the hole");
    assert_eq!(script.stack.counters().tcp_undone, 0);
}

/// RFC 4015: reordering that looked like a loss.
#[test]
fn a_recovery_from_reordering_is_undone() {
    let mut script = script();
    let stamp = twenty_in_flight(&mut script);
    script.now += 20 * MILLISECOND;
    for arrived in 1..5 {
        let blocks = [(9881 + 988, 9881 + 988 * (arrived + 1))];
        script.inject(&seg("A", 1, 9881).timestamp(52, stamp).sack(&blocks));
    }
    assert_eq!(script.stack.counters().tcp_sack_recoveries, 1);
    assert_eq!(script.sent()[0].seq, 9881);
    script.now += 5 * MILLISECOND;
    script.inject(&seg("A", 1, 9881 + 5 * 988).timestamp(53, stamp));
    assert_eq!(script.stack.counters().tcp_undone, 1);
    script.sent();
    script.inject(&seg("A", 1, 9881 + 20 * 988).timestamp(54, stamp));
    assert!(script.sent().len() >= 10, "the window is what it was");
    assert_eq!(script.stack.counters().tcp_retransmitted_segments, 1);
}

/// RFC 8985, 6.2: with one SACK only, the reordering timer decides.
#[test]
fn a_reordered_segment_is_waited_for() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 4000);
    script.sent();
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1001));
    script.sent();
    script.inject(&seg("A", 1, 1001).sack(&[(2001, 3001)]));
    script.nothing();
    let sent = script.pass(10 * MILLISECOND);
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].1.seq, 1001);
    assert!((4..=6).contains(&(sent[0].0 / MILLISECOND)), "a quarter of 20 ms, not {}", sent[0].0);
}

/// RFC 8985, 7: a lost tail is probed for after two round trips.
#[test]
fn a_lost_tail_is_probed_for() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 1000);
    script.sent();
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1001));
    script.write(id, 3000);
    assert_eq!(script.sent().len(), 3);
    let sent = script.pass(70 * MILLISECOND);
    assert_eq!((sent.len(), sent[0].1.seq), (1, 3001), "{sent:?}");
    assert_eq!(script.stack.counters().tcp_loss_probes, 1);
    // The probe arrived, and shows that the others did not.
    script.inject(&seg("A", 1, 1001).sack(&[(3001, 4001)]));
    script.pass(30 * MILLISECOND);
    assert_eq!(script.stack.counters().tcp_sack_recoveries, 1);
    assert_eq!(script.stack.counters().tcp_timeouts, 0);
}

/// RFC 6298: without any answer the timer retransmits, backs off, and gives up.
#[test]
fn a_dead_peer_is_given_up_after_retries_with_backoff() {
    let mut script = Script::new(|settings| settings.retries = 4);
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, false));
    script.write(id, 1000);
    script.sent();
    let sent = script.pass(1000 * SECOND);
    assert!(sent.iter().all(|(_, segment)| ranges(core::slice::from_ref(segment)) == [(1, 1000)]));
    let at: Vec<u64> = sent.iter().map(|(at, _)| at / MILLISECOND).collect();
    assert_eq!(at.len(), 4);
    for step in 1..3 {
        let (first, second) = (at[step] - at[step - 1], at[step + 1] - at[step]);
        assert!(second.abs_diff(2 * first) <= 2, "{at:?}");
    }
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
    assert_eq!(script.stack.timer_count(), 0);
}

/// RFC 6582: without SACK, three duplicates; partial acknowledgements bring the next hole.
#[test]
fn newreno_recovers_without_sack() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, false));
    script.write(id, 10_000);
    assert_eq!(script.sent().len(), 10);
    script.now += 20 * MILLISECOND;
    for _ in 0..2 {
        script.inject(&seg("A", 1, 1));
        script.nothing();
    }
    script.inject(&seg("A", 1, 1));
    assert_eq!(ranges(&script.sent()), [(1, 1000)]);
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 4001));
    assert_eq!(ranges(&script.sent()), [(4001, 1000)], "the next hole");
    script.inject(&seg("A", 1, 10_001));
    script.nothing();
    assert_eq!((script.stack.counters().tcp_reno_recoveries, script.stack.counters().tcp_timeouts), (1, 0));
}

/// RFC 2018, 8: a peer that forgets what it SACKed.
#[test]
fn a_reneging_peer_gets_everything_again() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 4000);
    script.sent();
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1001).sack(&[(2001, 4001)]));
    script.sent();
    script.now += 20 * MILLISECOND;
    // It has 1001..2001 now, but says that it lacks what it said it had.
    script.inject(&seg("A", 1, 2001));
    let sent = script.pass(3 * SECOND);
    assert_eq!(script.stack.counters().tcp_sack_reneging, 1);
    assert!(sent.iter().any(|(_, segment)| segment.seq == 2001), "{sent:?}");
}

/// RFC 9293, 3.8.6.1 and 3.8.6.2.1: a closed window is probed, and opens.
#[test]
fn a_closed_window_is_probed_and_crumbs_are_not_sent() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(2000));
    script.write(id, 5000);
    assert_eq!(script.sent().len(), 2);
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 2001).window(0));
    script.nothing();
    let probes = script.pass(2 * SECOND);
    assert!(probes.len() >= 2 && probes.iter().all(|(_, probe)| probe.seq == 2000 && probe.payload.is_empty()));
    script.inject(&seg("A", 1, 2001).window(10));
    script.nothing();
    script.inject(&seg("A", 1, 2001).window(5000));
    assert_eq!(script.sent().len(), 3);
    assert!(script.stack.counters().tcp_window_probes >= 2);
}

/// A probe is not acceptable to the peer, which ignores what else is in it: what is owed stays owed.
#[test]
fn a_window_probe_does_not_settle_an_acknowledgement() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(1000));
    script.write(id, 1000);
    script.sent();
    script.inject(&seg("A", 1, 1001).window(0));
    script.write(id, 1000);
    script.nothing();
    // Out of the quick start: the acknowledgement that is owed waits for 40 ms, the probe comes before.
    script.inject(&seg("PA", 1, 1001).data(10).window(0));
    script.sent();
    script.pass(190 * MILLISECOND);
    for seq in 1..17 {
        script.inject(&seg("PA", seq * 10 + 1, 1001).data(10).window(0));
        script.sent();
    }
    script.inject(&seg("PA", 171, 1001).data(10).window(0));
    script.nothing();
    let sent = script.pass(60 * MILLISECOND);
    let seen: Vec<_> = sent.iter().map(|(_, segment)| (segment.seq, segment.ack)).collect();
    assert_eq!(seen, [(1000, 181), (1001, 181)], "a probe, and then the acknowledgement");
}

/// RFC 9293, 3.8.6.2.2: our window opens in worthwhile steps, and the peer is told.
#[test]
fn our_window_closes_and_opens_in_steps() {
    let mut script = Script::new(|settings| {
        settings.receive_buffer = 4096;
        settings.receive_buffer_limit = 4096;
    });
    let id = script.accepted_with_sack();
    script.inject_burst(&[1, 1001, 2001, 3001].map(|seq| seg("A", seq, 1).data(1000)));
    script.inject(&seg("PA", 4001, 1).data(96));
    assert_eq!(script.sent().last().unwrap().window, 0);
    script.inject(&seg("A", 4097, 1).data(10));
    assert_eq!(script.one().ack, 4097, "a probe is answered, and its data not taken");
    script.stack.read(id, &mut [0; 100]).unwrap();
    script.nothing();
    assert_eq!(script.read(id).len(), 3996);
    let update = script.one();
    assert_eq!((update.ack, update.window), (4097, 4096));
}

/// RFC 9293, 3.8.6.3: delayed acknowledgements, every second full segment, and quick ones at the start.
#[test]
fn acknowledgements_are_delayed_in_a_conversation() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("PA", 1, 1).data(10));
    assert_eq!(script.one().ack, 11, "quick at the start");
    script.inject(&seg("PA", 11, 1).data(10));
    script.write(id, 5);
    let response = script.one();
    assert_eq!((response.ack, response.payload.len()), (21, 5), "one segment does both");
    script.inject(&seg("PA", 21, 6).data(10));
    script.nothing();
    let sent = script.pass(50 * MILLISECOND);
    assert_eq!((sent.len(), sent[0].0 / MILLISECOND, sent[0].1.ack), (1, 40, 31));
    script.inject(&seg("A", 31, 6).data(1000));
    script.nothing();
    script.inject(&seg("A", 1031, 6).data(1000));
    assert_eq!(script.one().ack, 2031);
}

/// A merged burst is one acknowledgement.
#[test]
fn a_burst_is_merged_and_acknowledged_once() {
    let mut script = script();
    let id = script.accepted_with_sack();
    let burst: Vec<Seg> = (0..20).map(|number| seg("A", 1 + number * 1000, 1).data(1000)).collect();
    script.inject_burst(&burst);
    assert_eq!(script.one().ack, 20_001);
    assert_eq!(script.stack.counters().tcp_coalesced, 19);
    let read = script.read(id);
    assert_eq!(read.len(), 20_000);
    assert!(read.iter().enumerate().all(|(at, &byte)| byte == (at + 1) as u8));
}

/// RFC 896 and TCP_NODELAY.
#[test]
fn nagle_holds_small_writes_unless_told_not_to() {
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
fn keepalive_probes_and_gives_up() {
    let mut script = script();
    let id = script.accepted_with_sack();
    let seconds = core::time::Duration::from_secs;
    let keepalive = Keepalive { idle: seconds(10), interval: seconds(2), probes: 3 };
    script.stack.set_keepalive(script.at(), id, Some(keepalive)).unwrap();
    let sent = script.pass(11 * SECOND);
    assert_eq!((sent.len(), sent[0].1.seq, sent[0].1.payload.len()), (1, 0, 0));
    script.inject(&seg("A", 1, 1));
    script.nothing();
    let sent = script.pass(100 * SECOND);
    let seen: Vec<_> = sent.iter().map(|(at, segment)| (at / SECOND, segment.flags.as_str())).collect();
    assert_eq!(seen, [(10, "A"), (12, "A"), (14, "A"), (16, "RA")]);
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
}

/// Events are edges: new data is news even if old data was not read; room is news only after a refusal.
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

/// What an idle connection weighs.
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

/// A window in bytes would let a writer of single bytes send thousands of segments.
#[test]
fn tiny_segments_are_bounded_in_number() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.set_nodelay(id, true).unwrap();
    let mut sent = 0;
    for _ in 0..2000 {
        script.write(id, 1);
        sent += script.sent().len();
    }
    assert_eq!(sent, 8 * 12, "eight for each of the ten full segments of the initial window, and some");
    // What was held back goes out together.
    script.inject(&seg("A", 1, 97));
    let rest = script.sent();
    assert_eq!(ranges(&rest), [(97, 1000), (1097, 904)]);
}

/// A peer whose data fills our window, with a hole at its beginning: its acknowledgements come from the right edge.
#[test]
fn an_acknowledgement_from_the_edge_of_a_full_window_counts() {
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

/// A peer's retransmission has an old number, but what it acknowledges and offers is news: SND.WND must not move along with
/// SND.UNA past what was offered.
#[test]
fn the_window_of_a_retransmission_counts_if_it_acknowledges_more() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(2000));
    script.write(id, 5000);
    assert_eq!(script.sent().len(), 2);
    script.inject(&seg("A", 1001, 1).data(1000).window(2000));
    script.sent();
    script.inject(&seg("A", 1, 2001).data(1000).window(0));
    let sent = script.sent();
    assert!(sent.iter().all(|segment| segment.payload.is_empty()), "the peer offers nothing: {sent:?}");
}

/// A peer that runs out of memory closes its window over what is in flight, and ignores what begins beyond it: only from
/// inside does it hear our acknowledgements.
#[test]
fn acknowledgements_to_a_window_that_shrank_come_from_inside_it() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(5000));
    script.write(id, 5000);
    assert_eq!(script.sent().len(), 5);
    script.inject(&seg("A", 1, 1001).window(0));
    script.sent();
    script.inject(&seg("A", 1, 1001).data(1000).window(0));
    let ack = script.one();
    assert_eq!((ack.seq, ack.ack), (1001, 1001));
    // What is sent again must fit as well; the first segment asks whether anything does.
    let again = |script: &mut Script| {
        let sent: Vec<_> = script.pass(3 * SECOND).into_iter().map(|(_, segment)| segment).collect();
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

/// RFC 9293, 3.8.6.1: a peer that answers, with a closed window, is never given up; one that does not answer is.
#[test]
fn a_window_that_closed_over_data_may_stay_closed() {
    let mut script = Script::new(|settings| settings.retries = 4);
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, true).window(5000));
    script.write(id, 2000);
    script.sent();
    for _ in 0..50 {
        script.inject(&seg("A", 1, 1).window(0));
        script.pass(SECOND / 10);
        script.inject(&seg("A", 1, 1).window(0));
        script.pass(SECOND);
    }
    assert_eq!(script.stack.take_error(id), Ok(None));
    script.pass(1000 * SECOND);
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
}

/// Karn's rule, for all that one acknowledgement covers: it came late because of what was lost, and says nothing of the
/// path. Else timeouts make timeouts longer.
#[test]
fn an_acknowledgement_that_took_a_retransmission_is_no_round_trip() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, false));
    script.write(id, 2000);
    assert_eq!(ranges(&script.sent()), [(1, 1000), (1001, 1000)]);
    let again = script.pass(30 * SECOND);
    assert!(!again.is_empty() && again.iter().all(|(_, segment)| segment.seq == 1));
    script.inject(&seg("A", 1, 2001));
    script.write(id, 1000);
    script.sent();
    let again = script.pass(30 * SECOND);
    assert!(again[0].0 < SECOND, "after {} ns", again[0].0);
}

/// The same for timestamps, on both sides: the answer to a retransmission echoes the retransmission, and an echo that is
/// older than that is not believed.
#[test]
fn the_echo_of_a_lost_acknowledgement_is_no_round_trip() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, false).timestamp(100, 0));
    for value in [200, 300] {
        let echo = script.stack.counters().tcp_out_segments as u32;
        script.inject(&seg("PA", 1, 1).data(10).timestamp(value, echo));
        assert_eq!(script.one().timestamp.unwrap().1, value);
    }
    script.write(id, 1000);
    let first = script.one().timestamp.unwrap().0;
    script.pass(100 * SECOND);
    script.inject(&seg("A", 11, 989).timestamp(400, first));
    script.inject(&seg("A", 11, 1001).timestamp(400, first));
    script.write(id, 900);
    script.sent();
    let again = script.pass(30 * SECOND);
    assert!(again[0].0 < SECOND, "after {} ns", again[0].0);
}
