//! Decides from what happened on the wire whether a rule of TCP's ended a connection.
//!
//! A wire that loses most segments ends a connection now and then, and a correct stack must let it end. A run in which
//! that happened is repeated with a record of all segments, and every end needs evidence of one of these rules:
//!
//! | rule | evidence |
//! | --- | --- |
//! | retransmissions are exhausted (RFC 9293, 3.8.3) | the last ones were all of one sequence number, over 100 seconds or more; each was lost, or its acknowledgement was, or the peer was gone |
//! | probes of a closed window are exhausted (RFC 9293, 3.8.6.1) | the same, of probes and of answers that open the window |
//! | a neighbour is unreachable (RFC 4861, 7.2.2) | three solicitations in a row were lost, or the answers were |
//! | a SYN cookie expires (RFC 4987) | no copy of the client's first segment arrived while the cookie was valid, except when the accept queue was full |
//! | a host without the connection answers with a reset (RFC 9293, 3.10.7.1) | it is gone by one of the rules above |
//! | without keep-alive an idle connection lasts for ever (RFC 9293, 3.8.4) | everything that the host sent is acknowledged, and its peer is gone by one of the rules above |

use abey_tcpip::SocketError;

use crate::common::{
    SECOND,
    record::{Connection, Record, Transmission, neighbor},
};

/// Retransmissions before a host gives up: the setting of all hosts of these tests.
pub(crate) const RETRIES: u8 = 30;

/// Minimum time for which a host retransmits data (R2 of RFC 9293, 3.8.3).
const R2: u64 = 100 * SECOND;
/// Shortest validity of a SYN cookie.
const COOKIE: u64 = 64 * SECOND;
/// Solicitations before a host gives up the resolution of an address.
const SOLICITATIONS: usize = 3;
/// Longest time until a host answers a segment: it may be paused.
const ANSWER: u64 = 4 * SECOND;

/// How one end of a connection ended before both applications had finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Error(SocketError),
    /// The application waits for data, and no timer runs on either host.
    Waits,
}

/// End of one side of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub connection: Connection,
    /// 0 is the client.
    pub side: usize,
    pub at: u64,
    pub cause: Cause,
}

/// Evidence of one run.
pub(crate) struct Judge<'a> {
    /// Segments by their sender.
    pub records: [&'a Record; 2],
    /// Times at which the server dropped an ACK because its accept queue was full.
    pub overflows: &'a [u64],
    /// Connections that the server's application accepted.
    pub accepted: &'a [Connection],
}

