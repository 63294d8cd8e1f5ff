//! Loss recovery, with NewReno where the peer has no SACK (RFC 6582, RFC 6675, RFC 5681).
//!
//! Recovery is the time from the first sign of a loss until everything sent before it is acknowledged; the window is cut
//! once in it. With SACK the scoreboard knows what is missing. Without, all there is to go by is how many duplicate
//! acknowledgements came: each says that *some* segment left the network, three in a row that the first one is lost, and
//! an acknowledgement that ends before the recovery point that the next one is lost as well.

use super::{scoreboard::Scoreboard, seq::Seq};

/// Duplicate acknowledgements that mean a loss.
const DUPLICATE_THRESHOLD: u32 = 3;

/// Where a connection is in recovering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Nothing is known to be lost.
    Open,
    /// A loss was found by SACK, RACK or duplicates; over when `point` is acknowledged.
    Fast { point: Seq },
    /// The retransmission timer went off; over when `point` is acknowledged.
    Timeout { point: Seq },
}

impl Recovery {
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Open)
    }

    /// Whether `una` ends it.
    pub(crate) const fn ends_at(self, una: Seq) -> bool {
        match self {
            Self::Open => false,
            Self::Fast { point } | Self::Timeout { point } => una.at_or_after(point),
        }
    }
}

/// What counts duplicates for a peer without SACK.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewReno {
    duplicates: u32,
    /// Losses before this point belong to a recovery that is over; duplicates below it are its echo (RFC 6582, 4.1).
    recover: Option<Seq>,
}

impl NewReno {
    /// Bytes the duplicates say have left the network.
    pub(crate) const fn delivered(&self, mss: u32) -> u32 {
        self.duplicates.saturating_mul(mss)
    }

    /// A duplicate acknowledgement of `una`. Whether recovery must begin; the first segment is then marked.
    pub(crate) fn duplicate(&mut self, una: Seq, recovery: Recovery, board: &mut Scoreboard) -> bool {
        self.duplicates = (self.duplicates + 1).min(board.len() as u32);
        let echo = self.recover.is_some_and(|point| una.at_or_before(point));
        if !recovery.is_open() || self.duplicates < DUPLICATE_THRESHOLD || echo {
            return false;
        }
        board.mark_lost(0)
    }

    /// `una` moved by `segments` in `recovery`: if that did not end it, the next segment is lost as well.
    pub(crate) fn advanced(&mut self, una: Seq, segments: u32, recovery: Recovery, board: &mut Scoreboard) {
        match recovery {
            Recovery::Fast { point } if una.before(point) => {
                self.duplicates = self.duplicates.saturating_sub(segments.saturating_sub(1));
                if !board.is_empty() {
                    board.mark_lost(0);
                }
            }
            _ => self.duplicates = 0,
        }
    }

    /// A recovery began or ended, or the timer went off, with everything before `point` sent.
    pub(crate) fn remember(&mut self, point: Seq) {
        self.recover = Some(point);
    }

    pub(crate) fn timeout(&mut self) {
        self.duplicates = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tcp::seq::SeqRange, time::Instant};

    fn board(segments: u32) -> Scoreboard {
        let mut board = Scoreboard::default();
        for number in 0..segments {
            board.push(SeqRange::new(Seq(number * 10), Seq(number * 10 + 10)), Instant(0));
        }
        board
    }

    #[test]
    fn the_third_duplicate_begins_and_partial_acknowledgements_go_on() {
        let (mut reno, mut board) = (NewReno::default(), board(6));
        assert!(!reno.duplicate(Seq(0), Recovery::Open, &mut board));
        assert!(!reno.duplicate(Seq(0), Recovery::Open, &mut board));
        assert!(reno.duplicate(Seq(0), Recovery::Open, &mut board));
        assert_eq!(board.first_waiting(), Some(0));
        let recovery = Recovery::Fast { point: Seq(60) };
        reno.remember(Seq(60));
        board.resent(0, Instant(1));
        board.acknowledge(Seq(20), |_| ());
        reno.advanced(Seq(20), 2, recovery, &mut board);
        assert_eq!(board.get(0).unwrap().start, Seq(20));
        assert_eq!(board.first_waiting(), Some(0), "the hole behind the first one");
        assert!(recovery.ends_at(Seq(60)) && !recovery.ends_at(Seq(59)));
    }

    #[test]
    fn duplicates_of_an_old_recovery_are_no_news() {
        let (mut reno, mut board) = (NewReno::default(), board(6));
        reno.remember(Seq(0));
        for _ in 0..5 {
            assert!(!reno.duplicate(Seq(0), Recovery::Open, &mut board));
        }
    }
}
