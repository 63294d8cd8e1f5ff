//! What must always be true of a connection, for tests: the ones that touch it cannot see inside.
//!
//! The rules say what keeps a connection from standing still. Whatever the peer has to answer for, it may never answer; so
//! as long as something is outstanding, or waits for the peer's leave, a timer must run.

use super::{
    connection::{Connection, State},
    outbox::Fin,
    timers::Timer,
};
use crate::time::{Instant, SECOND};

/// The retransmission timer's bound, and one that no keep-alive or patience of the settings' defaults exceeds.
const LONGEST: u64 = 121 * SECOND;

impl Connection {
    /// The first rule that is broken, if any. `queued`: whether it stands in the queue of those that send, and so will be
    /// asked for segments before time passes.
    pub(crate) fn audit(&self, now: Instant, queued: bool) -> Result<(), &'static str> {
        if self.is_closed() {
            return Ok(());
        }
        self.scoreboard.audit()?;
        let outstanding = self.outbox.nxt.since(self.outbox.una);
        check(self.scoreboard.outstanding() == outstanding, "what is outstanding is not what the scoreboard has")?;
        check(outstanding == 0 || self.timer != Timer::Off, "data, SYN or FIN is outstanding and no timer runs")?;
        check(
            outstanding == 0 || !matches!(self.timer, Timer::Persist(_)),
            "data is outstanding and the timer only probes the window",
        )?;
        check(
            outstanding > 0 || matches!(self.timer, Timer::Off | Timer::Persist(_)),
            "nothing is outstanding and a timer waits for its acknowledgement",
        )?;
        let near = self.timer.deadline().is_none_or(|at| at <= now.plus(LONGEST));
        check(near, "the timer is further away than the longest timeout")?;
        let handshake = matches!(self.state, State::SynSent | State::SynReceived { .. });
        check(!handshake || outstanding > 0 || queued, "a SYN is neither sent nor to be sent")?;
        if !handshake && !queued {
            let waits = self.outbox.has_unsent();
            check(
                !waits || self.timer != Timer::Off,
                "data or FIN waits to be sent, nothing is outstanding, and no timer runs",
            )?;
            check(!self.ack.is_due() && self.probe.is_none(), "an acknowledgement or a probe is due and not sent")?;
        }
        let finishes = matches!(self.state, State::FinWait1 | State::Closing | State::LastAck);
        check(!finishes || self.outbox.fin != Fin::Open, "the connection finishes without a FIN")
    }
}

fn check(holds: bool, rule: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(rule) }
}
