//! Options of TCP sockets, on the wire and at the application.

use core::time::Duration;

use abey_tcpip::{CongestionControl, IoError, LocalEndpoint, Readiness, SocketId, TcpOptions};

use super::common::{
    MILLISECOND, SECOND,
    script::{Script, ranges, seg},
};

fn script() -> Script {
    Script::new(|_| ())
}

/// Establishes a connection to a listener with `options`, with SACK and segments of 1000 bytes.
fn accepted_with(script: &mut Script, options: TcpOptions) -> SocketId {
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    script.stack.set_options(script.at(), listener, &options).unwrap();
    script.inject(&seg("S", 0, 0).options(1000, None, true));
    script.expect_one();
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 1));
    script.stack.accept(listener).unwrap()
}

/// SO_RCVBUF of a listener limits the window from the SYN-ACK on: what was promised cannot be taken back.
#[test]
fn a_listeners_receive_buffer_limits_the_first_window() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    script.stack.set_receive_buffer(listener, 9000).unwrap();
    script.inject(&seg("S", 0, 0).options(1460, Some(3), true));
    assert_eq!(script.expect_one().window, 9000);
    script.inject(&seg("A", 1, 1));
    let id = script.stack.accept(listener).unwrap();
    let mut next = 1;
    while next < 60_000 {
        script.inject(&seg("A", next, 1).data(1000));
        next += 1000;
    }
    assert_eq!(script.read(id).len(), 9000);
}

/// The same for connections from SYN cookies.
#[test]
fn a_listeners_receive_buffer_limits_the_window_of_a_cookie() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 1).unwrap();
    script.stack.set_receive_buffer(listener, 9000).unwrap();
    script.ports.1 = 3999;
    script.inject(&seg("S", 0, 0));
    script.sent();
    script.ports.1 = 4000;
    script.inject(&seg("S", 0, 0).options(1000, None, false));
    assert_eq!(script.expect_one().window, 9000);
    assert_eq!(script.stack.counters().tcp_syncookies_sent, 1);
}

/// TCP_MAXSEG bounds the announced MSS and the segments that are sent, of both kinds of open.
#[test]
fn a_maximum_segment_size_bounds_both_directions() {
    let options = TcpOptions { maximum_segment: Some(700), ..TcpOptions::default() };
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    script.stack.set_options(script.at(), listener, &options).unwrap();
    script.inject(&seg("S", 0, 0).options(1400, None, true));
    assert_eq!(script.expect_one().mss, Some(700));
    script.inject(&seg("A", 1, 1));
    let id = script.stack.accept(listener).unwrap();
    script.write(id, 1400);
    assert_eq!(ranges(&script.sent()), [(1, 700), (701, 700)]);

    let local = LocalEndpoint { options, ..LocalEndpoint::default() };
    let id = script.stack.connect_from(script.at(), local, "10.0.0.1:9".parse().unwrap(), |_| true).unwrap();
    assert_eq!(script.expect_one().mss, Some(700));
    script.inject(&seg("SA", 0, 1).options(1400, None, true));
    script.sent();
    script.write(id, 1400);
    assert_eq!(ranges(&script.sent()), [(1, 700), (701, 700)]);
}

/// `tcp(7)`: a corked socket sends full segments only, and the rest when it is uncorked.
#[test]
fn a_cork_holds_back_small_segments() {
    let mut script = script();
    let mut options = TcpOptions { cork: true, ..TcpOptions::default() };
    let id = accepted_with(&mut script, options);
    script.write(id, 1500);
    assert_eq!(ranges(&script.sent()), [(1, 1000)]);
    script.write(id, 300);
    script.expect_nothing();
    options.cork = false;
    script.stack.set_options(script.at(), id, &options).unwrap();
    script.inject(&seg("A", 1, 1001));
    assert_eq!(ranges(&script.sent()), [(1001, 800)]);
}

/// `tcp(7)`: there is a 200 ms ceiling on the time for which output is corked.
#[test]
fn a_cork_lasts_for_200_ms() {
    let mut script = script();
    let id = accepted_with(&mut script, TcpOptions { cork: true, ..TcpOptions::default() });
    script.write(id, 300);
    script.expect_nothing();
    let sent = script.advance(10 * SECOND);
    assert_eq!((sent[0].0 / MILLISECOND, sent[0].1.payload.len()), (200, 300));
    script.inject(&seg("A", 1, 301));
    script.write(id, 20);
    script.expect_nothing();
}

/// `tcp(7)`: setting TCP_NODELAY sends what is pending, even if the socket is corked.
#[test]
fn nodelay_sends_what_is_corked() {
    let mut script = script();
    let mut options = TcpOptions { cork: true, ..TcpOptions::default() };
    let id = accepted_with(&mut script, options);
    script.write(id, 300);
    script.expect_nothing();
    options.nodelay = true;
    script.stack.set_options(script.at(), id, &options).unwrap();
    assert_eq!(ranges(&script.sent()), [(1, 300)]);
    script.write(id, 300);
    script.expect_nothing();
}

/// A FIN is never held back, nor the data before it.
#[test]
fn closing_sends_what_is_corked() {
    let mut script = script();
    let id = accepted_with(&mut script, TcpOptions { cork: true, ..TcpOptions::default() });
    script.write(id, 300);
    script.stack.close(script.at(), id).unwrap();
    let last = script.expect_one();
    assert_eq!((last.flags.as_str(), last.payload.len()), ("FPA", 300));
}

