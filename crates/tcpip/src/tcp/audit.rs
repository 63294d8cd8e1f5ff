//! Invariants of a connection, for tests, which cannot access its private state.
//!
//! They ensure that a connection never stalls: the peer may not answer, so a timer must run as long as data is
//! outstanding or waits for the peer's window.

use super::{
    connection::{Connection, State},
    send_buffer::Fin,
    timer::Timer,
};
use crate::time::{Instant, SECOND};

/// Longest allowed timer: the maximum retransmission timeout plus one second.
const LONGEST: u64 = 121 * SECOND;

impl Connection {
    /// Returns the first violated invariant. `queued` means that the connection is in the send queue, so
    /// `next_segment` will be called before time advances.
    pub(crate) fn audit(&self, now: Instant, queued: bool) -> Result<(), &'static str> {
        if self.is_closed() {
            return Ok(());
        }
        self.scoreboard.audit()?;
        let outstanding = self.send_buffer.nxt.since(self.send_buffer.una);
        check(
            self.scoreboard.outstanding() == outstanding,
            "SND.NXT - SND.UNA differs from the scoreboard's outstanding bytes",
        )?;
        check(outstanding == 0 || self.timer != Timer::Off, "data, SYN or FIN is outstanding and no timer runs")?;
        check(
            outstanding == 0 || !matches!(self.timer, Timer::Persist(_) | Timer::Corked(_)),
            "data is outstanding and the timer only probes the window",
        )?;
        check(
            outstanding > 0 || matches!(self.timer, Timer::Off | Timer::Persist(_) | Timer::Corked(_)),
            "nothing is outstanding and a timer waits for its acknowledgement",
        )?;
        let near = self.timer.deadline().is_none_or(|at| at <= now.plus(LONGEST));
        check(near, "the timer is further away than the longest timeout")?;
        let handshake = matches!(self.state, State::SynSent | State::SynReceived { .. });
        check(!handshake || outstanding > 0 || queued, "a SYN was not sent and is not queued")?;
        if !handshake && !queued {
            let waits = self.send_buffer.has_unsent();
            check(
                !waits || self.timer != Timer::Off,
                "data or FIN waits to be sent, nothing is outstanding, and no timer runs",
            )?;
            check(!self.ack.is_due() && self.probe.is_none(), "an acknowledgement or a probe is due and not sent")?;
        }
        let finishes = matches!(self.state, State::FinWait1 | State::Closing | State::LastAck);
        check(!finishes || self.send_buffer.fin != Fin::Open, "the connection is closing without a FIN")
    }
}

fn check(holds: bool, rule: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(rule) }
}
