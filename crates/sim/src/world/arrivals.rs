//! Arrival process of an open loop.

use crate::distribution::Sampler;
use crate::random::Random;
use crate::scenario::Arrivals;

/// Arrival process.
#[derive(Debug)]
pub(super) struct Process {
    gaps: Gaps,
    /// Requests per arrival.
    pub(super) burst: u32,
}

#[derive(Debug)]
enum Gaps {
    Random(Sampler),
    /// In picoseconds, so that the rate is not rounded.
    Constant {
        gap_ps: u64,
        next_ps: u64,
    },
}

/// Longest time between two requests in nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;

impl Process {
    /// Creates a process with `rate` requests per second, starting at `from`.
    pub(super) fn new(arrivals: Arrivals, rate: f64, from: u64) -> Self {
        let mean = 1e9 / rate;
        let poisson = |mean| Gaps::Random(Sampler::Exponential { mean });
        match arrivals {
            Arrivals::Poisson => Self { gaps: poisson(mean), burst: 1 },
            Arrivals::Constant => {
                Self { gaps: Gaps::Constant { gap_ps: (mean * 1e3) as u64, next_ps: from * 1_000 }, burst: 1 }
            }
            Arrivals::Bursts(burst) => Self { gaps: poisson(mean * f64::from(burst)), burst },
            Arrivals::Lognormal { cv } => Self { gaps: Gaps::Random(Sampler::lognormal(mean, cv, LONGEST)), burst: 1 },
        }
    }

    /// Returns the time of the next request or burst, given that of the last one.
    #[inline]
    pub(super) fn next(&mut self, now: u64, random: &mut Random) -> u64 {
        match &mut self.gaps {
            Gaps::Random(sampler) => now.saturating_add(sampler.draw(random)),
            Gaps::Constant { gap_ps, next_ps } => {
                *next_ps = next_ps.saturating_add(*gap_ps);
                *next_ps / 1_000
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_has_the_rate_that_was_asked_for() {
        for arrivals in [Arrivals::Poisson, Arrivals::Constant, Arrivals::Bursts(16), Arrivals::Lognormal { cv: 2.0 }] {
            let mut process = Process::new(arrivals, 3e6, 0);
            let mut random = Random::new(1, 2);
            let mut now = 0;
            let count = 400_000;
            (0..count).for_each(|_| now = process.next(now, &mut random));
            let rate = f64::from(count * process.burst) * 1e9 / now as f64;
            assert!((rate / 3e6 - 1.0).abs() < 0.01, "{arrivals:?}: {rate}");
        }
    }
}
