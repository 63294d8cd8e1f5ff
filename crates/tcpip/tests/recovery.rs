//! Loss recovery segment by segment: SACK, retransmission, probes, undo and round-trip samples.

mod common;

use abey_tcpip::SocketError;
use common::{
    MILLISECOND, SECOND,
    script::{Script, ranges, seg},
};

fn script() -> Script {
    Script::new(|_| ())
}

/// RFC 2018 and RFC 2883: SACK blocks and duplicates that the receiver reports.
#[test]
fn sack_blocks_report_duplicates_first_and_then_the_latest_range() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.inject(&seg("A", 101, 1).data(100));
    assert_eq!(script.expect_one().sack, [(101, 201)]);
    script.inject(&seg("A", 301, 1).data(100));
    let ack = script.expect_one();
    assert_eq!((ack.ack, ack.sack.as_slice()), (1, &[(301, 401), (101, 201)][..]));
    script.inject(&seg("A", 301, 1).data(100));
    assert_eq!(script.expect_one().sack, [(301, 401), (301, 401), (101, 201)]);
    script.inject(&seg("A", 1, 1).data(100));
    let ack = script.expect_one();
    assert_eq!((ack.ack, ack.sack.as_slice()), (201, &[(301, 401)][..]));
    script.inject(&seg("A", 1, 1).data(100));
    assert_eq!(script.expect_one().sack, [(1, 101), (301, 401)]);
    script.inject(&seg("A", 201, 1).data(100));
    assert_eq!((script.expect_one().ack, script.read(id).len()), (401, 400));
}

/// RFC 6675 and RFC 8985: a hole before three SACKed segments is retransmitted once, and the window is reduced once.
#[test]
fn a_hole_is_retransmitted_immediately_and_once() {
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

/// RFC 2018, 4: SACK blocks are also sent on data segments, whose payload is shortened for them.
#[test]
fn sack_blocks_are_sent_on_data_segments() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 3000);
    script.inject(&seg("A", 101, 1).data(100));
    let sent = script.sent();
    // 4 bytes for the option and its padding, and 8 for the block.
    assert_eq!(ranges(&sent), [(1, 988), (989, 988), (1977, 988)]);
    assert!(sent.iter().all(|segment| segment.sack == [(101, 201)]), "{sent:?}");
    script.inject(&seg("A", 1, 2965).data(100));
    let rest = script.expect_one();
    assert_eq!((rest.ack, rest.payload.len(), rest.sack.len()), (201, 36, 0));
}

/// RFC 9937: a recovery continues sending in proportion to what arrives, and ends with the reduced window.
#[test]
fn a_recovery_sends_evenly() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 200_000);
    let mut next = 1;
    for _ in 0..2 {
        next += script.sent().len() as u32 * 1000;
        script.now += 20 * MILLISECOND;
        script.inject(&seg("A", 1, next));
    }
    // Slow start: forty segments are in flight, and the first is lost.
    assert_eq!((next, script.sent().len()), (30_001, 40));
    script.now += 20 * MILLISECOND;
    // Ends before the peer's window, which starts at the hole, is full.
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

/// Establishes a connection with timestamps, a round trip of 20 ms and twenty segments of 988 bytes in flight, from
/// 9881 on. Returns the timestamp of these segments.
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

/// RFC 3522 and RFC 4015: the path becomes slower, a timeout occurs, and then everything arrives.
#[test]
fn a_timeout_without_a_loss_is_undone() {
    let mut script = script();
    let stamp = twenty_in_flight(&mut script);
    let sent = script.advance(400 * MILLISECOND);
    assert!(script.stack.counters().tcp_timeouts >= 1, "{sent:?}");
    let resent = script.stack.counters().tcp_retransmitted_segments;
    script.inject(&seg("A", 1, 9881 + 2 * 988).timestamp(52, stamp));
    let highest = sent.iter().map(|(_, segment)| segment.seq).max().unwrap().max(9881 + 19 * 988);
    let more = script.sent();
    assert!(!more.is_empty() && more.len() <= 4 && more.iter().all(|segment| segment.seq > highest), "{more:?}");
    assert_eq!(script.stack.counters().tcp_undone, 1);
    // As much as before is in flight again, and nothing is sent twice.
    script.inject(&seg("A", 1, 9881 + 20 * 988).timestamp(53, stamp));
    assert!(script.sent().len() >= 10);
    assert_eq!(script.stack.counters().tcp_retransmitted_segments, resent);
    // The timeout has adapted: two thirds of a second without an answer do not cause another one.
    let timeouts = script.stack.counters().tcp_timeouts;
    script.advance(600 * MILLISECOND);
    assert_eq!(script.stack.counters().tcp_timeouts, timeouts);
}

