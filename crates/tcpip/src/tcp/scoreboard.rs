//! What was sent and not acknowledged, segment by segment (RFC 2018, RFC 6675).
//!
//! Each segment is where its bytes are, when it was last sent, and what is believed of it: SACKed, lost, retransmitted
//! since. From these follows the estimate of what is in the network, RFC 6675's *pipe*:
//!
//! `in flight = sent - SACKed - lost + retransmitted`
//!
//! kept as sums, so that it costs nothing to ask. SACK blocks come from the peer and are believed only within what was
//! sent. The peer may forget what it SACKed (it "reneges"); it shows when the timer goes off and the first segment is
//! SACKed, and then all blocks are forgotten.

use std::collections::VecDeque;

use super::seq::{Seq, SeqRange};
use crate::time::Instant;

const SACKED: u8 = 1;
const LOST: u8 = 2;
/// Sent again, ever: its acknowledgement says nothing of the round trip (Karn).
const RESENT: u8 = 4;
/// The last retransmission is still in the network.
const RESENT_IN_FLIGHT: u8 = 8;

/// One segment in flight. SYN and FIN count as a byte each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub start: Seq,
    pub end: Seq,
    /// When it was last sent.
    pub at: Instant,
    marks: u8,
}

impl Sent {
    pub(crate) const fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    pub(crate) const fn is_sacked(&self) -> bool {
        self.marks & SACKED != 0
    }

    pub(crate) const fn is_resent(&self) -> bool {
        self.marks & RESENT != 0
    }

    /// Lost, and not on its way again.
    pub(crate) const fn is_waiting(&self) -> bool {
        self.marks & (LOST | RESENT_IN_FLIGHT | SACKED) == LOST
    }
}

/// The segments from the first unacknowledged one on, in order.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    segments: VecDeque<Sent>,
    sacked: u32,
    lost: u32,
    resent: u32,
    /// No segment before this index waits for retransmission.
    waiting_from: usize,
    /// How many segments wait.
    waiting: u32,
    sacked_segments: u32,
}

impl Scoreboard {
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    /// Bytes of memory held.
    pub(crate) fn memory(&self) -> usize {
        self.segments.capacity() * size_of::<Sent>()
    }

    /// Bytes sent and not acknowledged.
    pub(crate) fn outstanding(&self) -> u32 {
        match (self.segments.front(), self.segments.back()) {
            (Some(first), Some(last)) => last.end.since(first.start),
            _ => 0,
        }
    }

