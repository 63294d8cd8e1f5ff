//! A connection as plain data: what is exported in which state, and what is left behind.

use crate::common::{
    MILLISECOND, SECOND,
    script::{PEER_INITIAL, Script, seg},
};
use abey_tcpip::{ExportError, ExportedConnection, IoError, Readiness, SendEnd, Shutdown, SocketId, is_segment_of};

/// Returns the peer's sequence number.
fn peer(relative: u32) -> u32 {
    PEER_INITIAL.wrapping_add(relative)
}

fn export(script: &Script, id: SocketId) -> ExportedConnection {
    script.stack.export(script.at(), id).expect("it moves")
}

/// Returns an established connection with all options, and its script.
fn established() -> (Script, SocketId) {
    let mut script = Script::new(|_| ());
    let id = script.accepted(&seg("S", 0, 0).options(1000, Some(3), true).timestamp(77, 0));
    (script, id)
}

/// Returns the stack's sequence number.
fn own(script: &Script, relative: u32) -> u32 {
    script.initial.expect("a SYN was sent").wrapping_add(relative)
}

#[test]
fn an_idle_connection_has_its_numbers_windows_and_options() {
    let (script, id) = established();
    let exported = export(&script, id);
    assert_eq!((exported.local, exported.remote), ("10.0.0.2:80".parse().unwrap(), "10.0.0.1:4000".parse().unwrap()));
    assert_eq!((exported.peer_mss, exported.sack, exported.nodelay), (1000, true, false));
    assert_eq!(exported.timestamps.map(|timestamps| timestamps.recent), Some(77));
    let (send, receive) = (&exported.send, &exported.receive);
    assert_eq!((send.next, send.end), (own(&script, 1), SendEnd::Open));
    assert_eq!((send.window, send.scale), (60_000 << 3, Some(3)));
    assert_eq!((receive.next, receive.scale, receive.fin), (peer(1), 7, None));
    assert!(send.sent.is_empty() && send.unsent.is_empty() && receive.unread.is_empty() && !exported.has_replay());
}

#[test]
fn a_connection_without_options_has_none() {
    let mut script = Script::new(|_| ());
    let id = script.accepted(&seg("S", 0, 0));
    let exported = export(&script, id);
    assert_eq!((exported.peer_mss, exported.sack, exported.timestamps), (536, false, None));
    assert_eq!((exported.send.scale, exported.receive.scale), (None, 0));
}

#[test]
fn queues_are_divided_into_sent_and_unsent_and_unread() {
    let mut script = Script::new(|_| ());
    let id = script.accepted_with_sack();
    script.inject(&seg("A", 1, 1).window(1500));
    assert_eq!(script.stack.write(id, &[1; 1000]), Ok(1000));
    assert_eq!(script.stack.write(id, &[2; 900]), Ok(900));
    script.sent();
    script.inject(&seg("PA", 1, 501).data(300).window(1500));
    let exported = export(&script, id);
    assert_eq!(exported.send.next, own(&script, 501));
    let nxt = exported.send.sent.len();
    assert_eq!(exported.send.sent[..500], [1; 500]);
    assert_eq!(nxt + exported.send.unsent.len(), 1400, "every byte once");
    assert!(exported.send.unsent.iter().all(|byte| *byte == 2));
    assert_eq!((exported.receive.unread.len(), exported.receive.next), (300, peer(301)));
    // What the application has read is not part of it.
    assert_eq!(script.stack.read(id, &mut [0; 100]), Ok(100));
    assert_eq!(export(&script, id).receive.unread, seg("", 101, 0).data(200).payload);
}

#[test]
fn ranges_beyond_a_gap_and_the_fin_are_repeated_as_the_peer_would() {
    let mut script = Script::new(|_| ());
    let id = script.accepted_with_sack();
    script.inject(&seg("PA", 3001, 1).data(1500));
    script.inject(&seg("PA", 1001, 1).data(500));
    script.inject(&seg("FA", 4501, 1));
    let exported = export(&script, id);
    assert_eq!(exported.receive.next, peer(1));
    let islands: Vec<_> = exported.receive.islands.iter().map(|(start, bytes)| (*start, bytes.len())).collect();
    assert_eq!(islands, [(peer(1001), 500), (peer(3001), 1500)]);
    assert_eq!(exported.receive.fin, Some(peer(4501)));
    // The frames make a stack that has the connection as it was before them equal to this one.
    let mut other = Script::new(|_| ());
    let same = other.accepted_with_sack();
    let frames = exported.replay([2, 0, 0, 0, 0, 2], 64);
    assert!(frames.iter().all(|frame| is_segment_of(frame, exported.local, exported.remote)));
    assert!(!is_segment_of(&frames[0], exported.remote, exported.local));
    other.now = script.now;
    other.stack.handle_frames(other.at(), frames.iter().map(Vec::as_slice));
    assert_eq!(export(&other, same).receive, exported.receive);
    assert_eq!(exported.replay([2; 6], 1).len(), 2, "one segment with data, and the FIN");
}

