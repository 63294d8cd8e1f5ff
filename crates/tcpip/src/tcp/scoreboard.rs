//! Scoreboard of segments that were sent and not acknowledged (RFC 2018, RFC 6675).
//!
//! Each entry has a segment's range, the time of its last transmission, and whether it was SACKed, marked lost or
//! retransmitted. They give the estimate of the bytes in the network, *pipe* in RFC 6675:
//!
//! `in flight = outstanding - SACKed - lost + retransmitted`
//!
//! The sums are updated incrementally. A hole in front of a large window leaves a long run of SACKed segments, which
//! every further acknowledgement reports again. Runs remember their length, so that they are skipped at once. SACK blocks are valid only within what was sent. A peer may discard data that
//! it has SACKed ("reneging"). This shows when the timer expires while the first segment is SACKed; all SACK marks
//! are then cleared.

use std::collections::VecDeque;

use super::seq::{Seq, SeqRange};
use crate::time::Instant;

/// Segments for which an empty scoreboard keeps its memory, so that a burst of that size allocates nothing.
const KEPT_CAPACITY: usize = 16;

const SACKED: u8 = 1;
const LOST: u8 = 2;
/// Retransmitted at least once; its acknowledgement gives no round-trip sample (Karn's rule).
const RETRANSMITTED: u8 = 4;
/// The last retransmission is still in the network.
const RETRANSMISSION_IN_FLIGHT: u8 = 8;

/// Segment in flight. SYN and FIN count as one byte each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentSegment {
    pub start: Seq,
    pub end: Seq,
    /// Time of the last transmission.
    pub at: Instant,
    marks: u8,
    /// Number of segments from this one on that are known to be SACKed, if this one is.
    run: u32,
}

impl SentSegment {
    pub(crate) const fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    pub(crate) const fn is_sacked(&self) -> bool {
        self.marks & SACKED != 0
    }

    pub(crate) const fn was_retransmitted(&self) -> bool {
        self.marks & RETRANSMITTED != 0
    }

    /// Returns whether the segment is lost and not retransmitted since.
    pub(crate) const fn needs_retransmission(&self) -> bool {
        self.marks & (LOST | RETRANSMISSION_IN_FLIGHT | SACKED) == LOST
    }
}

/// Segments from SND.UNA to SND.NXT, in order.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    segments: VecDeque<SentSegment>,
    sacked: u32,
    lost: u32,
    retransmitted: u32,
    /// No segment before this index needs a retransmission.
    retransmit_from: usize,
    /// Number of segments that need a retransmission.
    to_retransmit: u32,
    sacked_segments: u32,
}

