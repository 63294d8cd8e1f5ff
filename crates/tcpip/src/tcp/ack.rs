//! When to acknowledge (RFC 9293, 3.8.6.3; RFC 5681, 4.2; RFC 5961, 7).
//!
//! A segment out of order, one that fills a gap and a FIN are acknowledged at once. In order, every second full segment
//! is, and less waits for company, so that a response can carry the acknowledgement of its request. A connection begins
//! with some *quick* acknowledgements, which the peer's slow start lives on, until it shows to be a conversation. A merged
//! run of segments is one decision.

use crate::time::Instant;

/// Acknowledgements at the start, and after a gap was filled, that do not wait.
const QUICK: u8 = 16;
/// The least time between two acknowledgements of segments that are out of the window (as a counter to loops of two
/// hosts that each believe the other wrong).
const INVALID_INTERVAL: u64 = 500 * crate::time::MILLISECOND;

/// What is owed to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Nothing,
    /// By then.
    Later(Instant),
    /// At once.
    Now,
}

/// The acknowledgements of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckPolicy {
    owed: Owed,
    quick: u8,
    /// Bytes received since the last acknowledgement.
    bytes: u32,
    last_invalid: Option<Instant>,
}

impl AckPolicy {
    pub(crate) const fn new() -> Self {
        Self { owed: Owed::Nothing, quick: QUICK, bytes: 0, last_invalid: None }
    }

    /// `bytes` arrived in order.
    pub(crate) fn in_order(&mut self, now: Instant, bytes: u32, mss: u32, delay: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.quick > 0 || self.bytes >= 2 * mss {
            self.owed = Owed::Now;
        } else if self.owed == Owed::Nothing {
            self.owed = Owed::Later(now.plus(delay));
        }
    }

    /// Something arrived that must be answered at once: out of order, a duplicate, a FIN.
    pub(crate) fn at_once(&mut self) {
        self.owed = Owed::Now;
    }

    /// A gap was filled or opened: the peer recovers and needs to hear of everything.
    pub(crate) fn quick_again(&mut self) {
        self.quick = QUICK;
        self.owed = Owed::Now;
    }

    /// Whether an acknowledgement of a segment that is not acceptable may be sent now.
    pub(crate) fn may_answer_invalid(&mut self, now: Instant) -> bool {
        let may = self.last_invalid.is_none_or(|last| now.nanos_since(last) >= INVALID_INTERVAL);
        if may {
            self.last_invalid = Some(now);
        }
        may
    }

    /// Whether an acknowledgement must go out even if nothing else does.
    pub(crate) fn is_due(&self) -> bool {
        self.owed == Owed::Now
    }

    /// Whether anything waits to be acknowledged.
    pub(crate) fn is_owed(&self) -> bool {
        self.owed != Owed::Nothing
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.owed {
            Owed::Later(at) => Some(at),
            _ => None,
        }
    }

    /// Time passed. Whether a delayed acknowledgement has become due.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let due = self.deadline().is_some_and(|at| at <= now);
        if due {
            self.owed = Owed::Now;
        }
        due
    }

    /// A segment with an acknowledgement went out, with data or bare.
    pub(crate) fn sent(&mut self, with_data: bool) {
        if with_data && self.owed != Owed::Nothing {
            // A request and its response: the response carries the acknowledgement.
            self.quick = 0;
        }
        self.quick = self.quick.saturating_sub(1);
        self.owed = Owed::Nothing;
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;

    fn conversation() -> AckPolicy {
        let mut policy = AckPolicy::new();
        policy.in_order(Instant(0), 1, MSS, 40);
        policy.sent(true);
        policy
    }

    #[test]
    fn quick_at_the_start_and_every_second_segment_later() {
        let mut policy = AckPolicy::new();
        for _ in 0..QUICK {
            policy.in_order(Instant(0), MSS, MSS, 40);
            assert!(policy.is_due());
            policy.sent(false);
        }
        policy.in_order(Instant(0), MSS, MSS, 40);
        assert!(!policy.is_due() && policy.is_owed());
        policy.in_order(Instant(5), MSS, MSS, 40);
        assert!(policy.is_due());
    }

    #[test]
    fn a_lone_segment_waits_and_a_merged_run_does_not() {
        let mut policy = conversation();
        policy.in_order(Instant(0), 100, MSS, 40);
        policy.in_order(Instant(20), 100, MSS, 40);
        assert_eq!(policy.deadline(), Some(Instant(40)), "from the first");
        assert!(!policy.expire(Instant(39)) && policy.expire(Instant(40)) && policy.is_due());
        let mut policy = conversation();
        policy.in_order(Instant(0), 5 * MSS, MSS, 40);
        assert!(policy.is_due());
    }

    #[test]
    fn a_gap_makes_it_quick_again() {
        let mut policy = conversation();
        policy.quick_again();
        policy.sent(false);
        policy.in_order(Instant(0), 1, MSS, 40);
        assert!(policy.is_due());
    }

    #[test]
    fn answers_to_nonsense_are_rare() {
        let mut policy = AckPolicy::new();
        assert!(policy.may_answer_invalid(Instant(0)));
        assert!(!policy.may_answer_invalid(Instant(INVALID_INTERVAL - 1)));
        assert!(policy.may_answer_invalid(Instant(INVALID_INTERVAL)));
    }
}
