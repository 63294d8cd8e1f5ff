//! RACK-TLP: time-based loss detection (RFC 8985).
//!
//! *RACK.* A segment is lost if a segment that was sent later was delivered and more than the *reordering window* has
//! passed since. The window is zero until reordering was observed, once three segments are SACKed or during a
//! recovery. Otherwise it is a quarter of the minimum round trip, plus a quarter for each round trip in which the
//! peer reported a duplicate. A timer checks segments that are late but not lost yet.
//!
//! *TLP.* No later segment can reveal the loss of the last segments of a burst. After two round trips without an
//! acknowledgement one probe is sent, new data or the last segment again. Its acknowledgement shows what is missing.

use super::{
    scoreboard::{Scoreboard, SentSegment},
    seq::Seq,
};
use crate::time::{Instant, MILLISECOND, SECOND};

/// SACKed segments that replace three duplicate acknowledgements.
const DUPLICATE_THRESHOLD: u32 = 3;
/// Recoveries after which a widened window is reset (RFC 8985, 6.2).
const REO_WND_PERSIST: u8 = 16;
/// Longest delay of the acknowledgement of a single segment by the receiver (RFC 8985, 7.2).
const WORST_DELAYED_ACK: u64 = 200 * MILLISECOND;

/// Most recently sent segment that was delivered.
#[derive(Clone, Copy, Debug)]
struct Delivered {
    at: Instant,
    end: Seq,
    rtt: u64,
}

/// Tail loss probe in flight.
#[derive(Clone, Copy, Debug)]
struct TailProbe {
    /// Sequence number that is acknowledged when the probe and everything before it have arrived.
    end: Seq,
    /// Whether it retransmits bytes.
    repeats: bool,
}

/// Result of an acknowledgement for a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeResult {
    /// Nothing yet.
    None,
    /// The probe repaired a loss that nothing else revealed; the window must be reduced.
    Repaired,
}

/// RACK-TLP state of one connection, with the names of the RFC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    delivered: Option<Delivered>,
    /// Highest sequence number that was delivered.
    fack: Seq,
    reordering_seen: bool,
    reo_wnd_mult: u8,
    reo_wnd_persist: u8,
    /// Duplicates reported before this is acknowledged belong to the same round trip.
    dsack_round: Option<Seq>,
    probe: Option<TailProbe>,
}

impl Rack {
    pub(crate) const fn new(initial: Seq) -> Self {
        Self {
            delivered: None,
            fack: initial,
            reordering_seen: false,
            reo_wnd_mult: 1,
            reo_wnd_persist: 0,
            dsack_round: None,
            probe: None,
        }
    }

    /// Records that `segment` was acknowledged or SACKed just now.
    pub(crate) fn delivered(&mut self, now: Instant, segment: &SentSegment, least_rtt: Option<u64>) {
        if segment.end.after(self.fack) {
            self.fack = segment.end;
        } else if segment.end.before(self.fack) && !segment.was_retransmitted() {
            self.reordering_seen = true;
        }
        let rtt = now.nanos_since(segment.at);
        if segment.was_retransmitted() && least_rtt.is_some_and(|min_rtt| rtt < min_rtt) {
            // Faster than the minimum round trip: the original arrived, not the retransmission.
            return;
        }
        if self.delivered.is_none_or(|last| sent_after((segment.at, segment.end), (last.at, last.end))) {
            self.delivered = Some(Delivered { at: segment.at, end: segment.end, rtt });
        }
    }

