//! Round-trip time and retransmission timeout (RFC 6298).
//!
//! A sample is the time from the transmission of a segment that was sent once (Karn's rule) to its acknowledgement.
//! Timestamps (RFC 7323) replace it if only retransmitted segments were acknowledged. The timeout is
//!
//! `RTO = SRTT + max(4 * RTTVAR, minimum)`
//!
//! The minimum is *added* rather than a floor of the sum, so that a delayed acknowledgement on a fast path does not
//! cause a timeout. The timeout doubles with each expiration. RACK uses the minimum round trip of the last minutes.

use crate::time::{Instant, SECOND};

/// Timeout before the first sample (RFC 6298, 2.1).
const INITIAL: u64 = SECOND;
/// Timeout after a SYN was retransmitted, until the first sample (RFC 6298, 5.7).
const AFTER_SYN_LOSS: u64 = 3 * SECOND;
const MAXIMUM: u64 = 120 * SECOND;
/// Half of the time for which the minimum round trip is remembered.
const MIN_RTT_WINDOW: u64 = 150 * SECOND;

#[derive(Clone, Copy, Debug)]
struct Smoothed {
    srtt: u64,
    rttvar: u64,
}

/// Minimum samples of the current and the previous window.
#[derive(Clone, Copy, Debug)]
struct MinRtt {
    since: Instant,
    current: u64,
    previous: u64,
}

/// Round-trip estimator of one connection. Durations are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    smoothed: Option<Smoothed>,
    min_rtt: Option<MinRtt>,
    minimum_rto: u64,
    backoff: u8,
    initial: u64,
}

impl Rtt {
    pub(crate) const fn new(minimum_rto: u64) -> Self {
        Self { smoothed: None, min_rtt: None, minimum_rto, backoff: 0, initial: INITIAL }
    }

    /// Adds a sample to SRTT and RTTVAR.
    pub(crate) fn sample(&mut self, rtt: u64) {
        self.smoothed = Some(match self.smoothed {
            None => Smoothed { srtt: rtt, rttvar: rtt / 2 },
            Some(Smoothed { srtt, rttvar }) => {
                Smoothed { srtt: srtt - srtt / 8 + rtt / 8, rttvar: rttvar - rttvar / 4 + srtt.abs_diff(rtt) / 4 }
            }
        });
    }

    /// Returns the upper bound of a sample from an echoed timestamp. The echo may be that of an earlier transmission
    /// whose acknowledgement was lost. It would then measure the timeouts, and make the next ones longer still. With
    /// this bound the estimate follows a path that became slower in a few steps.
    pub(crate) fn max_plausible_sample(&self) -> u64 {
        self.smoothed.map_or(self.initial, |smoothed| smoothed.srtt + smoothed.srtt / 2).max(self.minimum_rto)
    }

    /// Replaces the estimate with `rtt` after a spurious timeout (RFC 4015, 3.2, step 8).
    pub(crate) fn restart(&mut self, rtt: u64) {
        self.smoothed = Some(Smoothed { srtt: rtt, rttvar: rtt / 2 });
    }

    /// Adds a sample to the minimum round trip.
    pub(crate) fn sample_min(&mut self, now: Instant, rtt: u64) {
        let min_rtt = self.min_rtt.get_or_insert(MinRtt { since: now, current: rtt, previous: rtt });
        if now.nanos_since(min_rtt.since) > MIN_RTT_WINDOW {
            *min_rtt = MinRtt { since: now, current: rtt, previous: min_rtt.current };
        }
        min_rtt.current = min_rtt.current.min(rtt);
    }

    /// Returns the smoothed round trip, after the first sample.
    pub(crate) fn srtt(&self) -> Option<u64> {
        self.smoothed.map(|smoothed| smoothed.srtt)
    }

    /// Returns the mean deviation of the round trip, after the first sample.
    pub(crate) fn rttvar(&self) -> Option<u64> {
        self.smoothed.map(|smoothed| smoothed.rttvar)
    }

    /// Returns the minimum round trip of the last minutes.
    pub(crate) fn min_rtt(&self) -> Option<u64> {
        self.min_rtt.map(|min| min.current.min(min.previous))
    }

    /// Returns the timeout without backoff.
    pub(crate) fn base_timeout(&self) -> u64 {
        match self.smoothed {
            None => self.initial.max(self.minimum_rto),
            Some(Smoothed { srtt, rttvar }) => (srtt + (4 * rttvar).max(self.minimum_rto)).min(MAXIMUM),
        }
    }

    /// Returns the timeout with backoff.
    pub(crate) fn timeout(&self) -> u64 {
        (self.base_timeout() << self.backoff.min(16)).min(MAXIMUM)
    }

    /// Doubles the timeout. Returns the number of consecutive expirations.
    pub(crate) fn back_off(&mut self) -> u8 {
        self.backoff = self.backoff.saturating_add(1);
        self.backoff
    }

    /// Resets the backoff, because new data was acknowledged.
    pub(crate) fn reset_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Limits the backoff to less than `tries`, because the peer answers although its window is closed.
    pub(crate) fn cap_backoff(&mut self, tries: u8) {
        self.backoff = self.backoff.min(tries - 1);
    }

    pub(crate) const fn backoff(&self) -> u8 {
        self.backoff
    }

    /// Resets the backoff after the handshake. If the SYN was lost, the initial timeout becomes three seconds.
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
        assert_eq!(rtt.srtt(), Some(100 * MILLISECOND));
        assert_eq!(rtt.timeout(), 300 * MILLISECOND, "4 * 50 ms and the minimum are equal here");
        rtt.sample(500 * MILLISECOND);
        assert_eq!(rtt.srtt(), Some(150 * MILLISECOND));
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
        rtt.reset_backoff();
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
    fn the_minimum_round_trip_expires_after_minutes() {
        let mut rtt = Rtt::new(0);
        rtt.sample_min(Instant(0), 5);
        rtt.sample_min(Instant(SECOND), 9);
        assert_eq!(rtt.min_rtt(), Some(5));
        rtt.sample_min(Instant(200 * SECOND), 9);
        rtt.sample_min(Instant(400 * SECOND), 9);
        assert_eq!(rtt.min_rtt(), Some(9));
    }
}
