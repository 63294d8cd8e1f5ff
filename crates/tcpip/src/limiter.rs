//! Token bucket: a rate per second, with a burst of one second's tokens.

use crate::time::{Instant, SECOND};

/// Rate limiter that allows `rate` events per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimiter {
    rate: u32,
    tokens: u32,
    refilled: Instant,
}

impl RateLimiter {
    pub(crate) const fn new(rate: u32) -> Self {
        Self { rate, tokens: rate, refilled: Instant::ZERO }
    }

    /// Takes a token. Returns false if there is none.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let earned = u128::from(now.nanos_since(self.refilled)) * u128::from(self.rate) / u128::from(SECOND);
        if earned > 0 {
            self.tokens = u32::try_from(earned).unwrap_or(u32::MAX).saturating_add(self.tokens).min(self.rate);
            self.refilled = now;
        }
        if self.tokens == 0 {
            return false;
        }
        self.tokens -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_more_than_the_rate() {
        let mut limiter = RateLimiter::new(10);
        let taken = |limiter: &mut RateLimiter, at: u64| (0..100).filter(|_| limiter.take(Instant(at))).count();
        assert_eq!(taken(&mut limiter, 0), 10);
        assert_eq!(taken(&mut limiter, SECOND / 2), 5);
        assert_eq!(taken(&mut limiter, 100 * SECOND), 10);
    }
}
