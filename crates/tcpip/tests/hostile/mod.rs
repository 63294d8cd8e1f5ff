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

/// RFC 2883: a duplicate can only be of bytes that were sent in this connection, and not long ago.
#[test]
fn reports_of_duplicates_that_were_never_sent_are_ignored() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.write(id, 4000);
    script.sent();
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 2001));
    for block in [(0_u32.wrapping_sub(999), 1), (0x8000_2000, 0x8000_3000), (0, 1001)] {
        script.inject(&seg("A", 1, 2001).sack(&[block]));
    }
    // Inside the second block, which itself was never sent.
    script.inject(&seg("A", 1, 2001).sack(&[(8001, 9001), (7001, 9001)]));
    let counters = script.stack.counters();
    assert_eq!((counters.tcp_dsack_received, counters.tcp_sack_discards), (0, 5));
    script.inject(&seg("A", 1, 2001).sack(&[(1, 2001)]));
    script.inject(&seg("A", 1, 2001).sack(&[(3001, 4001), (3001, 4001)]));
    assert_eq!(script.stack.counters().tcp_dsack_received, 2);
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

/// The book names the tests that show what the threat model promises. They must exist.
#[test]
fn the_tests_that_the_threat_model_names_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let model = std::fs::read_to_string(root.join("docs/book/src/reference/threat-model.md")).unwrap();
    let mut sources = String::new();
    let mut folders = vec![root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    let names: Vec<_> = model.split('`').skip(1).step_by(2).filter(|text| text.contains("::")).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        let function = name.rsplit("::").next().unwrap();
        let is_module = matches!(function, "test" | "tests");
        assert!(is_module || sources.contains(&format!("fn {function}(")), "{name} does not exist");
    }
}
