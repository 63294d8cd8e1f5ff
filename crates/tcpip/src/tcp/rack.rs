//! RACK-TLP: loss found by time (RFC 8985).
//!
//! *RACK.* A segment is lost when a segment that was sent later has been delivered, and more than the *reordering window*
//! has passed since. The window is zero until the path is seen to reorder, as three duplicate acknowledgements were
//! enough before; then a quarter of the least round trip, and a quarter more each time the peer reports a duplicate that
//! we sent for nothing. Where segments are late but not yet lost, a timer looks again.
//!
//! *TLP.* The last segments of a burst have nobody behind them to show their loss. After two round trips of silence
//! one probe is sent, new data or the last segment again, so that its acknowledgement shows what is missing.

use super::{
    scoreboard::{Scoreboard, Sent},
    seq::Seq,
};
use crate::time::{Instant, MILLISECOND, SECOND};

/// Segments SACKed that stand for three duplicate acknowledgements.
const DUPLICATE_THRESHOLD: u32 = 3;
/// Recoveries after which a widened window is forgotten.
const PERSIST: u8 = 16;
/// What a receiver may delay the acknowledgement of a lone segment by.
const WORST_DELAYED_ACK: u64 = 200 * MILLISECOND;

/// The most recently sent segment that was delivered.
#[derive(Clone, Copy, Debug)]
struct Delivered {
    at: Instant,
    end: Seq,
    rtt: u64,
}

/// A tail loss probe on its way.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// What is acknowledged when the probe and everything before it arrived.
    end: Seq,
    /// Whether it carries bytes that were sent before.
    repeats: bool,
}

/// What an acknowledgement said about a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// Nothing (yet).
    None,
    /// It repaired a loss nobody else saw: the window must be cut.
    Repaired,
}

/// State of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    delivered: Option<Delivered>,
    /// The highest byte ever delivered.
    forward: Seq,
    reordering_seen: bool,
    quarters: u8,
    persist: u8,
    /// Until this is acknowledged, duplicates are of the same round trip.
    duplicate_round: Option<Seq>,
    probe: Option<Probe>,
}

impl Rack {
    pub(crate) const fn new(initial: Seq) -> Self {
        Self {
            delivered: None,
            forward: initial,
            reordering_seen: false,
            quarters: 1,
            persist: 0,
            duplicate_round: None,
            probe: None,
        }
    }

    /// `segment` was delivered: acknowledged or SACKed just now.
    pub(crate) fn delivered(&mut self, now: Instant, segment: &Sent, least_rtt: Option<u64>) {
        if segment.end.after(self.forward) {
            self.forward = segment.end;
        } else if segment.end.before(self.forward) && !segment.is_resent() {
            self.reordering_seen = true;
        }
        let rtt = now.nanos_since(segment.at);
        if segment.is_resent() && least_rtt.is_some_and(|least| rtt < least) {
            // Too soon for the retransmission: the original arrived.
            return;
        }
        if self.delivered.is_none_or(|last| sent_after((segment.at, segment.end), (last.at, last.end))) {
            self.delivered = Some(Delivered { at: segment.at, end: segment.end, rtt });
        }
    }

    /// The peer reported a duplicate: what was resent was not lost, so wait longer.
    pub(crate) fn duplicate_reported(&mut self, una: Seq, nxt: Seq) {
        if self.duplicate_round.is_none_or(|round| una.at_or_after(round)) {
            self.duplicate_round = Some(nxt);
            self.quarters = self.quarters.saturating_add(1);
            self.persist = PERSIST;
        }
    }

    /// A recovery ended.
    pub(crate) fn recovered(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.quarters = 1;
        }
    }

    fn reordering_window(&self, board: &Scoreboard, recovering: bool, least: u64, smoothed: u64) -> u64 {
        if !self.reordering_seen && (recovering || board.sacked_segments() >= DUPLICATE_THRESHOLD) {
            return 0;
        }
        (least / 4 * u64::from(self.quarters)).min(smoothed)
    }

    /// Marks what is lost by now. Returns whether anything is, and how long until the next segment would be.
    pub(crate) fn detect(
        &self,
        now: Instant,
        board: &mut Scoreboard,
        recovering: bool,
        (least, smoothed): (u64, u64),
    ) -> (bool, Option<u64>) {
        let Some(last) = self.delivered else { return (false, None) };
        if !board.has_marks() {
            return (false, None);
        }
        let patience = last.rtt + self.reordering_window(board, recovering, least, smoothed);
        let (mut lost, mut look_again) = (false, None::<u64>);
        for index in 0..board.len() {
            let Some(&segment) = board.get(index) else { break };
            if !sent_after((last.at, last.end), (segment.at, segment.end)) {
                if !segment.is_resent() {
                    // Sent later than what was delivered, and so was everything behind it.
                    break;
                }
                continue;
            }
            if segment.is_sacked() || segment.is_waiting() {
                continue;
            }
            let age = now.nanos_since(segment.at);
            if age >= patience {
                lost |= board.mark_lost(index);
            } else {
                look_again = Some(look_again.map_or(0, |longest| longest).max(patience - age));
            }
        }
        (lost, look_again)
    }

    /// How long after the last transmission a probe is due.
    pub(crate) fn probe_timeout(&self, smoothed: Option<u64>, segments: usize, rto: u64) -> u64 {
        let Some(smoothed) = smoothed else { return SECOND.min(rto) };
        let lone = if segments == 1 { WORST_DELAYED_ACK } else { 0 };
        (2 * smoothed + lone).max(2 * MILLISECOND).min(rto)
    }

    pub(crate) const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// A probe was sent.
    pub(crate) fn probed(&mut self, end: Seq, repeats: bool) {
        self.probe = Some(Probe { end, repeats });
    }

    /// The timer went off: whatever the probe was to find out is moot.
    pub(crate) fn forget_probe(&mut self) {
        self.probe = None;
    }

    /// What `ack` says about the probe. `duplicate`: it reported the probe's bytes as a duplicate; `bare`: it
    /// acknowledged nothing new and SACKed nothing.
    pub(crate) fn probe_acknowledged(&mut self, ack: Seq, duplicate: bool, bare: bool) -> ProbeResult {
        let Some(probe) = self.probe else { return ProbeResult::None };
        if ack.before(probe.end) {
            return ProbeResult::None;
        }
        if !probe.repeats || duplicate || (ack == probe.end && bare) {
            self.probe = None;
        } else if ack.after(probe.end) {
            self.probe = None;
            return ProbeResult::Repaired;
        }
        ProbeResult::None
    }
}