/// MSG_MORE: a small segment waits for the next write, or for 200 ms.
#[test]
fn an_announced_write_is_waited_for() {
    let mut script = script();
    let id = script.accepted_with_sack();
    assert_eq!(script.stack.write_more(id, &[1; 300], true), Ok(300));
    script.expect_nothing();
    script.write(id, 200);
    assert_eq!(ranges(&script.sent()), [(1, 500)]);
    script.inject(&seg("A", 1, 501));
    assert_eq!(script.stack.write_more(id, &[1; 300], true), Ok(300));
    assert_eq!(script.advance(SECOND)[0].0 / MILLISECOND, 200);
}

/// TCP_NOTSENT_LOWAT: little unsent data makes the socket not writable, and an edge tells when half of it was sent.
#[test]
fn unsent_data_makes_a_socket_not_writable() {
    let mut script = script();
    let id = script.accepted_with_sack();
    let options = TcpOptions { unsent_low_water: Some(4000), ..TcpOptions::default() };
    script.stack.set_options(script.at(), id, &options).unwrap();
    script.write(id, 10_000);
    assert_eq!(script.sent().len(), 10);
    script.write(id, 3000);
    assert!(script.stack.readiness(id).contains(Readiness::WRITABLE));
    script.write(id, 3000);
    assert!(!script.stack.readiness(id).contains(Readiness::WRITABLE));
    assert_eq!(script.stack.write(id, b"x"), Err(IoError::WouldBlock));
    while script.stack.poll_event().is_some() {}
    script.now += 20 * MILLISECOND;
    script.inject(&seg("A", 1, 2001));
    // Slow start: four more segments, which leaves 2000 of 6000 bytes unsent, half of the mark.
    assert_eq!(script.sent().len(), 4);
    assert!(script.stack.readiness(id).contains(Readiness::WRITABLE));
    assert_eq!(script.stack.poll_event(), None, "not less than half");
    script.inject(&seg("A", 1, 3001));
    script.sent();
    assert!(script.stack.poll_event().is_some_and(|event| event.edges.contains(Readiness::WRITABLE)));
}

/// TCP_DEFER_ACCEPT: a connection is accepted when its first data arrives, or when the time is over.
#[test]
fn an_accept_is_deferred_until_data_arrives() {
    for with_data in [true, false] {
        let mut script = script();
        let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
        let options = TcpOptions { defer_accept: Some(Duration::from_secs(3)), ..TcpOptions::default() };
        script.stack.set_options(script.at(), listener, &options).unwrap();
        script.inject(&seg("S", 0, 0).options(1000, None, true));
        script.expect_one();
        script.inject(&seg("A", 1, 1));
        assert_eq!(script.stack.accept(listener), Err(IoError::WouldBlock));
        if with_data {
            script.inject(&seg("PA", 1, 1).data(5));
        } else {
            script.advance(4 * SECOND);
        }
        let id = script.stack.accept(listener).unwrap();
        assert_eq!(script.read(id).len(), if with_data { 5 } else { 0 });
    }
}

/// A deferred connection that the peer resets leaves nothing behind.
#[test]
fn a_deferred_connection_can_be_reset() {
    let mut script = script();
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    let options = TcpOptions { defer_accept: Some(Duration::from_secs(3)), ..TcpOptions::default() };
    script.stack.set_options(script.at(), listener, &options).unwrap();
    script.inject(&seg("S", 0, 0).options(1000, None, true));
    script.expect_one();
    script.inject(&seg("A", 1, 1));
    script.inject(&seg("R", 1, 0));
    assert_eq!((script.stack.socket_count(), script.stack.flow_count(), script.stack.timer_count()), (1, 0, 0));
}

/// TCP_QUICKACK: switches the delay of acknowledgements off, and on.
#[test]
fn quick_acknowledgements_are_switched() {
    let mut script = script();
    let id = script.accepted_with_sack();
    script.stack.set_quick_ack(id, false).unwrap();
    script.inject(&seg("PA", 1, 1).data(10));
    script.expect_nothing();
    script.stack.set_quick_ack(id, true).unwrap();
    assert_eq!(script.expect_one().ack, 11);
    script.inject(&seg("PA", 11, 1).data(10));
    assert_eq!(script.expect_one().ack, 21);
}

/// TCP_CONGESTION and TCP_SYNCNT.
#[test]
fn congestion_control_and_syn_retries_are_options_of_a_socket() {
    let mut script = script();
    let reno = TcpOptions { congestion_control: Some(CongestionControl::Reno), ..TcpOptions::default() };
    let id = accepted_with(&mut script, reno);
    script.write(id, 20_000);
    assert_eq!(script.sent().len(), 10);
    for last in [3001, 4001, 5001] {
        script.inject(&seg("A", 1, 1).sack(&[(1001, last + 1000)]));
    }
    script.inject(&seg("A", 1, 10_001));
    script.sent();
    // Reno halves the ten segments in flight; CUBIC would leave seven.
    script.write(id, 20_000);
    script.inject(&seg("A", 1, 11_001));
    let window = script.stack.tcp_info(id).unwrap().slow_start_threshold;
    assert_eq!(window, Some(5000));

    let options = TcpOptions { syn_retries: Some(1), ..TcpOptions::default() };
    let local = LocalEndpoint { options, ..LocalEndpoint::default() };
    script.stack.connect_from(script.at(), local, "10.0.0.1:9".parse().unwrap(), |_| true).unwrap();
    assert_eq!(script.sent().iter().filter(|segment| segment.has('S')).count(), 1);
    let syns = script.advance(60 * SECOND);
    assert_eq!(syns.iter().filter(|(_, segment)| segment.has('S')).count(), 1);
}
