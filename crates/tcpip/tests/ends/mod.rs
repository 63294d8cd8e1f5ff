//! Ends of connections whose peer does not answer, segment by segment. The judge of `impaired` expects them.

use abey_tcpip::{SocketError, SocketId};

use crate::common::{
    SECOND,
    script::{Script, Seg, seg},
};

/// Stack whose connections retransmit three times.
fn script() -> Script {
    Script::new(|settings| (settings.retries, settings.orphan_retries) = (3, 3))
}

/// Establishes a connection, sends 100 bytes, and lets time pass. Returns what was sent again.
fn abandoned(script: &mut Script, id: SocketId) -> Vec<Seg> {
    script.write(id, 100);
    assert_eq!(script.expect_one().payload.len(), 100);
    script.advance(300 * SECOND).into_iter().map(|(_, segment)| segment).collect()
}

/// Checks that no connection is left, and that a later segment of the peer is reset.
fn check_gone(script: &mut Script, ack: u32) {
    assert_eq!((script.stack.flow_count(), script.stack.timer_count()), (0, 0));
    script.inject(&seg("A", 1, ack));
    assert_eq!(script.expect_one().flags, "R");
}

/// RFC 9293, 3.8.3: after the last retransmission the connection ends with an error.
#[test]
fn retransmissions_end() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0));
    let again = abandoned(&mut script, id);
    assert_eq!(again.len(), 3, "{again:?}");
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
    check_gone(&mut script, 101);
}

/// RFC 9293, 3.8.3: a connection that the application has closed ends without a reset.
#[test]
fn an_orphan_ends_silently() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0));
    script.write(id, 100);
    script.stack.close(script.at(), id).unwrap();
    script.sent();
    let again: Vec<_> = script.advance(300 * SECOND).into_iter().map(|(_, segment)| segment.flags).collect();
    assert!(again.len() == 3 && again.iter().all(|flags| !flags.contains('R')), "{again:?}");
    check_gone(&mut script, 102);
}

/// RFC 9293, 3.8.6.1: probes of a closed window that are not answered end too, if the application has closed.
#[test]
fn an_orphan_before_a_closed_window_ends() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0));
    script.inject(&seg("A", 1, 1).window(0));
    script.write(id, 100);
    script.stack.close(script.at(), id).unwrap();
    script.expect_nothing();
    let probes: Vec<_> = script.advance(300 * SECOND).into_iter().map(|(_, segment)| segment).collect();
    let is_probe = |probe: &Seg| (probe.flags.as_str(), probe.seq, probe.payload.len()) == ("A", 0, 0);
    assert!(probes.len() == 3 && probes.iter().all(is_probe), "{probes:?}");
    check_gone(&mut script, 1);
}

/// RFC 9293, 3.8.4: with nothing outstanding a connection lasts, even if its peer is gone. The next segment tells.
#[test]
fn an_idle_connection_lasts() {
    let mut script = script();
    let id = script.accepted(&seg("S", 0, 0));
    assert!(script.advance(100_000 * SECOND).is_empty());
    assert_eq!(script.stack.poll_timeout(), None);
    assert!(script.stack.is_connected(id));
    script.write(id, 100);
    script.expect_one();
    script.inject(&seg("R", 1, 0));
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::Reset)));
}

/// RFC 4987: a cookie that comes back after its time is not the start of a connection.
#[test]
fn a_cookie_expires() {
    for (wait, valid) in [(60, true), (200, false)] {
        let mut script = script();
        let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 1).unwrap();
        script.inject(&seg("S", 0, 0));
        script.expect_one();
        script.ports.1 += 1;
        script.inject(&seg("S", 0, 0));
        script.expect_one();
        assert_eq!(script.stack.counters().tcp_syncookies_sent, 1);
        // Not a timer's turn: the first connection would send again.
        script.now += wait * SECOND;
        script.inject(&seg("PA", 1, 1).data(100));
        assert_eq!(script.expect_one().flags, if valid { "A" } else { "R" });
        assert_eq!(script.stack.accept(listener).is_ok(), valid);
    }
}
