//! SACK and recovery: which blocks are sent and used, and how much leaves at once (RFC 2018, RFC 2883, RFC 6675, RFC
//! 8985, RFC 9937).

use super::{
    common::{
        MILLISECOND,
        script::{Script, Seg, ranges, seg},
    },
    script,
};

/// Puts forty segments in flight, from 30,001 on, of a connection with a round trip of 20 ms.
fn forty_in_flight(script: &mut Script) {
    let id = script.accepted_with_sack();
    script.write(id, 200_000);
    let mut una = 1;
    for _ in 0..2 {
        una += script.sent().len() as u32 * 1000;
        script.now += 20 * MILLISECOND;
        script.inject(&seg("A", 1, una));
    }
    assert_eq!((una, script.sent().len()), (30_001, 40));
}

/// RFC 9937: also when RACK's timer finds the losses, no more leaves than the acknowledgements allow, from the first
/// retransmission on.
#[test]
fn a_recovery_that_a_timer_starts_sends_one_segment_first() {
    let mut script = script();
    forty_in_flight(&mut script);
    script.now += 20 * MILLISECOND;
    // Only the last segment arrives. A quarter of a round trip later the others are lost.
    script.inject(&seg("A", 1, 30_001).sack(&[(69_001, 70_001)]));
    assert!(script.sent().len() <= 1);
    let sent: Vec<_> = script.advance(10 * MILLISECOND).into_iter().map(|(_, segment)| segment.seq).collect();
    assert_eq!((script.stack.counters().tcp_sack_recoveries, sent.as_slice()), (1, &[30_001][..]), "by the timer");
    // The acknowledgements of the retransmissions continue the recovery as in slow start.
    let mut acked = 30_001;
    for _ in 0..8 {
        script.now += 10 * MILLISECOND;
        acked += 1000;
        script.inject(&seg("A", 1, acked).sack(&[(69_001, 70_001)]));
        let sent = script.sent().len();
        assert!((1..=2).contains(&sent), "{sent} segments");
    }
    assert_eq!(script.stack.counters().tcp_timeouts, 0);
}

/// The same when the timer finds more losses during a recovery.
#[test]
fn more_losses_that_a_timer_finds_cause_no_burst() {
    let mut script = script();
    forty_in_flight(&mut script);
    script.now += 20 * MILLISECOND;
    // Twenty segments arrive, and as many follow ten milliseconds later as the window allows.
    script.inject(&seg("A", 1, 50_001));
    let first = script.sent();
    script.now += 10 * MILLISECOND;
    script.inject(&seg("A", 1, 70_001));
    let second = script.sent();
    assert!(first.len() >= 15 && second.len() >= 15, "{} and {}", first.len(), second.len());
    let last = |burst: &[Seg]| (burst[burst.len() - 1].seq, burst[burst.len() - 1].seq + 1000);
    let (first, second) = (last(&first), last(&second));
    script.now += 10 * MILLISECOND;
    // The last two segments of the first burst arrive in the wrong order, and the last of the second.
    script.inject(&seg("A", 1, 70_001).sack(&[first]));
    script.inject(&seg("A", 1, 70_001).sack(&[(first.0 - 1000, first.1)]));
    script.sent();
    let sent = script.advance(9 * MILLISECOND);
    assert_eq!(script.stack.counters().tcp_sack_recoveries, 1);
    assert!(sent.len() <= 1, "{} at the start", sent.len());
    script.now += MILLISECOND;
    script.inject(&seg("A", 1, 70_001).sack(&[second, (first.0 - 1000, first.1)]));
    assert!(script.sent().len() <= 2);
    let sent = script.advance(9 * MILLISECOND);
    assert!(sent.len() <= 1, "{} during the recovery", sent.len());
}

