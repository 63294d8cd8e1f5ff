//! Round-trip time and the retransmission timeout (RFC 6298).
//!
//! A sample is the time from the last transmission of a segment that was sent once (Karn's rule) to the acknowledgement
//! that covered it; timestamps (RFC 7323) stand in where only retransmitted segments were acknowledged. The timeout is
//!
//! `RTO = SRTT + max(4 * RTTVAR, minimum)`
//!
//! with the minimum *added* rather than taken as a floor of the sum, so that a delayed acknowledgement on a fast path never
//! looks like a loss. It doubles with each expiration. The least round trip of the last minutes is kept for RACK.

use crate::time::{Instant, SECOND};

/// Before the first sample (RFC 6298, 2.1).
const INITIAL: u64 = SECOND;
/// After the SYN was retransmitted, until a sample is there (RFC 6298, 5.7).
const AFTER_SYN_LOSS: u64 = 3 * SECOND;
const MAXIMUM: u64 = 120 * SECOND;
/// Half of how long the least round trip is remembered.
const MINIMUM_WINDOW: u64 = 150 * SECOND;

#[derive(Clone, Copy, Debug)]
struct Smoothed {
    mean: u64,
    deviation: u64,
}

/// The least sample of this window and of the one before.
#[derive(Clone, Copy, Debug)]
struct Least {
    since: Instant,
    current: u64,
    previous: u64,
}

/// The estimator of one connection. Spans in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    smoothed: Option<Smoothed>,
    least: Option<Least>,
    minimum_rto: u64,
    backoff: u8,
    initial: u64,
}

impl Rtt {
    pub(crate) const fn new(minimum_rto: u64) -> Self {
        Self { smoothed: None, least: None, minimum_rto, backoff: 0, initial: INITIAL }
    }

    /// Takes a sample in.
    pub(crate) fn sample(&mut self, rtt: u64) {
        self.smoothed = Some(match self.smoothed {
            None => Smoothed { mean: rtt, deviation: rtt / 2 },
            Some(Smoothed { mean, deviation }) => Smoothed {
                mean: mean - mean / 8 + rtt / 8,
                deviation: deviation - deviation / 4 + mean.abs_diff(rtt) / 4,
            },
        });
    }

    /// What a sample of a retransmitted segment counts at most. Its echo may be that of an earlier transmission whose
    /// acknowledgement was lost, and then it tells how long the timeouts took, which must not make the next ones longer
    /// still. A path that became slow shows in a few steps.
    pub(crate) fn plausible(&self) -> u64 {
        self.smoothed.map_or(self.initial, |smoothed| smoothed.mean + smoothed.mean / 2).max(self.minimum_rto)
    }

    /// The round trip is `rtt` now, whatever it was before: the timer went off although nothing was lost (RFC 4015, 3.2,
    /// step 8).
    pub(crate) fn restart(&mut self, rtt: u64) {
        self.smoothed = Some(Smoothed { mean: rtt, deviation: rtt / 2 });
    }

    /// Takes a sample into the least round trip.
    pub(crate) fn sample_least(&mut self, now: Instant, rtt: u64) {
        let least = self.least.get_or_insert(Least { since: now, current: rtt, previous: rtt });
        if now.nanos_since(least.since) > MINIMUM_WINDOW {
            *least = Least { since: now, current: rtt, previous: least.current };
        }
        least.current = least.current.min(rtt);
    }

    /// The smoothed round trip, once there is one.
    pub(crate) fn smoothed(&self) -> Option<u64> {
        self.smoothed.map(|smoothed| smoothed.mean)
    }

    /// The least round trip of the last minutes.
    pub(crate) fn least(&self) -> Option<u64> {
        self.least.map(|least| least.current.min(least.previous))
    }

    /// The timeout without backoff.
    pub(crate) fn base_timeout(&self) -> u64 {
        match self.smoothed {
            None => self.initial.max(self.minimum_rto),
            Some(Smoothed { mean, deviation }) => (mean + (4 * deviation).max(self.minimum_rto)).min(MAXIMUM),
        }
    }

    /// The timeout to arm.
    pub(crate) fn timeout(&self) -> u64 {
        (self.base_timeout() << self.backoff.min(16)).min(MAXIMUM)
    }

    /// The timer went off: back off. Returns how many times in a row it has.
    pub(crate) fn back_off(&mut self) -> u8 {
        self.backoff = self.backoff.saturating_add(1);
        self.backoff
    }

    /// New data was acknowledged: the path works.
    pub(crate) fn forward_progress(&mut self) {
        self.backoff = 0;
    }

    /// The peer lives, though it takes nothing: however long that lasts, it is not given up after `tries`.
    pub(crate) fn answered(&mut self, tries: u8) {
        self.backoff = self.backoff.min(tries - 1);
    }

    pub(crate) const fn backoff(&self) -> u8 {
        self.backoff
    }

    /// The handshake is over; if the SYN was lost, the timeout starts at three seconds.
    pub(crate) fn established(&mut self, syn_was_lost: bool) {
        self.backoff = 0;
        if syn_was_lost && self.smoothed.is_none() {
            self.initial = AFTER_SYN_LOSS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MILLISECOND;

    #[test]
    fn follows_rfc_6298() {
        let mut rtt = Rtt::new(200 * MILLISECOND);
        assert_eq!(rtt.timeout(), SECOND);
        rtt.sample(100 * MILLISECOND);
        assert_eq!(rtt.smoothed(), Some(100 * MILLISECOND));
        assert_eq!(rtt.timeout(), 300 * MILLISECOND, "4 * 50 ms and the minimum are equal here");
        rtt.sample(500 * MILLISECOND);
        assert_eq!(rtt.smoothed(), Some(150 * MILLISECOND));
        assert_eq!(rtt.timeout(), (150 + 4 * (50 - 12 + 100)) * MILLISECOND - 2 * MILLISECOND);
    }

    #[test]
    fn backs_off_to_two_minutes_and_recovers() {
        let mut rtt = Rtt::new(200 * MILLISECOND);
        rtt.sample(MILLISECOND);
        assert_eq!(rtt.timeout(), 201 * MILLISECOND);
        rtt.back_off();
        assert_eq!(rtt.timeout(), 402 * MILLISECOND);
        for _ in 0..300 {
            rtt.back_off();
        }
        assert_eq!(rtt.timeout(), MAXIMUM);
        rtt.forward_progress();
        assert_eq!(rtt.timeout(), 201 * MILLISECOND);
    }

    #[test]
    fn a_lost_syn_starts_at_three_seconds() {
        let mut rtt = Rtt::new(200 * MILLISECOND);
        rtt.back_off();
        rtt.established(true);
        assert_eq!(rtt.timeout(), 3 * SECOND);
    }

    #[test]
    fn the_least_round_trip_is_forgotten_after_minutes() {
        let mut rtt = Rtt::new(0);
        rtt.sample_least(Instant(0), 5);
        rtt.sample_least(Instant(SECOND), 9);
        assert_eq!(rtt.least(), Some(5));
        rtt.sample_least(Instant(200 * SECOND), 9);
        rtt.sample_least(Instant(400 * SECOND), 9);
        assert_eq!(rtt.least(), Some(9));
    }
}
