//! Explicit congestion notification, segment by segment (RFC 3168, RFC 8311).

use abey_tcpip::{CongestionControl, EcnMode, Settings, SocketId};

use crate::common::{
    MILLISECOND, SECOND,
    script::{CE, ECT0, NOT_ECT, Script, Seg, ranges, seg},
};

fn script() -> Script {
    Script::new(|_| ())
}

/// Establishes a connection with ECN, SACK and segments of 1000 bytes.
fn agreed(script: &mut Script) -> SocketId {
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    script.inject(&seg("SEW", 0, 0).options(1000, None, true));
    assert_eq!(script.expect_one().flags, "SAE");
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1));
    assert_eq!(script.stack.counters().tcp_ecn_connections, 1);
    script.stack.accept(listener).unwrap()
}

/// Returns the flags and the ECN field of each segment.
fn marks(segments: &[Seg]) -> Vec<(&str, u8)> {
    segments.iter().map(|segment| (segment.flags.as_str(), segment.ecn)).collect()
}

/// RFC 3168, 6.1.1: a SYN with ECE and CWR is answered with ECE, unless ECN is off, a flag is missing, or something
/// mangled the ECN field of the SYN.
#[test]
fn a_listener_agrees_if_the_peer_asks() {
    for (mode, syn, expected) in [
        (EcnMode::Passive, seg("SEW", 0, 0), "SAE"),
        (EcnMode::Active, seg("SEW", 0, 0), "SAE"),
        (EcnMode::Off, seg("SEW", 0, 0), "SA"),
        (EcnMode::Passive, seg("SE", 0, 0), "SA"),
        (EcnMode::Passive, seg("S", 0, 0), "SA"),
        (EcnMode::Passive, seg("SEW", 0, 0).ecn(ECT0), "SA"),
        (EcnMode::Passive, seg("SEW", 0, 0).ecn(CE), "SA"),
    ] {
        let mut script = Script::new(|settings| settings.ecn = mode);
        let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
        script.inject(&syn);
        let answer = script.expect_one();
        assert_eq!(marks(&[answer]), [(expected, NOT_ECT)], "{mode:?} {syn:?}");
        script.inject(&seg("A", 1, 1));
        let id = script.stack.accept(listener).unwrap();
        script.write(id, 100);
        let agreed = expected == "SAE";
        assert_eq!(marks(&script.sent()), [("PA", if agreed { ECT0 } else { NOT_ECT })]);
        assert_eq!(script.stack.counters().tcp_ecn_connections, u64::from(agreed));
    }
}

/// RFC 3168, 6.1.1: an active open asks if it is configured so, and accepts only an answer with ECE alone.
#[test]
fn an_active_open_asks_if_configured() {
    for (mode, request, answer, data) in [
        (EcnMode::Active, "SEW", "SAE", ECT0),
        (EcnMode::Active, "SEW", "SA", NOT_ECT),
        (EcnMode::Active, "SEW", "SAEW", NOT_ECT),
        (EcnMode::Passive, "S", "SAE", NOT_ECT),
        (EcnMode::Off, "S", "SA", NOT_ECT),
    ] {
        let mut script = Script::new(|settings| settings.ecn = mode);
        let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(marks(&script.sent()), [(request, NOT_ECT)]);
        script.inject(&seg(answer, 0, 1).options(1000, None, true));
        assert_eq!(marks(&script.sent()), [("A", NOT_ECT)], "an acknowledgement is not ECN-capable");
        script.write(id, 100);
        assert_eq!(script.expect_one().ecn, data, "{mode:?} {answer}");
    }
}

