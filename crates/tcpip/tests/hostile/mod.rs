//! A peer that has completed the handshake and then lies.

use super::{
    common::{
        MILLISECOND,
        script::{ranges, seg},
    },
    script,
};

/// RFC 3465: the congestion window grows with the bytes that are acknowledged. A thousand acknowledgements of one byte
/// each are worth one segment.
#[test]
fn acknowledging_byte_by_byte_does_not_open_the_window_faster() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 100_000);
    assert_eq!(script.sent().len(), 10);
    script.now += 20 * MILLISECOND;
    let mut sent = 0;
    for byte in 1..=1000 {
        script.inject(&seg("A", 1, 1 + byte));
        sent += script.sent().len();
    }
    assert_eq!(sent, 2, "slow start: one for the segment that left, and one more");
}

/// RFC 2018 and RFC 6675: blocks that are reversed, or of data that was never sent, change nothing.
#[test]
fn impossible_sack_blocks_change_nothing() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 10_000);
    script.sent();
    script.now += 20 * MILLISECOND;
    let blocks = [(9001, 5001), (5001, 20_001), (0x8000_0000, 0x9000_0000), (10_001, 10_002)];
    for _ in 0..10 {
        script.inject(&seg("A", 1, 1).sack(&blocks));
    }
    script.expect_nothing();
    let counters = script.stack.counters();
    assert_eq!((counters.tcp_sack_discards, counters.tcp_sack_recoveries), (40, 0));
    script.inject(&seg("A", 1, 10_001));
    assert_eq!(script.stack.unacknowledged_bytes(id), Ok(0));
    script.write(id, 1000);
    assert_eq!(ranges(&script.sent()), [(10_001, 1000)]);
}