    /// Bytes believed to be in the network: RFC 6675's pipe.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.outstanding() + self.resent).saturating_sub(self.sacked + self.lost)
    }

    /// Bytes that are SACKed.
    pub(crate) const fn sacked(&self) -> u32 {
        self.sacked
    }

    pub(crate) const fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    /// Whether anything is known to be wrong: SACKed or lost segments.
    pub(crate) const fn has_marks(&self) -> bool {
        self.sacked | self.lost != 0
    }

    pub(crate) const fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Sent> {
        self.segments.get(index)
    }

    pub(crate) fn last(&self) -> Option<&Sent> {
        self.segments.back()
    }

    /// A new segment was sent.
    pub(crate) fn push(&mut self, range: SeqRange, at: Instant) {
        debug_assert!(self.segments.back().is_none_or(|last| last.end == range.start), "segments are contiguous");
        self.segments.push_back(Sent { start: range.start, end: range.end, at, marks: 0 });
    }

    /// Everything before `una` is acknowledged; `each` sees the segments that were not SACKed before.
    pub(crate) fn acknowledge(&mut self, una: Seq, mut each: impl FnMut(&Sent)) {
        while let Some(first) = self.segments.front_mut() {
            if first.start.at_or_after(una) {
                break;
            }
            if first.end.after(una) {
                // Half of it: the rest stays as it is.
                let bytes = una.since(first.start);
                first.start = una;
                let marks = first.marks;
                self.account(marks, bytes, false);
                break;
            }
            let segment = *first;
            self.segments.pop_front();
            self.account(segment.marks, segment.len(), false);
            self.waiting -= u32::from(segment.is_waiting());
            self.sacked_segments -= u32::from(segment.is_sacked());
            self.waiting_from = self.waiting_from.saturating_sub(1);
            if !segment.is_sacked() {
                each(&segment);
            }
        }
        if self.segments.is_empty() && self.segments.capacity() > 8 {
            self.segments = VecDeque::new();
        }
    }

    /// The peer has `block`; `each` sees the segments it had not reported before.
    pub(crate) fn sack(&mut self, block: SeqRange, mut each: impl FnMut(&Sent)) {
        let Some(base) = self.segments.front().map(|first| first.start) else { return };
        let offset = block.start.since(base);
        let first = self.segments.partition_point(|segment| segment.start.since(base) < offset);
        for index in first..self.segments.len() {
            let segment = self.segments[index];
            if segment.end.after(block.end) {
                break;
            }
            if segment.is_sacked() {
                continue;
            }
            each(&segment);
            self.waiting -= u32::from(segment.is_waiting());
            self.account(segment.marks, segment.len(), false);
            let marks = segment.marks & RESENT | SACKED;
            self.segments[index].marks = marks;
            self.account(marks, segment.len(), true);
            self.sacked_segments += 1;
        }
    }

    /// Believes segment `index` lost, also if it was sent again already. Whether that is news.
    pub(crate) fn mark_lost(&mut self, index: usize) -> bool {
        let segment = self.segments[index];
        if segment.is_sacked() || segment.is_waiting() {
            return false;
        }
        self.account(segment.marks, segment.len(), false);
        let marks = segment.marks & !RESENT_IN_FLIGHT | LOST;
        self.segments[index].marks = marks;
        self.account(marks, segment.len(), true);
        self.waiting += 1;
        self.waiting_from = self.waiting_from.min(index);
        true
    }

    /// The timer went off: believes everything lost that is not SACKed. If even the first segment is SACKed, the peer
    /// reneged, and nothing it said counts; returns whether it did.
    pub(crate) fn mark_all_lost(&mut self) -> bool {
        let reneged = self.segments.front().is_some_and(Sent::is_sacked);
        if reneged {
            for index in 0..self.segments.len() {
                let segment = self.segments[index];
                if segment.is_sacked() {
                    self.account(segment.marks, segment.len(), false);
                    self.segments[index].marks = segment.marks & RESENT;
                }
            }
            self.sacked_segments = 0;
        }
        for index in 0..self.segments.len() {
            self.mark_lost(index);
        }
        reneged
    }

    /// Nothing was lost after all: what is not SACKed is on its way, once.
    pub(crate) fn forget_losses(&mut self) {
        for segment in &mut self.segments {
            segment.marks &= !(LOST | RESENT_IN_FLIGHT);
        }
        (self.lost, self.resent, self.waiting, self.waiting_from) = (0, 0, 0, self.segments.len());
    }

    /// The first segment that waits for retransmission.
    pub(crate) fn first_waiting(&mut self) -> Option<usize> {
        if self.waiting == 0 {
            self.waiting_from = self.segments.len();
            return None;
        }
        let found = (self.waiting_from..self.segments.len()).find(|&index| self.segments[index].is_waiting());
        debug_assert!(found.is_some(), "the number of waiting segments is wrong");
        self.waiting_from = found.unwrap_or(self.segments.len());
        found
    }

    /// Segment `index` was sent again.
    pub(crate) fn resent(&mut self, index: usize, at: Instant) {
        let segment = self.segments[index];
        self.waiting -= u32::from(segment.is_waiting());
        self.account(segment.marks, segment.len(), false);
        let marks = segment.marks | RESENT | RESENT_IN_FLIGHT;
        self.segments[index] = Sent { at, marks, ..segment };
        self.account(marks, segment.len(), true);
    }

    /// Cuts segment `index` after `bytes`, because the path takes no longer ones.
    pub(crate) fn split(&mut self, index: usize, bytes: u32) {
        let whole = self.segments[index];
        if bytes == 0 || bytes >= whole.len() {
            return;
        }
        let middle = whole.start.plus(bytes);
        self.segments[index].end = middle;
        self.segments.insert(index + 1, Sent { start: middle, ..whole });
        self.waiting += u32::from(whole.is_waiting());
        self.sacked_segments += u32::from(whole.is_sacked());
    }

    /// Whether the sums are those of the segments, for tests.
    pub(crate) fn audit(&self) -> Result<(), &'static str> {
        let mut fresh = Self::default();
        for segment in &self.segments {
            fresh.account(segment.marks, segment.len(), true);
            fresh.waiting += u32::from(segment.is_waiting());
            fresh.sacked_segments += u32::from(segment.is_sacked());
        }
        let sums = |board: &Self| (board.sacked, board.lost, board.resent, board.waiting, board.sacked_segments);
        if sums(&fresh) != sums(self) {
            return Err("the scoreboard's sums are not those of its segments");
        }
        if self.segments.iter().take(self.waiting_from).any(Sent::is_waiting) {
            return Err("a segment that waits for retransmission would be passed over");
        }
        let contiguous = self.segments.iter().zip(self.segments.iter().skip(1)).all(|(a, b)| a.end == b.start);
        if contiguous && self.segments.iter().all(|segment| segment.len() > 0) {
            Ok(())
        } else {
            Err("the scoreboard's segments do not follow each other")
        }
    }

    fn account(&mut self, marks: u8, bytes: u32, add: bool) {
        let change = |sum: &mut u32| *sum = if add { *sum + bytes } else { *sum - bytes };
        if marks & SACKED != 0 {
            change(&mut self.sacked);
            return;
        }
        if marks & LOST != 0 {
            change(&mut self.lost);
        }
        // A segment that is sent again without being believed lost, as a probe is, is in flight once.
        if marks & (LOST | RESENT_IN_FLIGHT) == LOST | RESENT_IN_FLIGHT {
            change(&mut self.resent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board(segments: u32) -> Scoreboard {
        let mut board = Scoreboard::default();
        for number in 0..segments {
            let start = Seq(u32::MAX - 150).plus(number * 100);
            board.push(SeqRange::new(start, start.plus(100)), Instant(number.into()));
        }
        board
    }

    fn at(bytes: u32) -> Seq {
        Seq(u32::MAX - 150).plus(bytes)
    }

    #[test]
    fn the_pipe_follows_every_mark() {
        let mut board = board(10);
        assert_eq!((board.outstanding(), board.in_flight()), (1000, 1000));
        let mut seen = 0;
        board.sack(SeqRange::new(at(300), at(600)), |_| seen += 1);
        board.sack(SeqRange::new(at(300), at(700)), |_| seen += 1);
        assert_eq!((seen, board.sacked_segments(), board.in_flight()), (4, 4, 600));
        assert!(board.mark_lost(0) && board.mark_lost(1) && !board.mark_lost(1) && !board.mark_lost(3));
        assert_eq!((board.in_flight(), board.first_waiting()), (400, Some(0)));
        board.resent(0, Instant(50));
        assert_eq!((board.in_flight(), board.first_waiting()), (500, Some(1)));
        assert!(board.mark_lost(0), "the retransmission was lost too");
        assert_eq!((board.in_flight(), board.first_waiting()), (400, Some(0)));
        board.acknowledge(at(700), |_| seen += 1);
        assert_eq!((seen, board.in_flight(), board.outstanding(), board.first_waiting()), (7, 300, 300, None));
        assert!(!board.has_marks());
    }

    #[test]
    fn half_a_segment_can_be_acknowledged() {
        let mut board = board(2);
        board.mark_lost(0);
        board.acknowledge(at(40), |_| unreachable!("no whole segment"));
        assert_eq!((board.outstanding(), board.in_flight()), (160, 100));
    }

    #[test]
    fn a_peer_that_reneges_is_no_longer_believed() {
        let mut board = board(4);
        board.sack(SeqRange::new(at(200), at(400)), |_| ());
        assert!(!board.mark_all_lost());
        board.acknowledge(at(200), |_| ());
        assert!(board.mark_all_lost());
        assert_eq!((board.in_flight(), board.sacked_segments(), board.first_waiting()), (0, 0, Some(0)));
    }

    #[test]
    fn a_probe_that_repeats_a_segment_is_in_flight_once() {
        let mut board = board(2);
        board.resent(1, Instant(9));
        assert_eq!(board.in_flight(), 200);
        assert!(board.mark_lost(1));
        assert_eq!(board.in_flight(), 100);
    }

    #[test]
    fn a_segment_is_split_with_its_marks() {
        let mut board = board(2);
        board.mark_all_lost();
        board.split(0, 60);
        board.resent(0, Instant(9));
        assert_eq!((board.len(), board.in_flight(), board.first_waiting()), (3, 60, Some(1)));
        board.acknowledge(at(200), |_| ());
        assert!(board.is_empty() && !board.has_waiting());
    }
}
