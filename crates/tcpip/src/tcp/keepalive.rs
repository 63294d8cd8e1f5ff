//! Keep-alive (RFC 9293, section 3.8.4).
//!
//! Disabled by default. After an idle time the connection sends a segment without data whose sequence number is
//! already acknowledged. The peer must answer it. After some unanswered probes the connection is aborted.

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

    /// Returns what to do at `now`, and counts a probe.
    pub(crate) fn expire(&mut self, now: Instant) -> KeepaliveAction {
        if now < self.deadline() {
            return KeepaliveAction::Wait;
        }
        if self.probes >= self.settings.probes {
            return KeepaliveAction::GiveUp;
        }
        self.probes += 1;
        KeepaliveAction::Probe
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::time::SECOND;

    #[test]
    fn probes_and_gives_up_unless_answered() {
        let settings = Keepalive { idle: Duration::from_secs(10), interval: Duration::from_secs(2), probes: 2 };
        let mut keepalive_timer = KeepaliveTimer::new(settings, Instant(0));
        assert_eq!(keepalive_timer.expire(Instant(10 * SECOND - 1)), KeepaliveAction::Wait);
        assert_eq!(keepalive_timer.expire(Instant(10 * SECOND)), KeepaliveAction::Probe);
        assert_eq!(keepalive_timer.expire(Instant(11 * SECOND)), KeepaliveAction::Wait);
        assert_eq!(keepalive_timer.expire(Instant(12 * SECOND)), KeepaliveAction::Probe);
        let mut answered = keepalive_timer;
        answered.restart(Instant(13 * SECOND));
        assert_eq!(answered.deadline(), Instant(23 * SECOND));
        assert_eq!(keepalive_timer.expire(Instant(14 * SECOND)), KeepaliveAction::GiveUp);
    }
}