/// The echo is that of the retransmission, so the original was lost and nothing is undone.
#[test]
fn a_timeout_with_a_loss_is_not_undone() {
    let mut script = script();
    twenty_in_flight(&mut script);
    let sent = script.advance(400 * MILLISECOND);
    let (_, again) = sent.iter().rfind(|(_, segment)| segment.seq == 9881).expect("sent again");
    script.inject(&seg("A", 1, 9881 + 988).timestamp(52, again.timestamp.unwrap().0));
    assert_eq!(ranges(&script.sent())[0], (9881 + 988, 988), "slow start from the hole");
    assert_eq!(script.stack.counters().tcp_undone, 0);
}

/// RFC 4015: reordering that appeared to be a loss.
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
    assert!(script.sent().len() >= 10, "the window is restored");
    assert_eq!(script.stack.counters().tcp_retransmitted_segments, 1);
}

/// RFC 8985, 6.2: with one SACKed segment the reordering timer decides.
#[test]
fn a_reordered_segment_is_not_retransmitted_at_once() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 4000);
    script.sent();
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1001));
    script.sent();
    script.inject(&seg("A", 1, 1001).sack(&[(2001, 3001)]));
    script.expect_nothing();
    let sent = script.advance(10 * MILLISECOND);
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].1.seq, 1001);
    assert!((4..=6).contains(&(sent[0].0 / MILLISECOND)), "a quarter of 20 ms, not {}", sent[0].0);
}

/// RFC 8985, 7: a lost tail is probed after two round trips.
#[test]
fn a_lost_tail_is_probed() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 1000);
    script.sent();
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1001));
    script.write(id, 3000);
    assert_eq!(script.sent().len(), 3);
    let sent = script.advance(70 * MILLISECOND);
    assert_eq!((sent.len(), sent[0].1.seq), (1, 3001), "{sent:?}");
    assert_eq!(script.stack.counters().tcp_loss_probes, 1);
    // The probe arrived, and its SACK block reveals the lost segments.
    script.inject(&seg("A", 1, 1001).sack(&[(3001, 4001)]));
    script.advance(30 * MILLISECOND);
    assert_eq!(script.stack.counters().tcp_sack_recoveries, 1);
    assert_eq!(script.stack.counters().tcp_timeouts, 0);
}

/// RFC 6298: without an answer the timer retransmits, backs off, and aborts the connection.
#[test]
fn a_connection_to_a_dead_peer_times_out_after_retries_with_backoff() {
    let mut script = Script::new(|settings| settings.retries = 4);
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, false));
    script.write(id, 1000);
    script.sent();
    let sent = script.advance(1000 * SECOND);
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

/// RFC 6582: without SACK, three duplicates start a recovery, and partial acknowledgements continue it.
#[test]
fn newreno_recovers_without_sack() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, false));
    script.write(id, 10_000);
    assert_eq!(script.sent().len(), 10);
    script.now += 20 * MILLISECOND;
    for _ in 0..2 {
        script.inject(&seg("A", 1, 1));
        script.expect_nothing();
    }
    script.inject(&seg("A", 1, 1));
    assert_eq!(ranges(&script.sent()), [(1, 1000)]);
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 4001));
    assert_eq!(ranges(&script.sent()), [(4001, 1000)], "the next hole");
    script.inject(&seg("A", 1, 10_001));
    script.expect_nothing();
    assert_eq!((script.stack.counters().tcp_reno_recoveries, script.stack.counters().tcp_timeouts), (1, 0));
}

