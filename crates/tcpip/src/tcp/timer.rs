//! Retransmission timer: one timer with several purposes, of which one applies at a time.

use crate::time::Instant;

/// Purpose and deadline of the retransmission timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    Off,
    /// Retransmission timeout (RFC 6298).
    Retransmit(Instant),
    /// Tail loss probe (RFC 8985).
    LossProbe(Instant),
    /// Reordering timer (RFC 8985).
    Reorder(Instant),
    /// Zero-window probe (RFC 9293, 3.8.6.1).
    Persist(Instant),
    /// End of the time for which a small segment is held back (TCP_CORK, MSG_MORE).
    Corked(Instant),
}

impl Timer {
    pub(crate) const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Off => None,
            Self::Retransmit(at) | Self::LossProbe(at) | Self::Reorder(at) | Self::Persist(at) | Self::Corked(at) => {
                Some(at)
            }
        }
    }
}