    /// Widens the reordering window, because a retransmission was unnecessary.
    pub(crate) fn dsack_received(&mut self, una: Seq, nxt: Seq) {
        if self.dsack_round.is_none_or(|round| una.at_or_after(round)) {
            self.dsack_round = Some(nxt);
            self.reo_wnd_mult = self.reo_wnd_mult.saturating_add(1);
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Records the end of a recovery.
    pub(crate) fn recovered(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 1;
        }
    }

    fn reordering_window(&self, scoreboard: &Scoreboard, recovering: bool, min_rtt: u64, smoothed: u64) -> u64 {
        if !self.reordering_seen && (recovering || scoreboard.sacked_segments() >= DUPLICATE_THRESHOLD) {
            return 0;
        }
        (min_rtt / 4 * u64::from(self.reo_wnd_mult)).min(smoothed)
    }

    /// Marks lost segments. Returns whether there are any, and the time until the next one may be.
    pub(crate) fn detect(
        &self,
        now: Instant,
        scoreboard: &mut Scoreboard,
        recovering: bool,
        (min_rtt, smoothed): (u64, u64),
    ) -> (bool, Option<u64>) {
        let Some(last) = self.delivered else { return (false, None) };
        if !scoreboard.has_marks() {
            return (false, None);
        }
        let timeout = last.rtt + self.reordering_window(scoreboard, recovering, min_rtt, smoothed);
        let (mut lost, mut recheck) = (false, None::<u64>);
        let mut next = 0;
        loop {
            let index = scoreboard.skip_sacked(next);
            let Some(&segment) = scoreboard.get(index) else { break };
            next = index + 1;
            if !sent_after((last.at, last.end), (segment.at, segment.end)) {
                if !segment.was_retransmitted() {
                    // This segment and all later ones were sent after the delivered one.
                    break;
                }
                continue;
            }
            if segment.needs_retransmission() {
                continue;
            }
            let age = now.nanos_since(segment.at);
            if age >= timeout {
                lost |= scoreboard.mark_lost(index);
            } else {
                recheck = Some(recheck.map_or(0, |longest| longest).max(timeout - age));
            }
        }
        (lost, recheck)
    }

    /// Returns the time after the last transmission at which a probe is due.
    pub(crate) fn probe_timeout(&self, smoothed: Option<u64>, segments: usize, rto: u64) -> u64 {
        let Some(smoothed) = smoothed else { return SECOND.min(rto) };
        let lone = if segments == 1 { WORST_DELAYED_ACK } else { 0 };
        (2 * smoothed + lone).max(2 * MILLISECOND).min(rto)
    }

    pub(crate) const fn is_probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Records that a probe was sent.
    pub(crate) fn probed(&mut self, end: Seq, repeats: bool) {
        self.probe = Some(TailProbe { end, repeats });
    }

    /// Forgets the probe after a retransmission timeout.
    pub(crate) fn forget_probe(&mut self) {
        self.probe = None;
    }

    /// Returns what `ack` shows about the probe. `duplicate` means that it reported the probe's bytes as a duplicate,
    /// and `bare` that it acknowledged and SACKed nothing new.
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

/// Returns whether `a` was sent after `b`. Of two segments sent at the same time, the one with the higher number was.
fn sent_after(a: (Instant, Seq), b: (Instant, Seq)) -> bool {
    a.0 > b.0 || a.0 == b.0 && a.1.after(b.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::seq::SeqRange;

    const RTT: u64 = 100;

    fn scoreboard(segments: u32) -> Scoreboard {
        let mut scoreboard = Scoreboard::default();
        for number in 0..segments {
            scoreboard.push(SeqRange::new(Seq(number * 10), Seq(number * 10 + 10)), Instant(number.into()));
        }
        scoreboard
    }

    fn sack(rack: &mut Rack, scoreboard: &mut Scoreboard, now: u64, from: u32, to: u32) {
        scoreboard.sack(SeqRange::new(Seq(from * 10), Seq(to * 10)), |segment| {
            rack.delivered(Instant(now), segment, Some(RTT));
        });
    }

    #[test]
    fn a_hole_before_three_sacked_segments_is_lost() {
        let (mut rack, mut scoreboard) = (Rack::new(Seq(0)), scoreboard(6));
        sack(&mut rack, &mut scoreboard, 110, 1, 4);
        assert_eq!(rack.detect(Instant(110), &mut scoreboard, false, (RTT, RTT)), (true, None));
        assert_eq!(scoreboard.first_to_retransmit(), Some(0));
        assert!(!scoreboard.get(4).unwrap().needs_retransmission(), "sent later than what was delivered");
    }

    #[test]
    fn a_hole_before_one_sacked_segment_is_lost_after_a_quarter_rtt() {
        let (mut rack, mut scoreboard) = (Rack::new(Seq(0)), scoreboard(3));
        sack(&mut rack, &mut scoreboard, 101, 1, 2);
        let (lost, wait) = rack.detect(Instant(101), &mut scoreboard, false, (RTT, RTT));
        assert!(!lost);
        let wait = wait.unwrap();
        assert_eq!(wait, RTT + RTT / 4 - 101);
        assert!(rack.detect(Instant(101 + wait), &mut scoreboard, false, (RTT, RTT)).0);
    }

    #[test]
    fn reordering_and_duplicates_widen_the_window() {
        let (mut rack, mut scoreboard) = (Rack::new(Seq(0)), scoreboard(8));
        sack(&mut rack, &mut scoreboard, 104, 2, 5);
        sack(&mut rack, &mut scoreboard, 104, 1, 2);
        assert!(!rack.detect(Instant(104), &mut scoreboard, false, (RTT, RTT)).0, "reordering was seen");
        let before = rack.reordering_window(&scoreboard, true, RTT, RTT);
        rack.dsack_received(Seq(0), Seq(80));
        rack.dsack_received(Seq(10), Seq(80));
        assert_eq!(rack.reordering_window(&scoreboard, true, RTT, RTT), 2 * before, "once a round trip");
        for _ in 0..REO_WND_PERSIST {
            rack.recovered();
        }
        assert_eq!(rack.reordering_window(&scoreboard, true, RTT, RTT), before);
    }

    #[test]
    fn a_lost_retransmission_is_detected() {
        let (mut rack, mut scoreboard) = (Rack::new(Seq(0)), scoreboard(6));
        sack(&mut rack, &mut scoreboard, 110, 1, 5);
        rack.detect(Instant(110), &mut scoreboard, true, (RTT, RTT));
        scoreboard.mark_retransmitted(0, Instant(111));
        scoreboard.push(SeqRange::new(Seq(60), Seq(70)), Instant(120));
        sack(&mut rack, &mut scoreboard, 225, 6, 7);
        assert!(rack.detect(Instant(225), &mut scoreboard, true, (RTT, RTT)).0);
        assert_eq!(scoreboard.first_to_retransmit(), Some(0));
    }

    #[test]
    fn a_probe_that_repaired_a_loss_is_reported() {
        let mut rack = Rack::new(Seq(0));
        rack.probed(Seq(100), true);
        assert_eq!(rack.probe_acknowledged(Seq(90), false, false), ProbeResult::None);
        assert_eq!(rack.probe_acknowledged(Seq(110), false, false), ProbeResult::Repaired);
        rack.probed(Seq(200), true);
        assert_eq!(rack.probe_acknowledged(Seq(200), true, false), ProbeResult::None);
        assert!(!rack.is_probing(), "the duplicate was reported: nothing was lost");
    }
}