/// RFC 2018, 8: the peer discards data that it has SACKed.
#[test]
fn everything_is_retransmitted_to_a_reneging_peer() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 4000);
    script.sent();
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1001).sack(&[(2001, 4001)]));
    script.sent();
    script.now += 20 * MILLISECOND;
    // The peer has received 1001..2001, but discarded what it had SACKed.
    script.inject(&seg("A", 1, 2001));
    let sent = script.advance(3 * SECOND);
    assert_eq!(script.stack.counters().tcp_sack_reneging, 1);
    assert!(sent.iter().any(|(_, segment)| segment.seq == 2001), "{sent:?}");
}

/// Karn's rule for everything that one acknowledgement covers: it was delayed by a loss, so it gives no sample.
/// Otherwise timeouts would make the next timeouts longer.
#[test]
fn an_acknowledgement_of_a_retransmission_gives_no_sample() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, false));
    script.write(id, 2000);
    assert_eq!(ranges(&script.sent()), [(1, 1000), (1001, 1000)]);
    let again = script.advance(30 * SECOND);
    assert!(!again.is_empty() && again.iter().all(|(_, segment)| segment.seq == 1));
    script.inject(&seg("A", 1, 2001));
    script.write(id, 1000);
    script.sent();
    let again = script.advance(30 * SECOND);
    assert!(again[0].0 < SECOND, "after {} ns", again[0].0);
}

/// The same for timestamps, on both sides: the answer to a retransmission echoes the retransmission, and an older
/// echo gives no sample.
#[test]
fn the_echo_of_a_lost_acknowledgement_gives_no_sample() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0).options(1000, None, false).timestamp(100, 0));
    for value in [200, 300] {
        let echo = script.stack.counters().tcp_out_segments as u32;
        script.inject(&seg("PA", 1, 1).data(10).timestamp(value, echo));
        assert_eq!(script.expect_one().timestamp.unwrap().1, value);
    }
    script.write(id, 1000);
    let first = script.expect_one().timestamp.unwrap().0;
    script.advance(100 * SECOND);
    script.inject(&seg("A", 11, 989).timestamp(400, first));
    script.inject(&seg("A", 11, 1001).timestamp(400, first));
    script.write(id, 900);
    script.sent();
    let again = script.advance(30 * SECOND);
    assert!(again[0].0 < SECOND, "after {} ns", again[0].0);
}

/// Establishes a connection without timestamps, with a round trip of 20 ms and twenty segments of 1000 bytes in flight,
/// from 10,001 on. Returns its socket.
fn twenty_without_timestamps(script: &mut Script) -> abey_tcpip::SocketId {
    let id = script.accepted_with_sack();
    script.write(id, 100_000);
    assert_eq!(script.sent().len(), 10);
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 10_001));
    assert_eq!(script.sent().len(), 20);
    id
}

/// Waits for a timeout. Returns the end of what was sent.
fn timeout(script: &mut Script) -> u32 {
    let sent = script.advance(400 * MILLISECOND);
    assert_eq!(script.stack.counters().tcp_timeouts, 1, "{sent:?}");
    assert_eq!(sent.last().unwrap().1.seq, 10_001, "the first segment again");
    sent.iter().map(|(_, segment)| segment.seq + segment.payload.len() as u32).max().unwrap().max(30_001)
}

/// RFC 5682, step 3b: after a timeout without timestamps, new data is sent instead of a retransmission, and the originals
/// show that the timeout was spurious.
#[test]
fn f_rto_undoes_a_timeout_without_a_loss() {
    let mut script = script();
    twenty_without_timestamps(&mut script);
    let end = timeout(&mut script);
    let resent = script.stack.counters().tcp_retransmitted_segments;
    script.inject(&seg("A", 1, 11_001));
    assert_eq!(ranges(&script.sent()), [(end, 1000), (end + 1000, 1000)]);
    assert_eq!(script.stack.counters().tcp_undone, 0);
    script.inject(&seg("A", 1, 12_001));
    assert_eq!(script.stack.counters().tcp_undone, 1);
    script.sent();
    script.inject(&seg("A", 1, 30_001));
    assert!(script.sent().len() >= 10, "the window is restored");
    assert_eq!(script.stack.counters().tcp_retransmitted_segments, resent, "nothing more is sent twice");
}