/// Whether the first of two segments was sent later; of two sent at once, the one with higher numbers was.
fn sent_after(a: (Instant, Seq), b: (Instant, Seq)) -> bool {
    a.0 > b.0 || a.0 == b.0 && a.1.after(b.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::seq::SeqRange;

    const RTT: u64 = 100;

    fn board(segments: u32) -> Scoreboard {
        let mut board = Scoreboard::default();
        for number in 0..segments {
            board.push(SeqRange::new(Seq(number * 10), Seq(number * 10 + 10)), Instant(number.into()));
        }
        board
    }

    fn sack(rack: &mut Rack, board: &mut Scoreboard, now: u64, from: u32, to: u32) {
        board.sack(SeqRange::new(Seq(from * 10), Seq(to * 10)), |segment| {
            rack.delivered(Instant(now), segment, Some(RTT));
        });
    }

    #[test]
    fn three_segments_sacked_behind_it_mean_lost() {
        let (mut rack, mut board) = (Rack::new(Seq(0)), board(6));
        sack(&mut rack, &mut board, 110, 1, 4);
        assert_eq!(rack.detect(Instant(110), &mut board, false, (RTT, RTT)), (true, None));
        assert_eq!(board.first_waiting(), Some(0));
        assert!(!board.get(4).unwrap().is_waiting(), "sent later than what was delivered");
    }

    #[test]
    fn one_segment_sacked_behind_it_means_wait_a_quarter() {
        let (mut rack, mut board) = (Rack::new(Seq(0)), board(3));
        sack(&mut rack, &mut board, 101, 1, 2);
        let (lost, again) = rack.detect(Instant(101), &mut board, false, (RTT, RTT));
        assert!(!lost);
        let again = again.unwrap();
        assert_eq!(again, RTT + RTT / 4 - 101);
        assert!(rack.detect(Instant(101 + again), &mut board, false, (RTT, RTT)).0);
    }

    #[test]
    fn a_path_that_reorders_gets_time_and_duplicates_get_more() {
        let (mut rack, mut board) = (Rack::new(Seq(0)), board(8));
        sack(&mut rack, &mut board, 104, 2, 5);
        sack(&mut rack, &mut board, 104, 1, 2);
        assert!(!rack.detect(Instant(104), &mut board, false, (RTT, RTT)).0, "reordering was seen");
        let before = rack.reordering_window(&board, true, RTT, RTT);
        rack.duplicate_reported(Seq(0), Seq(80));
        rack.duplicate_reported(Seq(10), Seq(80));
        assert_eq!(rack.reordering_window(&board, true, RTT, RTT), 2 * before, "once a round trip");
        for _ in 0..PERSIST {
            rack.recovered();
        }
        assert_eq!(rack.reordering_window(&board, true, RTT, RTT), before);
    }

    #[test]
    fn a_lost_retransmission_is_found_too() {
        let (mut rack, mut board) = (Rack::new(Seq(0)), board(6));
        sack(&mut rack, &mut board, 110, 1, 5);
        rack.detect(Instant(110), &mut board, true, (RTT, RTT));
        board.resent(0, Instant(111));
        board.push(SeqRange::new(Seq(60), Seq(70)), Instant(120));
        sack(&mut rack, &mut board, 225, 6, 7);
        assert!(rack.detect(Instant(225), &mut board, true, (RTT, RTT)).0);
        assert_eq!(board.first_waiting(), Some(0));
    }

    #[test]
    fn a_probe_that_repaired_a_loss_cuts_the_window() {
        let mut rack = Rack::new(Seq(0));
        rack.probed(Seq(100), true);
        assert_eq!(rack.probe_acknowledged(Seq(90), false, false), ProbeResult::None);
        assert_eq!(rack.probe_acknowledged(Seq(110), false, false), ProbeResult::Repaired);
        rack.probed(Seq(200), true);
        assert_eq!(rack.probe_acknowledged(Seq(200), true, false), ProbeResult::None);
        assert!(!rack.is_probing(), "the duplicate was reported: nothing was lost");
    }
}
