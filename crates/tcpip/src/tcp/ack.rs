//! Acknowledgement policy (RFC 9293, 3.8.6.3; RFC 5681, 4.2; RFC 5961, 7).
//!
//! A segment that is out of order or fills a gap, and a FIN, are acknowledged at once. In-order data is acknowledged
//! for every second full segment; less is delayed, so that a response can carry the acknowledgement of its request. A
//! connection starts in *quick* mode, in which nothing is delayed, because the peer's slow start depends on
//! acknowledgements. Quick mode ends with the first response that carries an acknowledgement. A merged run of
//! segments counts as one.

use crate::time::Instant;

/// Number of acknowledgements in quick mode, at the start and after a gap was filled.
const QUICK: u8 = 16;
/// Minimum time between two acknowledgements of segments outside the window. It breaks loops between two hosts that
/// both regard the other's segments as invalid.
pub(crate) const INVALID_INTERVAL: u64 = 500 * crate::time::MILLISECOND;

/// Acknowledgement that the peer has not been sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingAck {
    None,
    /// Due at this time.
    Delayed(Instant),
    /// Due now.
    Immediate,
}

/// Acknowledgement state of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckPolicy {
    pending: PendingAck,
    quick: u8,
    /// Bytes received since the last acknowledgement.
    bytes: u32,
    last_invalid: Option<Instant>,
}

impl AckPolicy {
    pub(crate) const fn new() -> Self {
        Self { pending: PendingAck::None, quick: QUICK, bytes: 0, last_invalid: None }
    }

    /// Records `bytes` received in order.
    pub(crate) fn in_order(&mut self, now: Instant, bytes: u32, mss: u32, delay: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.quick > 0 || self.bytes >= 2 * mss {
            self.pending = PendingAck::Immediate;
        } else if self.pending == PendingAck::None {
            self.pending = PendingAck::Delayed(now.plus(delay));
        }
    }

    /// Makes an acknowledgement due now, for example after an out-of-order segment, a duplicate or a FIN.
    pub(crate) fn ack_now(&mut self) {
        self.pending = PendingAck::Immediate;
    }

    /// Makes an acknowledgement due now and enters quick mode, because a gap was filled and the peer recovers from a
    /// loss.
    pub(crate) fn enter_quick_mode(&mut self) {
        self.quick = QUICK;
        self.pending = PendingAck::Immediate;
    }

    /// Enters or leaves quick mode. A delayed acknowledgement becomes due when it is entered.
    pub(crate) fn set_quick(&mut self, quick: bool) {
        self.quick = if quick { QUICK } else { 0 };
        if quick && self.is_pending() {
            self.ack_now();
        }
    }

    /// Returns whether an unacceptable segment may be acknowledged now.
    pub(crate) fn may_answer_invalid(&mut self, now: Instant) -> bool {
        let may = self.last_invalid.is_none_or(|last| now.nanos_since(last) >= INVALID_INTERVAL);
        if may {
            self.last_invalid = Some(now);
        }
        may
    }

    /// Returns whether an acknowledgement must be sent even without data.
    pub(crate) fn is_due(&self) -> bool {
        self.pending == PendingAck::Immediate
    }

    /// Returns whether received data is not acknowledged yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending != PendingAck::None
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.pending {
            PendingAck::Delayed(at) => Some(at),
            _ => None,
        }
    }

    /// Makes a delayed acknowledgement due if its time has come. Returns whether it did.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let due = self.deadline().is_some_and(|at| at <= now);
        if due {
            self.pending = PendingAck::Immediate;
        }
        due
    }

    /// Records that an acknowledgement was sent, with or without data.
    pub(crate) fn sent(&mut self, with_data: bool) {
        if with_data && self.pending != PendingAck::None {
            // A response that carries the acknowledgement of its request ends quick mode.
            self.quick = 0;
        }
        self.quick = self.quick.saturating_sub(1);
        self.pending = PendingAck::None;
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
        assert!(!policy.is_due() && policy.is_pending());
        policy.in_order(Instant(5), MSS, MSS, 40);
        assert!(policy.is_due());
    }

    #[test]
    fn a_single_segment_is_delayed_and_a_merged_run_is_not() {
        let mut policy = conversation();
        policy.in_order(Instant(0), 100, MSS, 40);
        policy.in_order(Instant(20), 100, MSS, 40);
        assert_eq!(policy.deadline(), Some(Instant(40)), "counted from the first segment");
        assert!(!policy.expire(Instant(39)) && policy.expire(Instant(40)) && policy.is_due());
        let mut policy = conversation();
        policy.in_order(Instant(0), 5 * MSS, MSS, 40);
        assert!(policy.is_due());
    }

    #[test]
    fn a_filled_gap_enters_quick_mode() {
        let mut policy = conversation();
        policy.enter_quick_mode();
        policy.sent(false);
        policy.in_order(Instant(0), 1, MSS, 40);
        assert!(policy.is_due());
    }

    #[test]
    fn answers_to_invalid_segments_are_rate_limited() {
        let mut policy = AckPolicy::new();
        assert!(policy.may_answer_invalid(Instant(0)));
        assert!(!policy.may_answer_invalid(Instant(INVALID_INTERVAL - 1)));
        assert!(policy.may_answer_invalid(Instant(INVALID_INTERVAL)));
    }
}