/// RFC 5682, step 3a: only the new data arrives, so the rest was lost.
#[test]
fn f_rto_finds_a_loss() {
    let mut script = script();
    twenty_without_timestamps(&mut script);
    let end = timeout(&mut script);
    script.inject(&seg("A", 1, 11_001));
    assert_eq!(ranges(&script.sent()), [(end, 1000), (end + 1000, 1000)]);
    script.inject(&seg("A", 1, 11_001).sack(&[(end, end + 1000)]));
    assert_eq!(ranges(&script.sent())[0], (11_001, 1000));
    assert_eq!(script.stack.counters().tcp_undone, 0);
}

/// RFC 5682, step 2: without new data the retransmissions continue at once.
#[test]
fn f_rto_needs_new_data() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 10_000);
    script.sent();
    script.advance(2 * SECOND);
    assert!(script.stack.counters().tcp_timeouts >= 1);
    script.inject(&seg("A", 1, 1001));
    assert_eq!(ranges(&script.sent())[0], (1001, 1000));
}

/// RFC 3708: without timestamps, the peer's report that the retransmission was a duplicate undoes the recovery, even after
/// its end.
#[test]
fn a_reported_duplicate_undoes_a_recovery() {
    for ended in [false, true] {
        let mut script = script();
        let id = twenty_without_timestamps(&mut script);
        script.now += 20 * MILLISECOND;
        for arrived in 2..6 {
            script.inject(&seg("A", 1, 10_001).sack(&[(11_001, 10_001 + 1000 * arrived)]));
        }
        assert_eq!(script.stack.counters().tcp_sack_recoveries, 1);
        assert_eq!(script.sent()[0].seq, 10_001);
        assert!(script.stack.tcp_info(id).unwrap().slow_start_threshold.is_some());
        script.now += 5 * MILLISECOND;
        let una = if ended { 30_001 } else { 15_001 };
        script.inject(&seg("A", 1, una));
        assert_eq!(script.stack.tcp_info(id).unwrap().recovers, !ended);
        script.sent();
        script.now += 15 * MILLISECOND;
        script.inject(&seg("A", 1, una).sack(&[(10_001, 11_001)]));
        assert_eq!(script.stack.counters().tcp_undone, 1);
        let info = script.stack.tcp_info(id).unwrap();
        assert_eq!((info.recovers, info.slow_start_threshold), (false, None), "slow start continues");
    }
}

/// RFC 9406: the first slow start ends when the round trip grows, before anything is lost.
#[test]
fn slow_start_ends_when_the_round_trip_grows() {
    for (growth, ends) in [(0, false), (10 * MILLISECOND, true)] {
        let mut script = Script::new(|settings| settings.send_buffer = 1 << 27);
        let id = script.accepted(&seg("S", 0, 0).options(1000, Some(10), true).window(u16::MAX));
        script.write(id, 100_000_000);
        let (mut next, mut sent, mut rtt) = (1, script.sent().len() as u32, 20 * MILLISECOND);
        for round in 0..11 {
            // Ten acknowledgements a round.
            script.now += rtt;
            let (first, last) = (next, next + sent * 1000);
            (next, sent) = (last, 0);
            for part in 1..=10 {
                script.inject(&seg("A", 1, first + (last - first) / 10_000 * 1000 * part).window(u16::MAX));
                sent += script.sent().len() as u32;
            }
            script.inject(&seg("A", 1, last).window(u16::MAX));
            sent += script.sent().len() as u32;
            if round > 0 {
                rtt += growth;
            }
        }
        let info = script.stack.tcp_info(id).unwrap();
        assert_eq!(info.slow_start_threshold.is_some(), ends, "{info:?}");
        assert_eq!(script.stack.counters().tcp_retransmitted_segments, 0);
    }
}
