//! Was anything lost at all? Undoing what followed from a retransmission that was not needed (RFC 3522, RFC 4015).
//!
//! A path that became slow makes the timer go off, and one that reorders looks like one that loses. The Eifel algorithm
//! tells by timestamps: if the first acknowledgement after a retransmission echoes a stamp from before it, the original had
//! arrived. Then the window is put back, what was believed lost is believed to be on its way again, and the timeout learns
//! how long the round trip really took. Stamps tick in milliseconds: a mistake that shows within one is not undone.

use super::{
    congestion::Congestion,
    connection::{Connection, Context},
    isn,
    newreno::Recovery,
    segment::Header,
};
use crate::time::MILLISECOND;

/// What was before a recovery, in case it turns out that nothing was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    congestion: Congestion,
    /// The stamp of the first retransmission, once there was one.
    resent: Option<u32>,
    /// It began with the timer, which was too short then.
    by_timer: bool,
}

impl Connection {
    /// A recovery begins: nothing was changed yet.
    pub(crate) fn remember_for_undo(&mut self, by_timer: bool) {
        if self.timestamps.is_some() && self.recovery.is_open() {
            self.undo = Some(Box::new(Undo { congestion: self.congestion, resent: None, by_timer }));
        }
    }

    /// A segment is sent again.
    pub(crate) fn stamp_for_undo(&mut self, cx: &Context<'_>) {
        if let Some(undo) = &mut self.undo {
            undo.resent.get_or_insert(isn::timestamp(cx.now, self.timestamp_offset));
        }
    }

    /// `bytes` were acknowledged by `header`: the first time after a retransmission it tells whether that was needed.
    pub(crate) fn undo_if_spurious(&mut self, cx: &mut Context<'_>, header: &Header, bytes: u32) {
        let Some(Undo { congestion, resent: Some(resent), by_timer }) = self.undo.as_deref().copied() else { return };
        self.undo = None;
        let echo = header.options.timestamp.map(|timestamp| timestamp.echo).filter(|&echo| echo != 0);
        let Some(echo) = echo.filter(|echo| echo.wrapping_sub(resent).cast_signed() < 0) else { return };
        if self.recovery.is_open() {
            return;
        }
        cx.counters.tcp_undone += 1;
        self.recovery = Recovery::Open;
        self.recovery_begins = false;
        self.scoreboard.forget_losses();
        self.congestion = congestion;
        self.congestion.resume(self.in_flight(), bytes, self.mss());
        if by_timer {
            let took = isn::timestamp(cx.now, self.timestamp_offset).wrapping_sub(echo);
            // No more than is plausible: a peer that never updates its echo would have us wait for minutes.
            self.rtt.restart((u64::from(took) * MILLISECOND).min(self.rtt.plausible()));
        }
        self.rearm(cx);
    }
}