#[test]
fn each_end_of_the_stream_is_exported() {
    // FIN-WAIT-1, with the FIN not sent: the window is closed.
    let mut script = Script::new(|_| ());
    let id = script.accepted_with_sack();
    script.inject(&seg("A", 1, 1).window(0));
    script.write(id, 10);
    script.stack.shutdown(script.at(), id, Shutdown::Write).unwrap();
    let exported = export(&script, id);
    assert_eq!((exported.send.end, exported.send.unsent.len()), (SendEnd::Queued, 10));
    // FIN-WAIT-1, with the FIN sent.
    script.inject(&seg("A", 1, 1));
    script.sent();
    let exported = export(&script, id);
    assert_eq!((exported.send.end, exported.send.sent.len()), (SendEnd::Sent, 10));
    assert_eq!(exported.send.next, own(&script, 1));
    // FIN-WAIT-2: the new owner sends the FIN again, with its number.
    script.inject(&seg("A", 1, 12));
    let exported = export(&script, id);
    assert_eq!((exported.send.end, exported.send.sent.len()), (SendEnd::Acknowledged, 0));
    assert_eq!(exported.send.next, own(&script, 11));
    // TIME-WAIT.
    script.inject(&seg("FA", 1, 12));
    assert_eq!(script.stack.export(script.at(), id), Err(ExportError::Ended));
}

#[test]
fn the_peers_fin_takes_no_number_of_the_data() {
    // CLOSE-WAIT.
    let mut script = Script::new(|_| ());
    let id = script.accepted_with_sack();
    script.inject(&seg("FPA", 1, 1).data(5));
    let exported = export(&script, id);
    assert_eq!((exported.receive.next, exported.receive.fin), (peer(6), Some(peer(6))));
    assert_eq!((exported.receive.unread.len(), exported.send.end), (5, SendEnd::Open));
    // LAST-ACK.
    script.stack.shutdown(script.at(), id, Shutdown::Write).unwrap();
    script.sent();
    let exported = export(&script, id);
    assert_eq!((exported.receive.next, exported.send.end), (peer(6), SendEnd::Sent));
}

#[test]
fn half_open_and_ended_connections_do_not_move() {
    let mut script = Script::new(|_| ());
    let id = script.stack.connect(script.at(), "10.0.0.1:9".parse().unwrap()).unwrap();
    assert_eq!(script.stack.export(script.at(), id), Err(ExportError::NotEstablished));
    let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
    assert_eq!(script.stack.export(script.at(), listener), Err(IoError::WrongKind.into()));
    let (mut script, id) = established();
    script.inject(&seg("RA", 1, 1).timestamp(78, 0));
    assert_eq!(script.stack.export(script.at(), id), Err(ExportError::Ended));
}

#[test]
fn a_moved_connection_is_silent_and_says_so() {
    let mut script = Script::new(|_| ());
    let id = script.accepted_with_sack();
    script.write(id, 5000);
    script.sent();
    while script.stack.poll_event().is_some() {}
    script.stack.move_out(script.at(), id).unwrap();
    // The application learns that it moved.
    assert_eq!(script.stack.poll_event().map(|event| event.socket), Some(id));
    assert_eq!(script.stack.readiness(id), Readiness::ALL);
    assert_eq!(script.stack.read(id, &mut [0; 10]), Err(IoError::Moved));
    assert_eq!(script.stack.write(id, b"x"), Err(IoError::Moved));
    assert_eq!(script.stack.shutdown(script.at(), id, Shutdown::Write), Err(IoError::Moved));
    assert_eq!(script.stack.export(script.at(), id), Err(IoError::Moved.into()));
    assert_eq!(script.stack.peer_addr(id), Ok("10.0.0.1:4000".parse().unwrap()));
    // Nothing is retransmitted, and late segments are neither answered nor reset.
    assert_eq!(script.advance(SECOND), []);
    script.inject(&seg("A", 1, 2001));
    script.inject(&seg("PA", 1, 2001).data(100));
    script.expect_nothing();
    assert_eq!(script.stack.counters().tcp_moved_segments, 2);
    assert!(!script.stack.has_flow("10.0.0.2:80".parse().unwrap(), "10.0.0.1:4000".parse().unwrap()));
    script.stack.close(script.at(), id).unwrap();
    script.expect_nothing();
    // The record of the flow expires.
    script.now += 2 * SECOND + MILLISECOND;
    script.inject(&seg("PA", 1, 2001).data(100));
    assert_eq!(script.expect_one().flags, "R");
    assert_eq!((script.stack.flow_count(), script.stack.timer_count()), (0, 0));
}

#[test]
fn a_reissued_connection_goes_on_under_its_new_id() {
    let mut script = Script::new(|_| ());
    let id = script.accepted_with_sack();
    script.write(id, 1000);
    script.sent();
    let new = script.stack.reissue(script.at(), id).unwrap();
    assert_eq!(script.stack.write(id, b"x"), Err(IoError::Moved));
    assert!(script.stack.is_moved(id) && !script.stack.is_moved(new));
    script.stack.close(script.at(), id).unwrap();
    let again = script.advance(2 * SECOND);
    assert!(!again.is_empty() && again.iter().all(|(_, segment)| segment.seq == 1), "the timer moved along: {again:?}");
    script.inject(&seg("PA", 1, 1001).data(7));
    assert_eq!(script.read(new).len(), 7);
    script.stack.audit(script.at()).unwrap();
}