impl Judge<'_> {
    /// Returns why no rule explains `end`, if none does.
    pub(crate) fn explain(&self, end: &End) -> Result<(), String> {
        let peer = 1 - end.side;
        match end.cause {
            Cause::Error(SocketError::TimedOut) => self.exhausted(end.side, end.connection, end.at),
            Cause::Error(SocketError::Reset) => {
                let arrived = |reset: &&Transmission| reset.rst && reset.arrivals.iter().any(|&at| at <= end.at);
                let reset = self.sent(peer, end.connection).find(arrived).ok_or("no reset arrived")?;
                self.gone(peer, end.connection, reset.at)
            }
            Cause::Error(SocketError::HostUnreachable) => self.unresolved(end),
            Cause::Error(error) => Err(format!("no rule for {error:?}")),
            Cause::Waits => {
                let last = self.sent(end.side, end.connection).map(Transmission::end).max_by(|&a, &b| order(a, b));
                let acked = self.arrived_acks(end.side, end.connection, 0, end.at);
                if last.is_some_and(|last| acked.into_iter().all(|ack| before(ack, last))) {
                    return Err("something is outstanding, and no timer runs".into());
                }
                self.gone(peer, end.connection, end.at)
            }
        }
    }

    /// Returns why no rule explains that `side` has no connection at the time `by`.
    fn gone(&self, side: usize, connection: Connection, by: u64) -> Result<(), String> {
        let exhausted = self.exhausted(side, connection, by);
        if exhausted.is_err() && side == 1 && !self.accepted.contains(&connection) {
            return self.cookie_expired(connection, by).map_err(|why| format!("{why}; {exhausted:?}"));
        }
        exhausted
    }

    /// Checks that `side` had to give up by the time `by`: its last transmissions were all retransmissions of one
    /// segment or probes of a closed window.
    fn exhausted(&self, side: usize, connection: Connection, by: u64) -> Result<(), String> {
        let sent: Vec<_> = self.sent(side, connection).filter(|sent| sent.at <= by && !sent.rst).collect();
        let last = *sent.iter().rfind(|sent| sent.len > 0).ok_or("it sent nothing")?;
        // The last one may have been sent again, and not be the furthest.
        let furthest = sent.iter().filter(|sent| sent.len > 0).map(|sent| sent.end()).max_by(|&a, &b| order(a, b));
        let probe = furthest.map(|end| end.wrapping_sub(1));
        let probes = sent.iter().filter(|sent| sent.at > last.at && sent.len == 0 && Some(sent.seq) == probe);
        let probes: Vec<_> = probes.copied().collect();
        if probes.len() >= RETRIES.into() {
            let opens = |answer: &Transmission| answer.ack == furthest && answer.window > 0;
            return self.unanswered(side, enough(&probes)?, by, opens);
        }
        let attempts: Vec<_> = sent.into_iter().filter(|sent| sent.len > 0 && sent.seq == last.seq).collect();
        let acks = |answer: &Transmission| answer.ack.is_some_and(|ack| before(last.seq, ack));
        self.unanswered(side, enough(&attempts)?, by, acks)
    }

    /// Checks that the peer, unless it was gone, sent an answer to each of `attempts` that arrived, and that none of the
    /// answers arrived.
    fn unanswered(
        &self,
        side: usize,
        attempts: &[&Transmission],
        by: u64,
        answers: impl Fn(&Transmission) -> bool,
    ) -> Result<(), String> {
        let (peer, first) = (1 - side, attempts[0]);
        let in_time = |at: &u64| *at > first.at && *at <= by;
        let arrived = |sent: &&Transmission| answers(sent) && sent.arrivals.iter().any(in_time);
        if let Some(answer) = self.sent(peer, first.connection).find(arrived) {
            return Err(format!("the answer of {} reached host {side}", answer.at));
        }
        for &arrival in attempts.iter().flat_map(|attempt| &attempt.arrivals).filter(|&&at| at <= by) {
            let span = arrival..=arrival + ANSWER;
            if !self.sent(peer, first.connection).any(|sent| span.contains(&sent.at) && answers(sent)) {
                self.gone(peer, first.connection, arrival)
                    .map_err(|why| format!("an attempt arrived at {arrival} and was not answered: {why}"))?;
            }
        }
        Ok(())
    }

    /// Checks that the host had to give up the resolution of its peer's address.
    fn unresolved(&self, end: &End) -> Result<(), String> {
        let sent: Vec<_> = self.sent(end.side, neighbor(end.connection)).filter(|sent| sent.at <= end.at).collect();
        let Some(first) = sent.len().checked_sub(SOLICITATIONS) else { return Err(format!("only {sent:?}")) };
        self.unanswered(end.side, &sent[first..], end.at, |_| true)
    }

    /// Checks that the server never had the connection, because the cookie did not come back in time.
    fn cookie_expired(&self, connection: Connection, by: u64) -> Result<(), String> {
        let answers: Vec<_> = self.sent(1, connection).filter(|sent| sent.syn && !sent.rst).collect();
        let last = answers.last().ok_or("the server sent no SYN-ACK")?;
        for sent in self.sent(0, connection).filter(|sent| !sent.syn) {
            let returns = |answer: &&&Transmission| sent.ack == Some(answer.end()) && Some(sent.seq) == answer.ack;
            if answers.iter().any(|answer| returns(&answer)) {
                let in_time = |at: &&u64| **at <= by && **at < last.at + COOKIE;
                if let Some(at) = sent.arrivals.iter().filter(in_time).find(|at| !self.overflows.contains(at)) {
                    return Err(format!("the cookie came back at {at}"));
                }
            }
        }
        Ok(())
    }

    fn sent(&self, side: usize, connection: Connection) -> impl Iterator<Item = &Transmission> {
        self.records[side].0.iter().filter(move |sent| sent.connection == connection)
    }

    /// Returns the acknowledgements that reached `side` after `since`.
    fn arrived_acks(&self, side: usize, connection: Connection, since: u64, by: u64) -> Vec<u32> {
        let arrived = |sent: &&Transmission| sent.arrivals.iter().any(|&at| at > since && at <= by);
        self.sent(1 - side, connection).filter(arrived).filter_map(|sent| sent.ack).collect()
    }
}

/// Returns the last of `attempts`, if they are enough to give up.
fn enough<'a, 'b>(attempts: &'a [&'b Transmission]) -> Result<&'a [&'b Transmission], String> {
    let Some(first) = attempts.len().checked_sub(RETRIES.into()) else {
        return Err(format!("the last segment was sent only {} times", attempts.len()));
    };
    let attempts = &attempts[first..];
    let (first, last) = (attempts[0].at, attempts[attempts.len() - 1].at);
    if last - first < R2 { Err(format!("given up too soon, at {last}")) } else { Ok(attempts) }
}

/// Returns whether sequence number `a` is before `b`.
fn before(a: u32, b: u32) -> bool {
    order(a, b).is_lt()
}

fn order(a: u32, b: u32) -> std::cmp::Ordering {
    a.wrapping_sub(b).cast_signed().cmp(&0)
}

/// A judge that accepts anything would hide every bug.
mod tests {
    use super::*;

    const CONNECTION: Connection = (false, 4000);

