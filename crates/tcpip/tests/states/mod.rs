//! Unacceptable segments in every state (RFC 9293, 3.10.7.4; RFC 5961): what is answered, and that nothing changes.

use abey_tcpip::{Shutdown, SocketId};

use super::{
    common::script::{Script, Seg, seg},
    script,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

const STATES: [State; 8] = [
    State::SynReceived,
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::Closing,
    State::LastAck,
    State::TimeWait,
];

/// Connection in a state, with the sequence numbers that are expected next.
struct Subject {
    script: Script,
    listener: SocketId,
    id: Option<SocketId>,
    state: State,
    rcv_nxt: u32,
    snd_nxt: u32,
}

impl Subject {
    fn new(state: State) -> Self {
        let mut script = script();
        let listener = script.stack.listen("0.0.0.0:80".parse().unwrap(), 8).unwrap();
        script.inject(&seg("S", 0, 0).options(1000, None, true));
        script.expect_one();
        let mut subject = Self { script, listener, id: None, state, rcv_nxt: 1, snd_nxt: 1 };
        if state != State::SynReceived {
            subject.establish();
        }
        match state {
            State::SynReceived | State::Established => {}
            State::FinWait1 => subject.send_fin(),
            State::FinWait2 => {
                subject.send_fin();
                subject.acknowledge();
            }
            State::CloseWait => subject.receive_fin(1),
            State::Closing => {
                subject.send_fin();
                subject.receive_fin(1);
            }
            State::LastAck => {
                subject.receive_fin(1);
                subject.send_fin();
            }
            State::TimeWait => {
                subject.send_fin();
                subject.receive_fin(2);
            }
        }
        subject
    }

    fn establish(&mut self) {
        self.script.inject(&seg("A", 1, 1));
        self.id = Some(self.script.stack.accept(self.listener).expect("established"));
    }

    fn send_fin(&mut self) {
        let id = self.id.expect("established");
        self.script.stack.shutdown(self.script.at(), id, Shutdown::Write).unwrap();
        assert_eq!(self.script.expect_one().flags, "FA");
        self.snd_nxt = 2;
    }

    fn receive_fin(&mut self, ack: u32) {
        self.script.inject(&seg("FA", 1, ack));
        self.rcv_nxt = 2;
        assert_eq!(self.script.expect_one().ack, 2);
    }

    fn acknowledge(&mut self) {
        self.script.inject(&seg("A", self.rcv_nxt, self.snd_nxt));
        self.script.expect_nothing();
    }

    /// Injects `segment` and returns the flags of the answers. An ACK must have the expected numbers.
    #[track_caller]
    fn answer(&mut self, segment: &Seg) -> Vec<String> {
        self.script.inject(segment);
        let sent = self.script.sent();
        for answer in sent.iter().filter(|answer| answer.flags == "A") {
            assert_eq!((answer.seq, answer.ack), (self.snd_nxt, self.rcv_nxt), "{:?}: {segment:?}", self.state);
        }
        sent.into_iter().map(|answer| answer.flags).collect()
    }

    /// Closes the connection in the regular way, which shows that it was in the expected state.
    #[track_caller]
    fn finish(mut self) {
        match self.state {
            State::SynReceived => {
                self.establish();
                self.receive_fin(1);
                self.send_fin();
                self.acknowledge();
            }
            State::Established => {
                self.receive_fin(1);
                self.send_fin();
                self.acknowledge();
            }
            State::FinWait1 => self.receive_fin(2),
            State::FinWait2 => self.receive_fin(2),
            State::CloseWait => {
                self.send_fin();
                self.acknowledge();
            }
            State::Closing | State::LastAck => self.acknowledge(),
            State::TimeWait => {}
        }
        let waits = !matches!(self.state, State::SynReceived | State::Established | State::CloseWait | State::LastAck);
        assert_eq!(self.script.stack.time_wait_count(), usize::from(waits), "{:?}", self.state);
        assert_eq!(self.script.stack.flow_count(), usize::from(waits), "{:?}", self.state);
    }
}

/// Checks that `segment`, built from RCV.NXT and SND.NXT, is answered with `answer` in all states, with the exceptions
/// of `others`, and changes nothing.
#[track_caller]
fn check(segment: impl Fn(u32, u32) -> Seg, answer: &[&str], others: &[(State, &[&str])]) {
    for state in STATES {
        let mut subject = Subject::new(state);
        let segment = segment(subject.rcv_nxt, subject.snd_nxt);
        let expected = others.iter().find(|(other, _)| *other == state).map_or(answer, |(_, answer)| answer);
        assert_eq!(subject.answer(&segment), expected, "{state:?}: {segment:?}");
        subject.finish();
    }
}

/// RFC 5961, 3. TIME-WAIT ignores resets (RFC 1337).
#[test]
fn resets_that_are_not_exact_are_challenged_or_dropped() {
    check(|rcv, _| seg("R", rcv + 1, 0), &["A"], &[(State::TimeWait, &[])]);
    check(|rcv, snd| seg("RA", rcv + 60_000, snd), &["A"], &[(State::TimeWait, &[])]);
    check(|rcv, _| seg("R", rcv.wrapping_sub(1), 0), &[], &[]);
    check(|rcv, _| seg("R", rcv + 200_000, 0), &[], &[]);
}

#[test]
fn an_exact_reset_closes() {
    for state in STATES {
        let mut subject = Subject::new(state);
        assert!(subject.answer(&seg("R", subject.rcv_nxt, 0)).is_empty());
        let left = usize::from(state == State::TimeWait);
        assert_eq!((subject.script.stack.flow_count(), subject.script.stack.timer_count()), (left, 0), "{state:?}");
    }
}

/// RFC 5961, 4. In TIME-WAIT a newer SYN starts a new connection.
#[test]
fn syns_are_challenged() {
    check(|rcv, _| seg("S", rcv.wrapping_sub(1000), 0), &["A"], &[]);
    for state in STATES.into_iter().filter(|&state| state != State::TimeWait) {
        let mut subject = Subject::new(state);
        assert_eq!(subject.answer(&seg("S", subject.rcv_nxt + 1000, 0)), ["A"], "{state:?}");
        subject.finish();
    }
    check(|rcv, snd| seg("SA", rcv, snd), &["A"], &[]);
    check(|rcv, snd| seg("SA", rcv + 1000, snd), &["A"], &[]);
    check(|rcv, snd| seg("SF", rcv + 1000, snd), &["A"], &[]);
}

/// RFC 5961, 5. In SYN-RECEIVED a wrong ACK is answered with a reset, and TIME-WAIT does not look at it.
#[test]
fn wrong_acknowledgements_are_challenged() {
    let reset: (State, &[&str]) = (State::SynReceived, &["R"]);
    let nothing: (State, &[&str]) = (State::TimeWait, &[]);
    check(|rcv, snd| seg("A", rcv, snd + 1), &["A"], &[reset, nothing]);
    check(|rcv, snd| seg("A", rcv, snd + 0x7fff_0000), &["A"], &[reset, nothing]);
    check(|rcv, snd| seg("A", rcv, snd.wrapping_sub(100_000)), &["A"], &[reset, nothing]);
    check(|rcv, snd| seg("PA", rcv, snd.wrapping_sub(100_000)).data(10), &["A"], &[reset]);
    check(|rcv, snd| seg("FA", rcv, snd + 1), &["A"], &[reset]);
}

/// RFC 9293, 3.10.7.4: a segment without ACK is dropped, if it is inside the window. TIME-WAIT acknowledges what is not
/// the expected ACK.
#[test]
fn segments_without_ack_are_dropped() {
    check(|rcv, _| seg("", rcv, 0), &[], &[]);
    check(|rcv, _| seg("P", rcv, 0).data(10), &[], &[(State::TimeWait, &["A"])]);
    check(|rcv, _| seg("F", rcv, 0), &[], &[(State::TimeWait, &["A"])]);
    check(|rcv, _| seg("FP", rcv + 10, 0).data(10), &[], &[(State::TimeWait, &["A"])]);
}

/// RFC 9293, 3.10.7.4: what is outside the window is acknowledged.
#[test]
fn segments_outside_the_window_are_acknowledged() {
    check(|rcv, snd| seg("A", rcv + 100_000, snd), &["A"], &[]);
    check(|rcv, snd| seg("A", rcv.wrapping_sub(1), snd), &["A"], &[]);
    check(|rcv, snd| seg("PA", rcv + 100_000, snd).data(10), &["A"], &[]);
    check(|rcv, snd| seg("FA", rcv + 100_000, snd), &["A"], &[]);
    check(|rcv, snd| seg("PA", rcv.wrapping_sub(10), snd).data(10), &["A"], &[]);
}