/// RFC 6675, 5: the SACK blocks of an acknowledgement below SND.UNA count. Such an acknowledgement was overtaken by
/// one that had no room for the blocks.
#[test]
fn sack_blocks_of_an_old_acknowledgement_are_used() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 10_000);
    assert_eq!(script.sent().len(), 10);
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 2001));
    script.sent();
    script.inject(&seg("A", 1, 1001).sack(&[(3001, 6001)]));
    assert_eq!(ranges(&script.sent()), [(2001, 1000)]);
    // What was acknowledged meanwhile is no error, and neither is a duplicate.
    script.inject(&seg("A", 1, 1001).sack(&[(1, 1001), (1501, 2001), (6001, 7001)]));
    let counters = script.stack.counters();
    assert_eq!((counters.tcp_sack_discards, counters.tcp_dsack_received), (0, 1));
    script.inject(&seg("A", 1, 7001));
    assert_eq!(script.stack.counters().tcp_retransmitted_segments, 1);
    // An old acknowledgement does not change the window or acknowledge anything.
    assert_eq!(script.stack.unacknowledged_bytes(id), Ok(3000));
}

/// RFC 2883, 4: the duplicate part of a segment that overlaps queued data is reported, and then the block of the queue
/// that contains it.
#[test]
fn a_duplicate_that_overlaps_queued_data_is_reported() {
    let mut script = script();
    let id = script.accepted_with_sack();
    let mut answer = |seq: u32, len: usize| {
        script.inject(&seg("A", seq, 1).data(len));
        let ack = script.expect_one();
        (ack.ack, ack.sack)
    };
    assert_eq!(answer(101, 100), (1, vec![(101, 201)]));
    assert_eq!(answer(151, 100), (1, vec![(151, 201), (101, 251)]), "its first half");
    assert_eq!(answer(51, 100), (1, vec![(101, 151), (51, 251)]), "its second half");
    assert_eq!(answer(401, 100), (1, vec![(401, 501), (51, 251)]));
    assert_eq!(answer(101, 100), (1, vec![(101, 201), (51, 251), (401, 501)]), "its block is the second");
    assert_eq!(answer(201, 250), (1, vec![(201, 251), (51, 501)]), "the first of two parts");
    assert_eq!(answer(1, 100), (501, vec![(51, 101)]), "while it fills the gap");
    assert_eq!(answer(451, 100), (551, vec![(451, 501)]));
    let expected: Vec<u8> = (1..551_u32).map(|at| at as u8).collect();
    assert_eq!(script.read(id), expected);
}

/// RFC 2018, 3: without timestamps there is room for four blocks, on ACKs and on data.
#[test]
fn four_blocks_are_sent_without_timestamps_and_three_with_them() {
    for (timestamps, most) in [(false, 4), (true, 3)] {
        let stamped = |segment: Seg| if timestamps { segment.timestamp(50, 0) } else { segment };
        let mut script = script();
        let id = script.accepted(&stamped(seg("S", 0, 0).options(1000, None, true)));
        let mut blocks = Vec::new();
        for number in 1..=5 {
            let start = 1 + number * 200;
            script.inject(&stamped(seg("A", start, 1).data(100)));
            blocks.insert(0, (start, start + 100));
            blocks.truncate(most);
            assert_eq!(script.expect_one().sack, blocks);
        }
        script.write(id, 3000);
        let options = 4 + 8 * most + if timestamps { 12 } else { 0 };
        let sent = script.sent();
        assert_eq!(ranges(&sent)[0], (1, 1000 - options));
        assert_eq!(sent[0].sack, blocks);
    }
}

/// RFC 2018, 5: a fourth block counts like the others.
#[test]
fn the_fourth_block_of_an_acknowledgement_is_used() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 10_000);
    assert_eq!(script.sent().len(), 10);
    script.now += 20 * MILLISECOND;
    let blocks = [(3001, 4001), (5001, 6001), (7001, 8001), (9001, 10_001)];
    let mut again = Vec::new();
    for acked in [1, 1001, 2001, 4001, 6001, 8001] {
        script.inject(&seg("A", 1, acked).sack(&blocks));
        again.extend(script.sent());
        script.now += 10 * MILLISECOND;
    }
    let mut starts: Vec<_> = again.iter().map(|segment| segment.seq).collect();
    starts.dedup();
    assert_eq!(starts, [1, 1001, 2001, 4001, 6001, 8001]);
    assert_eq!(script.stack.counters().tcp_timeouts, 0);
}