/// RFC 3168, 6.1.1.1: if the SYN that asks is not answered, the next one does not ask.
#[test]
fn an_unanswered_request_is_not_repeated() {
    let mut script = Script::new(|settings| settings.ecn = EcnMode::Active);
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    assert_eq!(script.expect_one().flags, "SEW");
    let again: Vec<_> = script.advance(4 * SECOND).into_iter().map(|(_, segment)| segment.flags).collect();
    assert_eq!((again, script.stack.counters().tcp_ecn_fallbacks), (vec!["S".into(), "S".into()], 1));
    script.inject(&seg("SAE", 0, 1));
    script.expect_one();
    script.write(id, 100);
    assert_eq!(script.expect_one().ecn, NOT_ECT, "the answer to the first SYN comes too late");
}

/// RFC 3168, 6.1.1: a peer that repeats its SYN without the request does not use ECN.
#[test]
fn a_peer_may_withdraw_its_request() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    script.inject(&seg("SEW", 0, 0));
    assert_eq!(script.expect_one().flags, "SAE");
    script.inject(&seg("SEW", 0, 0));
    assert_eq!(script.expect_one().flags, "SAE");
    script.inject(&seg("S", 0, 0));
    assert_eq!(script.expect_one().flags, "SA");
    script.inject(&seg("A", 1, 1));
    let id = script.stack.accept(listener).unwrap();
    script.write(id, 100);
    assert_eq!(script.expect_one().ecn, NOT_ECT);
}

/// RFC 3168, 6.1.1: two SYNs that ask for ECN cross.
#[test]
fn a_simultaneous_open_agrees() {
    let mut script = Script::new(|settings| settings.ecn = EcnMode::Active);
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    script.expect_one();
    script.inject(&seg("SEW", 0, 0));
    assert_eq!(script.expect_one().flags, "SAE");
    script.inject(&seg("SAE", 0, 1));
    script.sent();
    script.write(id, 100);
    assert_eq!(script.expect_one().ecn, ECT0);
}

/// RFC 4987: a SYN cookie's timestamp carries the agreement. Without timestamps there is none.
#[test]
fn a_syn_cookie_carries_the_agreement() {
    for timestamps in [true, false] {
        let mut script = script();
        let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 1).unwrap();
        script.inject(&seg("S", 0, 0));
        script.expect_one();
        script.ports.1 += 1;
        let syn = seg("SEW", 0, 0).options(1000, None, true);
        script.inject(&if timestamps { syn.timestamp(50, 0) } else { syn });
        let answer = script.expect_one();
        assert_eq!(answer.flags, if timestamps { "SAE" } else { "SA" });
        assert_eq!(script.stack.counters().tcp_syncookies_sent, 1);
        let ack = seg("A", 1, 1);
        script.inject(&match answer.timestamp {
            Some((value, _)) => ack.timestamp(51, value),
            None => ack,
        });
        let id = script.stack.accept(listener).unwrap();
        script.write(id, 100);
        assert_eq!(script.expect_one().ecn, if timestamps { ECT0 } else { NOT_ECT });
    }
}

/// RFC 3168, 6.1.3: CE is echoed at once and in every segment until CWR arrives. A segment that carries both starts
/// anew.
#[test]
fn congestion_is_echoed_until_the_peer_reduces() {
    let mut script = script();
    let id = agreed(&mut script);
    // A response ends the mode in which every segment is acknowledged at once.
    script.inject(&seg("A", 1, 1).data(100));
    script.write(id, 100);
    assert_eq!(marks(&script.sent()), [("PA", ECT0)]);
    script.inject(&seg("A", 101, 101).data(100).ecn(ECT0));
    script.expect_nothing();
    script.inject(&seg("A", 201, 101).data(100).ecn(CE));
    assert_eq!(marks(&script.sent()), [("AE", NOT_ECT)], "at once");
    script.write(id, 100);
    assert_eq!(marks(&script.sent()), [("PAE", ECT0)], "data carries it too");
    script.inject(&seg("A", 301, 201).data(2000).ecn(ECT0));
    assert_eq!(marks(&script.sent()), [("AE", NOT_ECT)]);
    script.inject(&seg("AW", 2301, 201).data(100).ecn(CE));
    assert_eq!(marks(&script.sent()), [("AE", NOT_ECT)]);
    script.inject(&seg("AW", 2401, 201).data(100).ecn(ECT0));
    assert_eq!(marks(&script.sent()), [("A", NOT_ECT)], "at once: the peer may have a window of one segment");
}

