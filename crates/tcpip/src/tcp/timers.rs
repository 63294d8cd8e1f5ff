//! What a connection does when time passes (RFC 6298, RFC 8985, RFC 9293 3.8).
//!
//! The retransmission timer is one timer with several meanings, of which only one applies at a time: retransmit, probe
//! for a lost tail, look again for what RACK was patient with, probe a closed window. A connection tells one deadline, the
//! earliest of this timer, the delayed acknowledgement, the keep-alive and the end of its patience.

use super::{
    connection::{Connection, Context, Origin, Owner, Probe, State},
    keepalive::KeepaliveStep,
    newreno::Recovery,
};
use crate::{
    error::SocketError,
    event::Readiness,
    time::{Instant, earliest},
};

/// The retransmission timer and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    Off,
    /// RFC 6298's.
    Retransmit(Instant),
    /// RFC 8985's tail loss probe.
    LossProbe(Instant),
    /// RFC 8985's reordering timer.
    Reorder(Instant),
    /// RFC 9293's zero-window probe.
    Persist(Instant),
}

impl Timer {
    pub(crate) const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Off => None,
            Self::Retransmit(at) | Self::LossProbe(at) | Self::Reorder(at) | Self::Persist(at) => Some(at),
        }
    }
}

impl Connection {
    /// When time matters next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.is_closed() {
            return None;
        }
        let patience = match self.state {
            State::FinWait2 { until } => until,
            _ => None,
        };
        let keepalive = self.prober.as_ref().filter(|_| self.may_keep_alive()).map(|prober| prober.deadline());
        let own = earliest(self.timer.deadline(), self.ack.deadline());
        earliest(earliest(own, keepalive), earliest(patience, self.linger_until))
    }

    fn may_keep_alive(&self) -> bool {
        self.is_synchronized() && self.scoreboard.is_empty() && !self.outbox.has_unsent()
    }

    /// Time passed. What must be sent, `next_segment` sends. Whether the peer must be reset.
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
                self.detect_losses(cx);
            }
            Timer::Persist(_) => {
                let tries = self.rtt.back_off();
                if self.owner == Owner::Nobody && tries > cx.settings.orphan_retries {
                    cx.counters.tcp_timeouts_aborted += 1;
                    self.fail(SocketError::TimedOut);
                    return;
                }
                self.probe = Some(Probe::Window);
                self.timer = Timer::Persist(cx.now.plus(self.rtt.timeout()));
            }
        }
    }

    fn retransmission_timeout(&mut self, cx: &mut Context<'_>) {
        cx.counters.tcp_timeouts += 1;
        let tries = self.rtt.back_off();
        let limit = match (self.state, self.owner) {
            (State::SynSent | State::SynReceived { .. }, _) => cx.settings.syn_retries,
            (_, Owner::Nobody) => cx.settings.orphan_retries,
            _ => cx.settings.retries,
        };
        if tries > limit {
            self.give_up(cx);
            return;
        }
        let (outstanding, mss) = (self.scoreboard.outstanding(), self.mss());
        let first = !matches!(self.recovery, Recovery::Timeout { .. });
        if self.scoreboard.mark_all_lost() {
            cx.counters.tcp_sack_reneging += 1;
        }
        if self.is_synchronized() {
            self.remember_for_undo(true);
            self.congestion.timeout(outstanding, mss, first);
            self.recovery = Recovery::Timeout { point: self.outbox.nxt };
            self.reno.remember(self.outbox.nxt);
        }
        self.reno.timeout();
        self.rack.forget_probe();
        self.timer = Timer::Retransmit(cx.now.plus(self.rtt.timeout()));
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

    /// Whether the peer is gone and gets a reset in case it is not.
    fn keep_alive(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.may_keep_alive() {
            return false;
        }
        let Some(prober) = &mut self.prober else { return false };
        match prober.expire(cx.now) {
            KeepaliveStep::Wait => false,
            KeepaliveStep::Probe => {
                self.probe = Some(Probe::Keepalive);
                false
            }
            KeepaliveStep::GiveUp => {
                cx.counters.tcp_timeouts_aborted += 1;
                self.error = Some(SocketError::TimedOut);
                self.edges |= Readiness::ERROR;
                true
            }
        }
    }

    /// Something was sent: the timer must run, and a loss probe waits for silence after the last segment.
    pub(crate) fn arm_after_sending(&mut self, cx: &Context<'_>) {
        match self.timer {
            Timer::Off | Timer::Persist(_) | Timer::LossProbe(_) => self.rearm(cx),
            Timer::Retransmit(_) | Timer::Reorder(_) => {}
        }
    }

    /// Starts the timer that applies now.
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
            let timeout = self.rack.probe_timeout(self.rtt.smoothed(), self.scoreboard.len(), rto);
            Timer::LossProbe(cx.now.plus(timeout))
        } else {
            Timer::Retransmit(cx.now.plus(rto))
        };
    }
}
