//! A token bucket: so many a second, and a burst of as many.

use crate::time::{Instant, SECOND};

/// At most `rate` a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limiter {
    rate: u32,
    tokens: u32,
    refilled: Instant,
}

impl Limiter {
    pub(crate) const fn new(rate: u32) -> Self {
        Self { rate, tokens: rate, refilled: Instant::ZERO }
    }

    /// Takes a token if there is one.
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
        let mut limiter = Limiter::new(10);
        let taken = |limiter: &mut Limiter, at: u64| (0..100).filter(|_| limiter.take(Instant(at))).count();
        assert_eq!(taken(&mut limiter, 0), 10);
        assert_eq!(taken(&mut limiter, SECOND / 2), 5);
        assert_eq!(taken(&mut limiter, 100 * SECOND), 10);
    }
}
