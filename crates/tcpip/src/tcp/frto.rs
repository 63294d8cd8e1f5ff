//! F-RTO: detection of spurious retransmission timeouts (RFC 5682, section 3, the variant for SACK).
//!
//! A path that becomes slower makes the timer expire although nothing was lost. Without timestamps the acknowledgement of the
//! first retransmission looks like that of the original. (With timestamps it does not, and this algorithm is not used.) So after the first retransmission nothing else is repeated. When
//! an acknowledgement advances, up to two *new* segments are sent, and the next acknowledgement decides:
//!
//! * it covers data that was sent before the timeout and never repeated: the originals still arrive, and the timeout was
//!   spurious. The recovery is undone ([`undo`](super::undo));
//! * it covers only the repeated or the new data: the rest was lost, and is retransmitted as usual.
//!
//! A real loss costs nothing by this, since the two new segments take the place of two retransmissions. If there is nothing
//! new to send, or the window is full, the timeout counts as genuine.

/// New segments that are sent instead of retransmissions.
const NEW_SEGMENTS: u8 = 2;

/// State of the detection, with the steps of the RFC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Frto {
    /// No timeout, or its cause is decided.
    #[default]
    Off,
    /// The first segment was retransmitted, and nothing has advanced since (step 2).
    Retransmitted,
    /// New segments are sent, this many at most (step 3).
    Probing { left: u8 },
}

/// What an acknowledgement after the timeout shows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evidence {
    /// It advances SND.UNA.
    pub advances: bool,
    /// It covers everything that was sent before the timeout.
    pub completes: bool,
    /// It covers, in sequence or by SACK, a segment that was sent before the timeout and not repeated.
    pub original: bool,
    /// It reports something by SACK.
    pub sacks: bool,
    /// There is new data, and the peer's window has room for it.
    pub can_send: bool,
}

impl Frto {
    /// Starts the detection at a timeout, if it is the first one of a recovery.
    pub(crate) fn timed_out(&mut self, first: bool) {
        *self = if first { Self::Retransmitted } else { Self::Off };
    }

    /// Handles an acknowledgement. Returns whether the timeout was spurious.
    pub(crate) fn acknowledged(&mut self, evidence: Evidence) -> bool {
        match *self {
            Self::Off => false,
            Self::Retransmitted if !evidence.advances => false,
            Self::Retransmitted => {
                let decided = evidence.completes || !evidence.can_send;
                *self = if decided { Self::Off } else { Self::Probing { left: NEW_SEGMENTS } };
                false
            }
            // An update of the window, for example.
            Self::Probing { .. } if !evidence.advances && !evidence.sacks => false,
            Self::Probing { .. } => {
                *self = Self::Off;
                evidence.original
            }
        }
    }

    /// Returns whether retransmissions wait for the decision.
    pub(crate) const fn holds_retransmissions(self) -> bool {
        matches!(self, Self::Probing { .. })
    }

    /// Returns whether a new segment is sent now.
    pub(crate) const fn wants_new_segment(self) -> bool {
        matches!(self, Self::Probing { left: 1.. })
    }

    /// Records that a new segment was sent, or that there is none. If none was sent at all, the detection ends.
    pub(crate) fn new_segment(&mut self, sent: bool) {
        if let Self::Probing { left } = *self {
            *self = match (sent, left) {
                (true, _) => Self::Probing { left: left.saturating_sub(1) },
                (false, NEW_SEGMENTS) => Self::Off,
                (false, _) => Self::Probing { left: 0 },
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADVANCES: Evidence =
        Evidence { advances: true, completes: false, original: false, sacks: false, can_send: true };

    fn probing() -> Frto {
        let mut frto = Frto::default();
        frto.timed_out(true);
        assert!(!frto.acknowledged(Evidence { sacks: true, ..Evidence::default() }), "a duplicate decides nothing");
        assert!(!frto.acknowledged(ADVANCES) && frto.wants_new_segment());
        frto
    }

    #[test]
    fn originals_that_arrive_show_a_spurious_timeout() {
        let mut frto = probing();
        frto.new_segment(true);
        frto.new_segment(true);
        assert!(!frto.wants_new_segment() && frto.holds_retransmissions());
        assert!(!frto.acknowledged(Evidence::default()), "no evidence");
        assert!(frto.acknowledged(Evidence { original: true, ..ADVANCES }));
        assert_eq!(frto, Frto::Off);
    }

    #[test]
    fn duplicates_show_a_loss() {
        let mut frto = probing();
        frto.new_segment(true);
        assert!(!frto.acknowledged(Evidence { sacks: true, ..Evidence::default() }));
        assert_eq!(frto, Frto::Off);
    }

    #[test]
    fn a_timeout_is_genuine_without_new_data_and_after_another_one() {
        let mut frto = Frto::default();
        frto.timed_out(true);
        frto.acknowledged(Evidence { can_send: false, ..ADVANCES });
        assert_eq!(frto, Frto::Off);
        let mut frto = probing();
        frto.new_segment(false);
        assert_eq!(frto, Frto::Off);
        let mut frto = probing();
        frto.timed_out(false);
        assert_eq!(frto, Frto::Off);
        frto.timed_out(true);
        frto.acknowledged(Evidence { completes: true, ..ADVANCES });
        assert_eq!(frto, Frto::Off);
    }
}
