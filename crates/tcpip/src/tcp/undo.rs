//! Undo of spurious recoveries: the Eifel algorithm (RFC 3522, RFC 4015).
//!
//! A path that becomes slower causes timeouts, and one that reorders looks like one that loses. Timestamps reveal
//! this: if the first acknowledgement after a retransmission echoes an earlier timestamp, the original had arrived.
//! The congestion window is then restored, the loss marks are cleared, and after a timeout the round-trip estimate is
//! replaced by the measured one. Timestamps tick in milliseconds, so a recovery that proves spurious within one tick
//! is not undone.

use super::{congestion::Congestion, segment::Header};

/// State before a recovery, to be restored if the recovery proves spurious.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    pub congestion: Congestion,
    /// Timestamp of the first retransmission.
    retransmitted: Option<u32>,
    /// Whether a timeout started the recovery.
    pub by_timer: bool,
}

impl Undo {
    pub(crate) const fn new(congestion: Congestion, by_timer: bool) -> Self {
        Self { congestion, retransmitted: None, by_timer }
    }

    /// Records the timestamp of the first retransmission.
    pub(crate) fn record_retransmission(&mut self, timestamp: u32) {
        self.retransmitted.get_or_insert(timestamp);
    }

    pub(crate) const fn has_retransmitted(&self) -> bool {
        self.retransmitted.is_some()
    }

    /// Returns the timestamp that `header` echoes, if it is older than the first retransmission: the original arrived.
    pub(crate) fn spurious_echo(&self, header: &Header) -> Option<u32> {
        let echo = header.options.timestamp.map(|timestamp| timestamp.echo).filter(|&echo| echo != 0)?;
        let retransmitted = self.retransmitted?;
        (echo.wrapping_sub(retransmitted).cast_signed() < 0).then_some(echo)
    }
}
