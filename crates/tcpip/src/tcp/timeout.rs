//! Timers of a connection (RFC 6298, RFC 8985, RFC 9293 3.8).
//!
//! The retransmission timer has several purposes, one at a time: retransmission, tail loss probe, RACK's reordering
//! timer, window probe, and end of a cork. A connection has one deadline, the earliest of this timer, the delayed acknowledgement,
//! keep-alive, FIN-WAIT-2, linger and TCP_DEFER_ACCEPT.

use super::{
    connection::{Connection, Context, Origin, Owner, Probe, State},
    keepalive::KeepaliveAction,
    newreno::Recovery,
    timer::Timer,
};
use crate::{
    error::SocketError,
    event::Readiness,
    time::{Instant, earliest},
};

impl Connection {
    /// Returns the time of the next `handle_timeout`.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.is_closed() {
            return None;
        }
        let fin_wait_2 = match self.state {
            State::FinWait2 { until } => until,
            _ => None,
        };
        let keepalive = self
            .keepalive_timer
            .as_ref()
            .filter(|_| self.may_keep_alive())
            .map(|keepalive_timer| keepalive_timer.deadline());
        let own = earliest(self.timer.deadline(), self.ack.deadline());
        let deadline = earliest(earliest(own, keepalive), fin_wait_2);
        match self.owner {
            Owner::HalfOpen(_) => earliest(deadline, self.defer_until),
            Owner::Orphan => earliest(deadline, self.linger_until),
            Owner::Queued(_) | Owner::Application => deadline,
        }
    }

    /// Returns whether nothing is in flight. Data that waits for a closed window does not matter: the peer may be gone.
    fn may_keep_alive(&self) -> bool {
        let waits = self.send_buffer.has_unsent() && !matches!(self.timer, Timer::Persist(_));
        self.is_synchronized() && self.scoreboard.is_empty() && !waits
    }

    /// Handles the timers that are due; `next_segment` returns what must be sent. Returns whether the peer must be
    /// reset.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) -> bool {
        if self.ack.expire(cx.now) {
            cx.counters.tcp_delayed_acks += 1;
        }
        if self.timer.deadline().is_some_and(|at| at <= cx.now) {
            self.handle_timer(cx);
        }
        if self.keep_alive(cx) {
            return true;
        }
        if self.defer_until.is_some_and(|until| until <= cx.now) {
            self.defer_until = None;
        }
        if let State::FinWait2 { until: Some(until) } = self.state
            && until <= cx.now
        {
            self.finish();
        }
        self.linger_until.is_some_and(|until| until <= cx.now) && !self.is_closed()
    }

    fn handle_timer(&mut self, cx: &mut Context<'_>) {
        match core::mem::replace(&mut self.timer, Timer::Off) {
            Timer::Off => {}
            Timer::Retransmit(_) => self.retransmission_timeout(cx),
            Timer::LossProbe(_) => {
                self.probe = Some(Probe::Loss);
                self.timer = Timer::Retransmit(cx.now.plus(self.rtt.timeout()));
            }
            Timer::Reorder(_) => {
                self.rearm(cx);
                if self.detect_losses(cx) {
                    // Nothing was delivered, so only the first retransmission may leave.
                    self.limit_recovery(0, false);
                }
            }
            Timer::Persist(_) => {
                if self.is_window_given_up(cx) {
                    cx.counters.tcp_timeouts_aborted += 1;
                    self.fail(SocketError::TimedOut);
                    return;
                }
                self.probe = Some(Probe::Window);
                self.timer = Timer::Persist(self.stall.deadline(cx.now, self.rtt.timeout(), self.user_timeout));
            }
            Timer::Corked(_) => {
                self.more = false;
                self.probe = Some(Probe::Corked);
            }
        }
    }

    /// Counts a probe of the closed window. Returns whether the connection is given up instead.
    fn is_window_given_up(&mut self, cx: &Context<'_>) -> bool {
        let tries = self.rtt.back_off();
        let unanswered = self.stall.probed(cx.now);
        unanswered >= cx.settings.retries
            || self.owner == Owner::Orphan && tries > cx.settings.orphan_retries
            || self.user_timeout.is_some_and(|limit| self.stall.exceeds(limit, cx.now))
    }

    /// Counts a retransmission timeout. Returns whether the connection is given up instead.
    fn is_given_up(&mut self, cx: &Context<'_>) -> bool {
        let tries = self.rtt.back_off();
        self.stall.timed_out(cx.now);
        let stalls = self.user_timeout.is_some_and(|limit| self.stall.exceeds(limit, cx.now));
        let limit = match (self.state, self.owner) {
            (State::SynSent | State::SynReceived { .. }, _) => self.syn_retries.unwrap_or(cx.settings.syn_retries),
            (_, Owner::Orphan) => cx.settings.orphan_retries,
            _ if self.user_timeout.is_some() => return stalls,
            _ => cx.settings.retries,
        };
        stalls || tries > limit
    }

    fn retransmission_timeout(&mut self, cx: &mut Context<'_>) {
        cx.counters.tcp_timeouts += 1;
        if self.is_given_up(cx) {
            self.give_up(cx);
            return;
        }
        let (outstanding, mss) = (self.scoreboard.outstanding(), self.mss());
        let first = !matches!(self.recovery, Recovery::Timeout { .. }) && !self.ecn.is_reduced(self.send_buffer.una);
        if self.scoreboard.mark_all_lost() {
            cx.counters.tcp_sack_reneging += 1;
        }
        if self.is_synchronized() {
            self.save_for_undo(true);
            // With timestamps, one acknowledgement decides (`undo`).
            self.frto.timed_out(first && self.sack && self.timestamps.is_none());
            self.congestion.timeout(outstanding, mss, first);
            self.ecn.reduced(self.send_buffer.nxt);
            self.recovery = Recovery::Timeout { point: self.send_buffer.nxt };
            self.reno.set_recovery_point(self.send_buffer.nxt);
        }
        self.reno.timeout();
        self.rack.forget_probe();
        self.timer = Timer::Retransmit(self.stall.deadline(cx.now, self.rtt.timeout(), self.user_timeout));
    }

    fn give_up(&mut self, cx: &mut Context<'_>) {
        match self.state {
            State::SynSent | State::SynReceived { .. } => cx.counters.tcp_attempt_failures += 1,
            _ => cx.counters.tcp_timeouts_aborted += 1,
        }
        if matches!(self.state, State::SynReceived { origin: Origin::Listener }) {
            self.finish();
        } else {
            self.fail(SocketError::TimedOut);
        }
    }

    /// Handles the keep-alive timer. Returns whether the connection must be aborted with a reset.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.may_keep_alive() {
            return false;
        }
        let Some(keepalive_timer) = &mut self.keepalive_timer else { return false };
        match keepalive_timer.expire(cx.now, self.user_timeout) {
            KeepaliveAction::Wait => false,
            KeepaliveAction::Probe => {
                self.probe = Some(Probe::Keepalive);
                false
            }
            KeepaliveAction::GiveUp => {
                cx.counters.tcp_timeouts_aborted += 1;
                self.error = Some(SocketError::TimedOut);
                self.edges |= Readiness::ERROR;
                true
            }
        }
    }

    /// Starts the timer after a segment was sent, and restarts a pending loss probe.
    pub(crate) fn arm_after_sending(&mut self, cx: &Context<'_>) {
        match self.timer {
            Timer::Off | Timer::Persist(_) | Timer::Corked(_) | Timer::LossProbe(_) => self.rearm(cx),
            Timer::Retransmit(_) | Timer::Reorder(_) => {}
        }
    }

    /// Starts the timer for the current state.
    pub(crate) fn rearm(&mut self, cx: &Context<'_>) {
        if self.scoreboard.is_empty() {
            self.timer = Timer::Off;
            return;
        }
        let rto = self.rtt.timeout();
        let may_probe = self.sack
            && self.recovery.is_open()
            && !self.scoreboard.has_marks()
            && !self.rack.is_probing()
            && self.rtt.backoff() == 0;
        self.timer = if may_probe {
            let timeout = self.rack.probe_timeout(self.rtt.srtt(), self.scoreboard.len(), rto);
            Timer::LossProbe(cx.now.plus(timeout))
        } else {
            Timer::Retransmit(cx.now.plus(rto))
        };
    }
}