/// RFC 3168, 6.1.5: a mark outside the window is ignored, because it may be an attacker's. So is a mark without an
/// agreement.
#[test]
fn marks_outside_the_window_or_without_an_agreement_are_ignored() {
    let mut script = script();
    let id = agreed(&mut script);
    script.inject(&seg("A", 1, 1).data(100));
    script.sent();
    for seq in [1, 1_000_000] {
        script.inject(&seg("A", seq, 1).data(100).ecn(CE));
        assert_eq!(script.expect_one().flags, "A");
    }
    script.stack.abort(script.at(), id).unwrap();
    let mut script = self::script();
    script.accepted(&seg("S", 0, 0));
    script.inject(&seg("A", 1, 1).data(100).ecn(CE));
    assert_eq!(script.expect_one().flags, "A");
}

/// RFC 3168, 6.1.2: an echo reduces the window once per window of data, and the first new data carries CWR.
#[test]
fn an_echo_reduces_the_window_once() {
    let mut script = Script::new(|settings: &mut Settings| settings.congestion_control = CongestionControl::Reno);
    let id = agreed(&mut script);
    script.write(id, 100_000);
    assert_eq!(script.sent().len(), 10, "the initial window of RFC 6928");
    script.now += 20 * MILLISECOND;
    // Half of the window remains: nothing is sent until five segments are acknowledged.
    for acked in 1..=10 {
        script.inject(&seg("AE", 1, 1 + 1000 * acked));
        let sent = script.sent();
        let expected: &[_] = match acked {
            1..=5 => &[],
            6 => &[("AW", ECT0)],
            _ => &[("A", ECT0)],
        };
        assert_eq!(marks(&sent), expected, "after {acked}");
    }
    assert_eq!(script.stack.counters().tcp_ecn_reductions, 1);
    script.now += 20 * MILLISECOND;
    // Something that was sent after the reduction is acknowledged: this echo is of a new mark.
    script.inject(&seg("AE", 1, 11_001));
    assert_eq!((script.sent().len(), script.stack.counters().tcp_ecn_reductions), (0, 2));
    // Five segments were in flight, so the window is two and a half.
    let sent: Vec<_> = (12..=15)
        .map(|number| {
            script.inject(&seg("A", 1, 1 + 1000 * number));
            script.sent().len()
        })
        .collect();
    assert_eq!(sent, [0, 1, 1, 1]);
    assert_eq!(script.stack.counters().tcp_retransmitted_segments, 0);
}

/// RFC 9438, 4.6: CUBIC's reduction is the same after a mark as after a loss.
#[test]
fn cubic_reduces_to_seven_tenths() {
    let mut script = script();
    let id = agreed(&mut script);
    script.write(id, 100_000);
    assert_eq!(script.sent().len(), 10);
    let sent: Vec<_> = (1..=10)
        .map(|acked| {
            script.inject(&seg("AE", 1, 1 + 1000 * acked));
            script.sent().len()
        })
        .collect();
    assert_eq!(sent, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]);
}

/// RFC 3168, 6.1.2: a loss in a window of data that was reduced because of a mark does not reduce it again.
#[test]
fn a_mark_and_a_loss_in_one_window_reduce_once() {
    let mut script = Script::new(|settings: &mut Settings| settings.congestion_control = CongestionControl::Reno);
    let id = agreed(&mut script);
    script.write(id, 100_000);
    assert_eq!(script.sent().len(), 10);
    script.now += 20 * MILLISECOND;
    script.inject(&seg("AE", 1, 1001));
    script.inject(&seg("AE", 1, 1001).sack(&[(2001, 10_001)]));
    let mut next = ranges(&script.sent());
    assert_eq!(next.remove(0), (1001, 1000));
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 10_001));
    next.extend(ranges(&script.sent()));
    let flight: usize = next.iter().map(|(_, len)| len).sum();
    assert_eq!(flight, 5000, "half of the window, and not a quarter: {next:?}");
    assert_eq!(script.stack.counters().tcp_ecn_reductions, 1);
}