    fn segment(at: u64, seq: u32, len: u32, ack: u32, arrives: bool) -> Transmission {
        let arrivals = if arrives { vec![at + SECOND / 100] } else { Vec::new() };
        let (syn, rst, window) = (false, false, 100);
        Transmission { connection: CONNECTION, at, seq, len, syn, rst, ack: Some(ack), window, arrivals }
    }

    fn judge(client: &[Transmission], server: &[Transmission], cause: Cause) -> Result<(), String> {
        let records = [Record(client.to_vec()), Record(server.to_vec())];
        let judge = Judge { records: [&records[0], &records[1]], overflows: &[], accepted: &[CONNECTION] };
        judge.explain(&End { connection: CONNECTION, side: 0, at: 10_000 * SECOND, cause })
    }

    fn lost(count: u64) -> Vec<Transmission> {
        (0..count).map(|number| segment(number * 10 * SECOND, 7, 5, 1, false)).collect()
    }

    #[test]
    fn a_host_may_give_up_only_after_all_retransmissions() {
        let timed_out = Cause::Error(SocketError::TimedOut);
        assert_eq!(judge(&lost(31), &[], timed_out), Ok(()));
        assert!(judge(&lost(29), &[], timed_out).unwrap_err().contains("only 29 times"));
        let ack = |arrives| [segment(250 * SECOND, 1, 0, 12, arrives)];
        assert_eq!(judge(&lost(31), &ack(false), timed_out), Ok(()));
        assert!(judge(&lost(31), &ack(true), timed_out).unwrap_err().contains("reached"));
        let mut one_arrives = lost(31);
        one_arrives[25] = segment(250 * SECOND, 7, 5, 1, true);
        assert!(judge(&one_arrives, &[], timed_out).unwrap_err().contains("not answered"));
        assert_eq!(judge(&one_arrives, &[segment(250 * SECOND + SECOND / 100, 1, 0, 12, false)], timed_out), Ok(()));
    }

    #[test]
    fn a_host_may_give_up_only_after_all_probes() {
        let timed_out = Cause::Error(SocketError::TimedOut);
        let mut sent = vec![segment(0, 7, 5, 1, true), segment(SECOND, 2, 5, 1, true)];
        sent.extend((1..=30).map(|number| segment(number * 10 * SECOND, 11, 0, 1, number == 3)));
        let answer = |window, arrives| [Transmission { window, ..segment(31 * SECOND, 1, 0, 12, arrives) }];
        assert_eq!(judge(&sent, &answer(9, false), timed_out), Ok(()));
        assert!(judge(&sent, &answer(9, true), timed_out).unwrap_err().contains("reached"));
        assert!(judge(&sent, &answer(0, false), timed_out).unwrap_err().contains("not answered"));
        assert!(judge(&sent[..25], &answer(9, false), timed_out).is_err());
    }

    #[test]
    fn three_lost_solicitations_make_a_host_unreachable() {
        let solicitation =
            |at| Transmission { connection: neighbor(CONNECTION), ..segment(at * SECOND, 0, 0, 0, at == 2) };
        let sent = [1, 2, 3].map(solicitation);
        let answer = |arrives| {
            let sent = segment(2 * SECOND + SECOND / 100, 0, 0, 0, arrives);
            [Transmission { connection: neighbor(CONNECTION), ..sent }]
        };
        let unreachable = Cause::Error(SocketError::HostUnreachable);
        assert_eq!(judge(&sent, &answer(false), unreachable), Ok(()));
        assert!(judge(&sent, &answer(true), unreachable).unwrap_err().contains("reached"));
        assert!(judge(&sent, &[], unreachable).unwrap_err().contains("not answered"));
        assert!(judge(&sent[1..], &answer(false), unreachable).is_err());
    }

    #[test]
    fn a_reset_and_a_silent_peer_need_a_host_that_gave_up() {
        let sent = [segment(0, 7, 5, 1, true)];
        let mut server = lost(31);
        for sent in &mut server {
            (sent.seq, sent.ack) = (1, Some(7));
        }
        let mut acked = server.clone();
        acked.insert(0, segment(SECOND, 1, 0, 12, true));
        assert_eq!(judge(&sent, &acked, Cause::Waits), Ok(()));
        assert!(judge(&sent, &server, Cause::Waits).unwrap_err().contains("outstanding"));
        assert!(judge(&sent, &acked[..20], Cause::Waits).unwrap_err().contains("only 19 times"));
        let reset = Transmission { rst: true, ..segment(9000 * SECOND, 1, 0, 12, true) };
        let with_reset = |server: &[Transmission]| [server, std::slice::from_ref(&reset)].concat();
        let cause = Cause::Error(SocketError::Reset);
        assert_eq!(judge(&sent, &with_reset(&acked), cause), Ok(()));
        assert!(judge(&sent, &acked, cause).unwrap_err().contains("no reset"));
        assert!(judge(&sent, &with_reset(&acked[..20]), cause).is_err());
    }
}
