//! Stalled connections: how long a peer that does not answer, or answers and takes nothing, is waited for.
//!
//! A connection *stalls* when its retransmission or persist timer fires, until the peer acknowledges data or opens its
//! window. Three rules end it:
//!
//! * Retransmissions are limited in number (RFC 9293, 3.8.3).
//! * A closed window is probed as long as the peer answers, without a limit (RFC 9293, 3.8.6.1). Probes that get no
//!   answer are limited in number as retransmissions are: the peer is gone, and its window will never open.
//! * The user timeout (RFC 5482; TCP_USER_TIMEOUT of `tcp(7)`) limits the duration. It replaces the first rule and
//!   applies even while a closed window is probed and the peer answers. It is counted from the first retransmission or
//!   probe, as in Linux, so that it cannot end a connection before anything was repeated.

use core::time::Duration;

use crate::time::{Instant, MILLISECOND, nanos};

/// State of a stall.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stall {
    /// First retransmission or probe.
    since: Option<Instant>,
    /// Window probes since the peer's last segment.
    unanswered: u8,
}

impl Stall {
    /// Records a retransmission timeout.
    pub(crate) fn timed_out(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Records an expiration of the persist timer. Returns the number of probes that were sent before it and that got
    /// no answer.
    pub(crate) fn probed(&mut self, now: Instant) -> u8 {
        self.timed_out(now);
        let before = self.unanswered;
        self.unanswered = before.saturating_add(1);
        before
    }

    /// Records an acceptable acknowledgement.
    pub(crate) fn answered(&mut self) {
        self.unanswered = 0;
    }

    /// Ends the stall: data was acknowledged, or the window opened.
    pub(crate) fn ended(&mut self) {
        *self = Self::default();
    }

    /// Returns whether the stall has lasted for `limit`.
    pub(crate) fn exceeds(&self, limit: Duration, now: Instant) -> bool {
        self.since.is_some_and(|since| now.nanos_since(since) >= nanos(limit))
    }

    /// Returns when a timer of `timeout` nanoseconds fires, at the latest when the user timeout ends.
    pub(crate) fn deadline(&self, now: Instant, timeout: u64, limit: Option<Duration>) -> Instant {
        let by_timer = now.plus(timeout);
        match (self.since, limit) {
            (Some(since), Some(limit)) => by_timer.min(since.plus(nanos(limit)).max(now.plus(MILLISECOND))),
            _ => by_timer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND;

    #[test]
    fn an_answer_restarts_the_count_and_not_the_duration() {
        let mut stall = Stall::default();
        assert_eq!((stall.probed(Instant(SECOND)), stall.probed(Instant(2 * SECOND))), (0, 1));
        stall.answered();
        assert_eq!(stall.probed(Instant(4 * SECOND)), 0);
        let limit = Duration::from_secs(4);
        assert!(!stall.exceeds(limit, Instant(5 * SECOND - 1)) && stall.exceeds(limit, Instant(5 * SECOND)));
        stall.ended();
        assert!(!stall.exceeds(limit, Instant(100 * SECOND)));
    }

    #[test]
    fn a_timer_fires_no_later_than_the_user_timeout() {
        let mut stall = Stall::default();
        let limit = Some(Duration::from_secs(3));
        assert_eq!(stall.deadline(Instant(0), 9 * SECOND, limit), Instant(9 * SECOND), "not stalled yet");
        stall.timed_out(Instant(SECOND));
        assert_eq!(stall.deadline(Instant(2 * SECOND), 9 * SECOND, limit), Instant(4 * SECOND));
        assert_eq!(stall.deadline(Instant(2 * SECOND), SECOND, limit), Instant(3 * SECOND));
        assert_eq!(stall.deadline(Instant(2 * SECOND), 9 * SECOND, None), Instant(11 * SECOND));
    }
}
