//! Undo of spurious recoveries: how they are detected, and the state that is restored (RFC 3522, RFC 3708, RFC 4015).
//!
//! A path that becomes slower causes timeouts, and one that reorders looks like one that loses. Three signals reveal
//! this:
//!
//! * *Timestamps* (Eifel, RFC 3522). If the first acknowledgement after a retransmission echoes an earlier timestamp, the
//!   original had arrived. Timestamps tick in milliseconds, so a recovery that proves spurious within one tick is not
//!   detected.
//! * *Duplicates that the peer reports* (DSACK, RFC 3708). If as many bytes as were retransmitted arrived twice, nothing was
//!   lost. The reports arrive a round trip after the retransmissions, when the recovery is often over; the state is kept
//!   until the next one. A report of bytes outside the recovery is that of a packet that the network duplicated.
//! * *Originals that still arrive after a timeout* ([`frto`](super::frto)).
//!
//! The response is RFC 4015's. The congestion window is restored without a burst, the loss marks are cleared, and after a
//! timeout the round-trip estimate is replaced by the measured one, if there is one.

use super::{
    congestion::Congestion,
    segment::Header,
    seq::{Seq, SeqRange},
};

/// State before a recovery, to be restored if the recovery proves spurious.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    pub congestion: Congestion,
    /// Timestamp of the first retransmission.
    retransmitted: Option<u32>,
    echo_checked: bool,
    /// Whether a timeout started the recovery.
    pub by_timer: bool,
    /// What was in flight at the start of the recovery.
    range: SeqRange,
    /// Bytes that were retransmitted, and bytes that the peer reported as duplicates.
    sent_again: u32,
    duplicates: u32,
}

impl Undo {
    /// Creates the state at the start of a recovery of what is in flight, from `una` to `nxt`.
    pub(crate) const fn new(congestion: Congestion, by_timer: bool, una: Seq, nxt: Seq) -> Self {
        let range = SeqRange { start: una, end: nxt };
        Self { congestion, retransmitted: None, echo_checked: false, by_timer, range, sent_again: 0, duplicates: 0 }
    }

    /// Records a retransmission of `bytes` with a timestamp.
    pub(crate) fn record_retransmission(&mut self, timestamp: u32, bytes: u32) {
        self.retransmitted.get_or_insert(timestamp);
        self.sent_again = self.sent_again.saturating_add(bytes);
    }

    /// Records that the peer received `block` twice.
    pub(crate) fn record_duplicate(&mut self, block: SeqRange) {
        if block.start.at_or_after(self.range.start) && block.end.at_or_before(self.range.end) {
            self.duplicates = self.duplicates.saturating_add(block.len());
        }
    }

    /// Returns whether everything that was retransmitted had arrived.
    pub(crate) const fn all_duplicates(&self) -> bool {
        self.sent_again > 0 && self.duplicates >= self.sent_again
    }

    /// Returns the timestamp that `header`, the first acknowledgement after the retransmission, echoes, if it is older: the
    /// original arrived. Later acknowledgements show nothing.
    pub(crate) fn take_spurious_echo(&mut self, header: &Header) -> Option<u32> {
        let retransmitted = self.retransmitted.filter(|_| !self.echo_checked)?;
        self.echo_checked = true;
        let echo = header.options.timestamp.map(|timestamp| timestamp.echo).filter(|&echo| echo != 0)?;
        (echo.wrapping_sub(retransmitted).cast_signed() < 0).then_some(echo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CongestionControl;

    #[test]
    fn a_recovery_is_spurious_when_all_of_it_arrived_twice() {
        let congestion = Congestion::new(CongestionControl::Cubic, 1000);
        let block = |from: u32| SeqRange::new(Seq(from), Seq(from + 1000));
        let mut undo = Undo::new(congestion, false, Seq(5000), Seq(9000));
        undo.record_duplicate(block(5000));
        assert!(!undo.all_duplicates(), "nothing was retransmitted");
        let mut undo = Undo::new(congestion, false, Seq(5000), Seq(9000));
        undo.record_retransmission(7, 1000);
        undo.record_retransmission(7, 1000);
        undo.record_duplicate(block(4000));
        undo.record_duplicate(block(9000));
        undo.record_duplicate(block(5000));
        assert!(!undo.all_duplicates(), "the network duplicated two others");
        undo.record_duplicate(block(6000));
        assert!(undo.all_duplicates());
    }
}
