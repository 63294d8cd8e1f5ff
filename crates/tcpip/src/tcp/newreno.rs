//! State of loss recovery, and NewReno for peers without SACK (RFC 6582, RFC 6675, RFC 5681).
//!
//! A recovery lasts from the detection of a loss until everything that was sent before it is acknowledged. The window
//! is reduced once per recovery. Without SACK, losses are inferred from duplicate acknowledgements. Each shows that
//! *some* segment left the network, and three in a row that the first one is lost. An acknowledgement that ends
//! before the recovery point shows that the next segment is lost as well.

use super::{scoreboard::Scoreboard, seq::Seq};

/// Duplicate acknowledgements that indicate a loss.
const DUPLICATE_THRESHOLD: u32 = 3;

/// Recovery state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// No loss is known.
    Open,
    /// SACK, RACK or duplicate acknowledgements revealed a loss. The recovery ends when `point` is acknowledged.
    Fast { point: Seq },
    /// The retransmission timer expired. The recovery ends when `point` is acknowledged.
    Timeout { point: Seq },
}

impl Recovery {
    pub(crate) const fn is_open(self) -> bool {
        matches!(self, Self::Open)
    }

    /// Returns whether the acknowledgement of `una` ends the recovery.
    pub(crate) const fn ends_at(self, una: Seq) -> bool {
        match self {
            Self::Open => false,
            Self::Fast { point } | Self::Timeout { point } => una.at_or_after(point),
        }
    }
}

/// Counter of duplicate acknowledgements, for a peer without SACK.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewReno {
    duplicates: u32,
    /// End of the last recovery. Duplicates up to this point are caused by its retransmissions (RFC 6582, 4.1).
    recover: Option<Seq>,
}

impl NewReno {
    /// Returns the bytes that have left the network according to the duplicates.
    pub(crate) const fn delivered(&self, mss: u32) -> u32 {
        self.duplicates.saturating_mul(mss)
    }

    /// Counts a duplicate acknowledgement of `una`. Returns whether a recovery starts; the first segment is then
    /// marked lost.
    pub(crate) fn duplicate_ack(&mut self, una: Seq, recovery: Recovery, scoreboard: &mut Scoreboard) -> bool {
        self.duplicates = (self.duplicates + 1).min(scoreboard.len() as u32);
        let stale = self.recover.is_some_and(|point| una.at_or_before(point));
        if !recovery.is_open() || self.duplicates < DUPLICATE_THRESHOLD || stale {
            return false;
        }
        scoreboard.mark_lost(0)
    }

    /// Handles an acknowledgement that advanced to `una` by `segments`. During a recovery the next segment is lost as
    /// well.
    pub(crate) fn ack_advanced(&mut self, una: Seq, segments: u32, recovery: Recovery, scoreboard: &mut Scoreboard) {
        match recovery {
            Recovery::Fast { point } if una.before(point) => {
                self.duplicates = self.duplicates.saturating_sub(segments.saturating_sub(1));
                if !scoreboard.is_empty() {
                    scoreboard.mark_lost(0);
                }
            }
            _ => self.duplicates = 0,
        }
    }

    /// Sets the recovery point: everything before `point` was sent when a recovery or a timeout began.
    pub(crate) fn set_recovery_point(&mut self, point: Seq) {
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

    fn scoreboard(segments: u32) -> Scoreboard {
        let mut scoreboard = Scoreboard::default();
        for number in 0..segments {
            scoreboard.push(SeqRange::new(Seq(number * 10), Seq(number * 10 + 10)), Instant(0));
        }
        scoreboard
    }

    #[test]
    fn the_third_duplicate_starts_a_recovery_and_partial_acks_continue_it() {
        let (mut reno, mut scoreboard) = (NewReno::default(), scoreboard(6));
        assert!(!reno.duplicate_ack(Seq(0), Recovery::Open, &mut scoreboard));
        assert!(!reno.duplicate_ack(Seq(0), Recovery::Open, &mut scoreboard));
        assert!(reno.duplicate_ack(Seq(0), Recovery::Open, &mut scoreboard));
        assert_eq!(scoreboard.first_to_retransmit(), Some(0));
        let recovery = Recovery::Fast { point: Seq(60) };
        reno.set_recovery_point(Seq(60));
        scoreboard.mark_retransmitted(0, Instant(1));
        scoreboard.acknowledge(Seq(20), |_| ());
        reno.ack_advanced(Seq(20), 2, recovery, &mut scoreboard);
        assert_eq!(scoreboard.get(0).unwrap().start, Seq(20));
        assert_eq!(scoreboard.first_to_retransmit(), Some(0), "the hole behind the first one");
        assert!(recovery.ends_at(Seq(60)) && !recovery.ends_at(Seq(59)));
    }

    #[test]
    fn duplicates_of_an_old_recovery_are_ignored() {
        let (mut reno, mut scoreboard) = (NewReno::default(), scoreboard(6));
        reno.set_recovery_point(Seq(0));
        for _ in 0..5 {
            assert!(!reno.duplicate_ack(Seq(0), Recovery::Open, &mut scoreboard));
        }
    }
}
