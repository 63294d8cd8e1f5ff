//! Keep-alive (RFC 9293, section 3.8.4).
//!
//! Disabled by default. After an idle time the connection sends a segment without data whose sequence number is
//! already acknowledged. The peer must answer it. After some unanswered probes the connection is aborted.

use core::time::Duration;

use crate::{
    config::Keepalive,
    time::{Instant, nanos},
};

/// Action after the timer has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepaliveAction {
    /// None: the deadline was moved.
    Wait,
    /// Send a probe.
    Probe,
    /// Abort the connection: all probes were unanswered.
    GiveUp,
}

/// Keep-alive timer of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepaliveTimer {
    pub settings: Keepalive,
    /// Arrival of the peer's last segment, or activation of keep-alive.
    last_received: Instant,
    probes: u8,
}

impl KeepaliveTimer {
    pub(crate) const fn new(settings: Keepalive, now: Instant) -> Self {
        Self { settings, last_received: now, probes: 0 }
    }

    /// Restarts the idle time, because a segment arrived.
    pub(crate) fn restart(&mut self, now: Instant) {
        self.last_received = now;
        self.probes = 0;
    }

    pub(crate) fn deadline(&self) -> Instant {
        let waited = nanos(self.settings.interval).saturating_mul(self.probes.into());
        self.last_received.plus(nanos(self.settings.idle).saturating_add(waited))
    }

    /// Returns what to do at `now`, and counts a probe. A user timeout replaces the limit of probes, as in Linux.
    pub(crate) fn expire(&mut self, now: Instant, user_timeout: Option<Duration>) -> KeepaliveAction {
        if now < self.deadline() {
            return KeepaliveAction::Wait;
        }
        let gives_up = match user_timeout {
            Some(limit) => self.probes > 0 && now.nanos_since(self.last_received) >= nanos(limit),
            None => self.probes >= self.settings.probes,
        };
        if gives_up {
            return KeepaliveAction::GiveUp;
        }
        self.probes = self.probes.saturating_add(1);
        KeepaliveAction::Probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND;

    #[test]
    fn probes_and_gives_up_unless_answered() {
        let settings = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(2), probes: 2 };
        let mut keepalive_timer = KeepaliveTimer::new(settings, Instant(0));
        assert_eq!(keepalive_timer.expire(Instant(10 * SECOND - 1), None), KeepaliveAction::Wait);
        assert_eq!(keepalive_timer.expire(Instant(10 * SECOND), None), KeepaliveAction::Probe);
        assert_eq!(keepalive_timer.expire(Instant(11 * SECOND), None), KeepaliveAction::Wait);
        assert_eq!(keepalive_timer.expire(Instant(12 * SECOND), None), KeepaliveAction::Probe);
        let mut answered = keepalive_timer;
        answered.restart(Instant(13 * SECOND));
        assert_eq!(answered.deadline(), Instant(23 * SECOND));
        assert_eq!(keepalive_timer.expire(Instant(14 * SECOND), None), KeepaliveAction::GiveUp);
    }

    #[test]
    fn a_user_timeout_replaces_the_number_of_probes() {
        let settings = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(2), probes: 9 };
        let mut keepalive_timer = KeepaliveTimer::new(settings, Instant(0));
        let limit = Some(Duration::from_secs(13));
        assert_eq!(keepalive_timer.expire(Instant(10 * SECOND), limit), KeepaliveAction::Probe);
        assert_eq!(keepalive_timer.expire(Instant(12 * SECOND), limit), KeepaliveAction::Probe);
        assert_eq!(keepalive_timer.expire(Instant(14 * SECOND), limit), KeepaliveAction::GiveUp);
    }
}