/// RFC 3168, 6.1.5 and 6.1.2: a retransmission is not ECN-capable, and the first new data after it carries CWR.
#[test]
fn retransmissions_are_not_ecn_capable() {
    let mut script = script();
    let id = agreed(&mut script);
    script.write(id, 20_000);
    assert_eq!(script.sent().len(), 10);
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1).sack(&[(1001, 10_001)]));
    let sent = script.sent();
    assert_eq!((sent[0].seq, marks(&sent[..1])), (1, vec![("A", NOT_ECT)]));
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 10_001));
    let mut new: Vec<_> = sent[1..].to_vec();
    new.extend(script.sent());
    assert_eq!(marks(&new[..2]), [("AW", ECT0), ("A", ECT0)]);
    // The same after a timeout.
    let again = script.advance(SECOND);
    let again: Vec<_> = again.into_iter().map(|(_, segment)| segment).filter(|segment| segment.seq <= 10_001).collect();
    assert!(!again.is_empty() && again.iter().all(|segment| segment.ecn == NOT_ECT), "{again:?}");
}

/// RFC 3168, 6.1.4 and 6.1.6: FINs, resets and window probes are not ECN-capable.
#[test]
fn control_segments_and_window_probes_are_not_ecn_capable() {
    let mut script = script();
    let id = agreed(&mut script);
    script.inject(&seg("A", 1, 1).window(0));
    script.write(id, 100);
    script.expect_nothing();
    script.inject(&seg("A", 1, 1).window(10));
    let probes: Vec<_> = script.advance(3 * SECOND).into_iter().map(|(_, segment)| segment).collect();
    assert!(!probes.is_empty() && probes.iter().all(|probe| probe.ecn == NOT_ECT), "{probes:?}");
    script.inject(&seg("A", 1, 11));
    assert_eq!(marks(&script.sent()), [("PAW", ECT0)], "the timeouts reduced the window");
    script.inject(&seg("A", 1, 101));
    script.stack.close(script.at(), id).unwrap();
    assert_eq!(marks(&script.sent()), [("FA", NOT_ECT)]);

    let mut script = self::script();
    let id = agreed(&mut script);
    script.stack.abort(script.at(), id).unwrap();
    assert_eq!(marks(&script.sent()), [("RA", NOT_ECT)]);
}

/// RFC 3168, 6.1.3: segments with and without a mark that arrive in one burst are not merged into one.
#[test]
fn marks_survive_a_merged_burst() {
    for marked in 0..3 {
        let mut script = script();
        agreed(&mut script);
        let burst: Vec<_> = (0..3)
            .map(|number| seg("A", 1 + 100 * number, 1).data(100).ecn(if number == marked { CE } else { ECT0 }))
            .collect();
        script.inject_burst(&burst);
        assert_eq!(script.sent().last().unwrap().flags, "AE", "segment {marked}");
        let counters = script.stack.counters();
        assert_eq!((counters.ip_in_ce, counters.ip_in_ect0), (1, 2));
    }
}

/// A path that marks everything slows a connection down, and does not stop it.
#[test]
fn a_path_that_marks_everything_leaves_one_segment() {
    let mut script = script();
    let id = agreed(&mut script);
    script.write(id, 200_000);
    let mut flight = script.sent();
    let mut sizes = Vec::new();
    for _ in 0..30 {
        script.now += 20 * MILLISECOND;
        let end = flight.last().map_or(1, |segment| segment.seq + segment.payload.len() as u32);
        script.inject(&seg("AE", 1, end));
        flight = script.sent();
        sizes.push(flight.len());
    }
    assert!(sizes[20..].iter().all(|&size| size == 1), "{sizes:?}");
}