impl Scoreboard {
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.segments.capacity() * size_of::<SentSegment>()
    }

    /// Returns the bytes that were sent and not acknowledged.
    pub(crate) fn outstanding(&self) -> u32 {
        match (self.segments.front(), self.segments.back()) {
            (Some(first), Some(last)) => last.end.since(first.start),
            _ => 0,
        }
    }

    /// Returns the estimated number of bytes in the network: pipe in RFC 6675.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.outstanding() + self.retransmitted).saturating_sub(self.sacked + self.lost)
    }

    /// Returns the number of SACKed bytes.
    pub(crate) const fn sacked(&self) -> u32 {
        self.sacked
    }

    pub(crate) const fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    /// Returns whether any segment is SACKed or lost.
    pub(crate) const fn has_marks(&self) -> bool {
        self.sacked | self.lost != 0
    }

    pub(crate) const fn has_retransmissions(&self) -> bool {
        self.to_retransmit > 0
    }

    pub(crate) fn get(&self, index: usize) -> Option<&SentSegment> {
        self.segments.get(index)
    }

    pub(crate) fn last(&self) -> Option<&SentSegment> {
        self.segments.back()
    }

    /// Adds a segment that was just sent.
    pub(crate) fn push(&mut self, range: SeqRange, at: Instant) {
        debug_assert!(self.segments.back().is_none_or(|last| last.end == range.start), "segments must be contiguous");
        self.segments.push_back(SentSegment { start: range.start, end: range.end, at, marks: 0, run: 1 });
    }

    /// Removes everything before `una`. Calls `each` with the segments that were not SACKed before.
    pub(crate) fn acknowledge(&mut self, una: Seq, mut each: impl FnMut(&SentSegment)) {
        while let Some(first) = self.segments.front_mut() {
            if first.start.at_or_after(una) {
                break;
            }
            if first.end.after(una) {
                // A part of the segment was acknowledged; its marks stay.
                let bytes = una.since(first.start);
                first.start = una;
                let marks = first.marks;
                self.account(marks, bytes, false);
                break;
            }
            let segment = *first;
            self.segments.pop_front();
            self.account(segment.marks, segment.len(), false);
            self.to_retransmit -= u32::from(segment.needs_retransmission());
            self.sacked_segments -= u32::from(segment.is_sacked());
            self.retransmit_from = self.retransmit_from.saturating_sub(1);
            if !segment.is_sacked() {
                each(&segment);
            }
        }
        if self.segments.is_empty() && self.segments.capacity() > KEPT_CAPACITY {
            self.segments = VecDeque::new();
        }
    }

    /// Marks `block` as SACKed. Calls `each` with the segments that were not SACKed before.
    pub(crate) fn sack(&mut self, block: SeqRange, mut each: impl FnMut(&SentSegment)) {
        let Some(base) = self.segments.front().map(|first| first.start) else { return };
        let offset = block.start.since(base);
        let mut index = self.segments.partition_point(|segment| segment.start.since(base) < offset);
        loop {
            index = self.skip_sacked(index);
            let Some(&segment) = self.segments.get(index).filter(|segment| segment.end.at_or_before(block.end)) else {
                break;
            };
            each(&segment);
            self.to_retransmit -= u32::from(segment.needs_retransmission());
            self.account(segment.marks, segment.len(), false);
            let marks = segment.marks & RETRANSMITTED | SACKED;
            self.segments[index] = SentSegment { marks, run: 1, ..segment };
            self.account(marks, segment.len(), true);
            self.sacked_segments += 1;
        }
    }

    /// Returns the index of the first segment from `index` on that is not SACKed, or the number of segments.
    pub(crate) fn skip_sacked(&mut self, index: usize) -> usize {
        let mut next = index;
        while let Some(run) = self.sacked_run(next) {
            next += run;
        }
        if next > index {
            self.segments[index].run = (next - index) as u32;
        }
        next
    }

    /// Returns the number of segments from `index` on that are known to be SACKed, if that one is.
    fn sacked_run(&self, index: usize) -> Option<usize> {
        self.segments.get(index).filter(|segment| segment.is_sacked()).map(|segment| segment.run as usize)
    }

    /// Marks segment `index` as lost, even if it was retransmitted. Returns whether the mark is new.
    pub(crate) fn mark_lost(&mut self, index: usize) -> bool {
        let segment = self.segments[index];
        if segment.is_sacked() || segment.needs_retransmission() {
            return false;
        }
        self.account(segment.marks, segment.len(), false);
        let marks = segment.marks & !RETRANSMISSION_IN_FLIGHT | LOST;
        self.segments[index].marks = marks;
        self.account(marks, segment.len(), true);
        self.to_retransmit += 1;
        self.retransmit_from = self.retransmit_from.min(index);
        true
    }

    /// Marks everything that is not SACKed as lost, after a timeout. If the first segment is SACKed, the peer
    /// reneged, and all SACK marks are cleared first. Returns whether it did.
    pub(crate) fn mark_all_lost(&mut self) -> bool {
        let reneged = self.segments.front().is_some_and(SentSegment::is_sacked);
        if reneged {
            for index in 0..self.segments.len() {
                let segment = self.segments[index];
                if segment.is_sacked() {
                    self.account(segment.marks, segment.len(), false);
                    self.segments[index].marks = segment.marks & RETRANSMITTED;
                }
            }
            self.sacked_segments = 0;
        }
        for index in 0..self.segments.len() {
            self.mark_lost(index);
        }
        reneged
    }

    /// Clears all loss marks after a spurious recovery: each segment that is not SACKed is in flight once.
    pub(crate) fn clear_losses(&mut self) {
        for segment in &mut self.segments {
            segment.marks &= !(LOST | RETRANSMISSION_IN_FLIGHT);
        }
        (self.lost, self.retransmitted, self.to_retransmit, self.retransmit_from) = (0, 0, 0, self.segments.len());
    }

    /// Returns the first segment that needs a retransmission.
    pub(crate) fn first_to_retransmit(&mut self) -> Option<usize> {
        if self.to_retransmit == 0 {
            self.retransmit_from = self.segments.len();
            return None;
        }
        let found =
            (self.retransmit_from..self.segments.len()).find(|&index| self.segments[index].needs_retransmission());
        debug_assert!(found.is_some(), "the number of segments to retransmit is wrong");
        self.retransmit_from = found.unwrap_or(self.segments.len());
        found
    }

    /// Records that segment `index` was retransmitted.
    pub(crate) fn mark_retransmitted(&mut self, index: usize, at: Instant) {
        let segment = self.segments[index];
        self.to_retransmit -= u32::from(segment.needs_retransmission());
        self.account(segment.marks, segment.len(), false);
        let marks = segment.marks | RETRANSMITTED | RETRANSMISSION_IN_FLIGHT;
        self.segments[index] = SentSegment { at, marks, ..segment };
        self.account(marks, segment.len(), true);
    }

    /// Splits segment `index` after `bytes`, because the path or the window requires smaller segments.
    pub(crate) fn split(&mut self, index: usize, bytes: u32) {
        let whole = self.segments[index];
        if bytes == 0 || bytes >= whole.len() {
            return;
        }
        let middle = whole.start.plus(bytes);
        self.segments[index].end = middle;
        self.segments.insert(index + 1, SentSegment { start: middle, ..whole });
        self.to_retransmit += u32::from(whole.needs_retransmission());
        self.sacked_segments += u32::from(whole.is_sacked());
    }

    /// Checks the sums and the order of the segments, for tests.
    pub(crate) fn audit(&self) -> Result<(), &'static str> {
        let mut fresh = Self::default();
        for segment in &self.segments {
            fresh.account(segment.marks, segment.len(), true);
            fresh.to_retransmit += u32::from(segment.needs_retransmission());
            fresh.sacked_segments += u32::from(segment.is_sacked());
        }
        let sums = |scoreboard: &Self| {
            (
                scoreboard.sacked,
                scoreboard.lost,
                scoreboard.retransmitted,
                scoreboard.to_retransmit,
                scoreboard.sacked_segments,
            )
        };
        if sums(&fresh) != sums(self) {
            return Err("the scoreboard's sums differ from those of its segments");
        }
        let mut sacked = 0;
        for segment in self.segments.iter().rev() {
            sacked = if segment.is_sacked() { sacked + 1 } else { 0 };
            if segment.is_sacked() && segment.run > sacked {
                return Err("a segment that is not SACKed would be skipped");
            }
        }
        if self.segments.iter().take(self.retransmit_from).any(SentSegment::needs_retransmission) {
            return Err("a segment that needs a retransmission would be skipped");
        }
        let contiguous = self.segments.iter().zip(self.segments.iter().skip(1)).all(|(a, b)| a.end == b.start);
        if contiguous && self.segments.iter().all(|segment| segment.len() > 0) {
            Ok(())
        } else {
            Err("the scoreboard's segments are not contiguous")
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
        // A segment that is retransmitted without being marked lost, such as a probe, counts once.
        if marks & (LOST | RETRANSMISSION_IN_FLIGHT) == LOST | RETRANSMISSION_IN_FLIGHT {
            change(&mut self.retransmitted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scoreboard(segments: u32) -> Scoreboard {
        let mut scoreboard = Scoreboard::default();
        for number in 0..segments {
            let start = Seq(u32::MAX - 150).plus(number * 100);
            scoreboard.push(SeqRange::new(start, start.plus(100)), Instant(number.into()));
        }
        scoreboard
    }

    fn at(bytes: u32) -> Seq {
        Seq(u32::MAX - 150).plus(bytes)
    }

    #[test]
    fn the_bytes_in_flight_follow_every_mark() {
        let mut scoreboard = scoreboard(10);
        assert_eq!((scoreboard.outstanding(), scoreboard.in_flight()), (1000, 1000));
        let mut seen = 0;
        scoreboard.sack(SeqRange::new(at(300), at(600)), |_| seen += 1);
        scoreboard.sack(SeqRange::new(at(300), at(700)), |_| seen += 1);
        assert_eq!((seen, scoreboard.sacked_segments(), scoreboard.in_flight()), (4, 4, 600));
        assert!(
            scoreboard.mark_lost(0) && scoreboard.mark_lost(1) && !scoreboard.mark_lost(1) && !scoreboard.mark_lost(3)
        );
        assert_eq!((scoreboard.in_flight(), scoreboard.first_to_retransmit()), (400, Some(0)));
        scoreboard.mark_retransmitted(0, Instant(50));
        assert_eq!((scoreboard.in_flight(), scoreboard.first_to_retransmit()), (500, Some(1)));
        assert!(scoreboard.mark_lost(0), "the retransmission was lost too");
        assert_eq!((scoreboard.in_flight(), scoreboard.first_to_retransmit()), (400, Some(0)));
        scoreboard.acknowledge(at(700), |_| seen += 1);
        assert_eq!(
            (seen, scoreboard.in_flight(), scoreboard.outstanding(), scoreboard.first_to_retransmit()),
            (7, 300, 300, None)
        );
        assert!(!scoreboard.has_marks());
    }

    /// Counts the steps of an acknowledgement in a window of 16,384 segments of which the first is lost, and one in the
    /// middle.
    #[test]
    fn runs_of_sacked_segments_are_passed_in_a_few_steps() {
        const SEGMENTS: u32 = 16_384;
        const HOLE: u32 = SEGMENTS / 2;
        let mut scoreboard = scoreboard(SEGMENTS);
        let steps = |scoreboard: &Scoreboard, from: u32| {
            core::iter::successors(Some(from as usize), |&index| Some(index + scoreboard.sacked_run(index)?)).count()
        };
        let (mut total, mut most) = (0, 0);
        for number in (1..SEGMENTS).filter(|&number| number != HOLE) {
            let first = if number < HOLE { 1 } else { HOLE + 1 };
            scoreboard.sack(SeqRange::new(at(first * 100), at(number * 100 + 100)), |_| ());
            // As RACK does.
            let of_this = steps(&scoreboard, 1) + if first > 1 { steps(&scoreboard, first) } else { 0 };
            (total, most) = (total + of_this, most.max(of_this));
            assert_eq!(scoreboard.skip_sacked(1) as u32, HOLE.min(number + 1));
            assert_eq!(scoreboard.skip_sacked(first as usize) as u32, number + 1);
        }
        assert!(most <= 6 && total <= 6 * SEGMENTS as usize, "{most} steps at most, {total} in total");
        scoreboard.audit().unwrap();
    }

    #[test]
    fn a_part_of_a_segment_can_be_acknowledged() {
        let mut scoreboard = scoreboard(2);
        scoreboard.mark_lost(0);
        scoreboard.acknowledge(at(40), |_| unreachable!("no whole segment"));
        assert_eq!((scoreboard.outstanding(), scoreboard.in_flight()), (160, 100));
    }

    #[test]
    fn reneging_clears_the_sack_marks() {
        let mut scoreboard = scoreboard(4);
        scoreboard.sack(SeqRange::new(at(200), at(400)), |_| ());
        assert!(!scoreboard.mark_all_lost());
        scoreboard.acknowledge(at(200), |_| ());
        assert!(scoreboard.mark_all_lost());
        assert_eq!(
            (scoreboard.in_flight(), scoreboard.sacked_segments(), scoreboard.first_to_retransmit()),
            (0, 0, Some(0))
        );
    }

    #[test]
    fn a_retransmitted_probe_counts_once() {
        let mut scoreboard = scoreboard(2);
        scoreboard.mark_retransmitted(1, Instant(9));
        assert_eq!(scoreboard.in_flight(), 200);
        assert!(scoreboard.mark_lost(1));
        assert_eq!(scoreboard.in_flight(), 100);
    }

    #[test]
    fn a_segment_is_split_with_its_marks() {
        let mut scoreboard = scoreboard(2);
        scoreboard.mark_all_lost();
        scoreboard.split(0, 60);
        scoreboard.mark_retransmitted(0, Instant(9));
        assert_eq!((scoreboard.len(), scoreboard.in_flight(), scoreboard.first_to_retransmit()), (3, 60, Some(1)));
        scoreboard.acknowledge(at(200), |_| ());
        assert!(scoreboard.is_empty() && !scoreboard.has_retransmissions());
    }
}
