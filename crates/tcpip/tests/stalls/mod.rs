//! Peers that stop to answer, or that never open their window.

use core::time::Duration;

use abey_tcpip::{Keepalive, SocketError, SocketId, TcpOptions};

use super::common::{
    MILLISECOND, SECOND,
    script::{Script, Seg, seg},
};

/// Establishes a connection whose peer has closed its window, with 5000 bytes to send.
fn closed_window(script: &mut Script, options: &TcpOptions) -> SocketId {
    let id = script.accepted_with_sack();
    script.stack.set_options(script.at(), id, options).unwrap();
    script.inject(&seg("A", 1, 1).window(0));
    script.write(id, 5000);
    script.expect_nothing();
    id
}

/// Advances time by up to `steps` seconds until the stack has no timer. `answer` is the peer's answer to each segment.
/// Returns the number of segments that were sent, and the seconds that passed.
fn until_quiet(script: &mut Script, steps: u64, answer: impl Fn(&Seg) -> Option<Seg>) -> (usize, u64) {
    let mut sent = 0;
    for passed in 0..steps {
        for (_, segment) in script.advance(SECOND) {
            sent += 1;
            if let Some(answer) = answer(&segment) {
                script.inject(&answer);
            }
        }
        if script.stack.timer_count() == 0 {
            return (sent, passed);
        }
    }
    (sent, steps)
}

/// RFC 9293, 3.8.6.1: a closed window is probed as long as the peer answers. A peer that does not answer is gone.
#[test]
fn unanswered_window_probes_end_the_connection_and_answered_ones_do_not() {
    for (retries, silent) in [(5, true), (5, false)] {
        let mut script = Script::new(|settings| settings.retries = retries);
        let id = closed_window(&mut script, &TcpOptions::default());
        let answer = |_: &Seg| (!silent).then(|| seg("A", 1, 1).window(0));
        let (probes, seconds) = until_quiet(&mut script, 3600, answer);
        if silent {
            assert_eq!(probes, 5);
            assert!((12..15).contains(&seconds), "0.2 s, doubled six times: {seconds}");
            assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
            assert_eq!(script.stack.counters().tcp_timeouts_aborted, 1);
        } else {
            assert!(probes > 30, "{probes}");
            assert!(script.stack.is_connected(id));
            script.inject(&seg("A", 1, 1));
            assert!(script.sent().len() >= 5, "the window opens after an hour");
        }
    }
}

/// A peer that answers again after some probes gets all of them anew.
#[test]
fn an_answer_restarts_the_count_of_window_probes() {
    let mut script = Script::new(|settings| settings.retries = 3);
    let id = closed_window(&mut script, &TcpOptions::default());
    let mut probes = 0;
    while probes < 3 {
        probes += script.advance(100 * MILLISECOND).len();
    }
    script.inject(&seg("A", 1, 1).window(0));
    while probes < 6 {
        probes += script.advance(100 * MILLISECOND).len();
        assert!(script.stack.is_connected(id), "{probes}");
    }
    script.advance(200 * SECOND);
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
}

/// RFC 5482: the user timeout limits how long data stays unacknowledged, however many retransmissions that are.
#[test]
fn a_user_timeout_limits_retransmissions() {
    for (limit, retries, expected) in [(3, 15, 3), (100, 2, 100)] {
        let mut script = Script::new(|settings| settings.retries = retries);
        let id = script.accepted_with_sack();
        let options = TcpOptions { user_timeout: Some(Duration::from_secs(limit)), ..TcpOptions::default() };
        script.stack.set_options(script.at(), id, &options).unwrap();
        script.write(id, 100);
        script.expect_one();
        let (_, seconds) = until_quiet(&mut script, 1000, |_| None);
        assert_eq!(seconds, expected, "counted from the first retransmission");
        assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
    }
}

/// RFC 5482, as in Linux: it limits how long data stays unsent, even if the peer answers the probes.
#[test]
fn a_user_timeout_limits_a_closed_window() {
    let mut script = Script::new(|_| ());
    let options = TcpOptions { user_timeout: Some(Duration::from_secs(30)), ..TcpOptions::default() };
    let id = closed_window(&mut script, &options);
    let (_, seconds) = until_quiet(&mut script, 1000, |_| Some(seg("A", 1, 1).window(0)));
    assert_eq!(seconds, 30);
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
}

/// A window that opens, and data that is acknowledged, end a stall; the user timeout starts anew.
#[test]
fn progress_restarts_the_user_timeout() {
    let mut script = Script::new(|_| ());
    let options = TcpOptions { user_timeout: Some(Duration::from_secs(10)), ..TcpOptions::default() };
    let id = closed_window(&mut script, &options);
    for acknowledged in (1001..5002).step_by(1000) {
        script.advance(8 * SECOND);
        script.inject(&seg("A", 1, acknowledged - 1000).window(1000));
        script.sent();
        script.inject(&seg("A", 1, acknowledged).window(0));
        assert!(script.stack.is_connected(id), "{acknowledged}");
    }
    script.advance(100 * SECOND);
    assert!(script.stack.is_connected(id), "nothing waits");
}

/// SO_KEEPALIVE: a peer that went away while its window was closed is found by keep-alive, before the probes of its
/// window end.
#[test]
fn keep_alive_works_while_data_waits_for_a_closed_window() {
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(5), probes: 2 };
    let options = TcpOptions { keepalive: Some(keepalive), ..TcpOptions::default() };
    let mut script = Script::new(|_| ());
    let id = closed_window(&mut script, &options);
    let (_, seconds) = until_quiet(&mut script, 1000, |_| None);
    assert_eq!(seconds, 20);
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));

    let mut script = Script::new(|_| ());
    let id = closed_window(&mut script, &options);
    until_quiet(&mut script, 200, |_| Some(seg("A", 1, 1).window(0)));
    assert!(script.stack.is_connected(id), "the peer answers");
}

/// `tcp(7)`: a user timeout replaces the number of keep-alive probes.
#[test]
fn a_user_timeout_limits_keep_alive() {
    let keepalive = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(1), probes: 100 };
    let user_timeout = Some(Duration::from_secs(15));
    let options = TcpOptions { keepalive: Some(keepalive), user_timeout, ..TcpOptions::default() };
    let mut script = Script::new(|_| ());
    let id = script.accepted_with_sack();
    script.stack.set_options(script.at(), id, &options).unwrap();
    let (probes, seconds) = until_quiet(&mut script, 1000, |_| None);
    assert_eq!((probes, seconds), (6, 15), "five probes and a reset");
    assert_eq!(script.stack.take_error(id), Ok(Some(SocketError::TimedOut)));
}
