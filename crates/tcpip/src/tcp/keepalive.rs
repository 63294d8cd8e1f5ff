//! Is the peer still there? (RFC 9293, section 3.8.4)
//!
//! Off unless asked for. After a time of silence a segment without data and with a sequence number that was acknowledged
//! already is sent, which a living peer must answer; a dead one is given up after some probes.

use crate::{
    config::Keepalive,
    time::{Instant, nanos},
};

/// What to do when the timer goes off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepaliveStep {
    /// Not yet.
    Wait,
    /// Send a probe.
    Probe,
    /// Nobody answered: give up.
    GiveUp,
}

/// The state of one connection that wants it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prober {
    pub settings: Keepalive,
    /// When the peer was last heard, or it was turned on.
    heard: Instant,
    probes: u8,
}

impl Prober {
    pub(crate) const fn new(settings: Keepalive, now: Instant) -> Self {
        Self { settings, heard: now, probes: 0 }
    }

    /// The peer sent something.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.probes = 0;
    }

    pub(crate) fn deadline(&self) -> Instant {
        let waited = nanos(self.settings.interval).saturating_mul(self.probes.into());
        self.heard.plus(nanos(self.settings.idle).saturating_add(waited))
    }

    /// Time passed.
    pub(crate) fn expire(&mut self, now: Instant) -> KeepaliveStep {
        if now < self.deadline() {
            return KeepaliveStep::Wait;
        }
        if self.probes >= self.settings.probes {
            return KeepaliveStep::GiveUp;
        }
        self.probes += 1;
        KeepaliveStep::Probe
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
        let mut prober = Prober::new(settings, Instant(0));
        assert_eq!(prober.expire(Instant(10 * SECOND - 1)), KeepaliveStep::Wait);
        assert_eq!(prober.expire(Instant(10 * SECOND)), KeepaliveStep::Probe);
        assert_eq!(prober.expire(Instant(11 * SECOND)), KeepaliveStep::Wait);
        assert_eq!(prober.expire(Instant(12 * SECOND)), KeepaliveStep::Probe);
        let mut answered = prober;
        answered.heard(Instant(13 * SECOND));
        assert_eq!(answered.deadline(), Instant(23 * SECOND));
        assert_eq!(prober.expire(Instant(14 * SECOND)), KeepaliveStep::GiveUp);
    }
}
