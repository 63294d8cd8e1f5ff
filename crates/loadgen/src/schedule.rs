//! Intended send times of an open loop: Poisson or even arrivals.

use rand::{RngExt, SeedableRng};
use rand_distr::Exp1;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::rate::Arrivals;

/// The times at which one thread's requests are due: an endless iterator of nanoseconds from the start of the run,
/// in ascending order. The same arguments give the same times, on every machine.
#[derive(Clone, Debug)]
pub struct Schedule {
    arrivals: Arrivals,
    gap_ns: f64,
    next_ns: f64,
    rng: Xoshiro256PlusPlus,
}

impl Schedule {
    /// Returns the times of thread `thread` (from 0) of `threads`, for `rate` requests per second in all.
    ///
    /// A Poisson process is split into independent ones, and even arrivals are distributed in turn; the threads together
    /// make the process of a single thread.
    pub fn new(arrivals: Arrivals, rate: f64, seed: u64, thread: usize, threads: usize) -> Self {
        let gap_ns = 1e9 * threads as f64 / rate;
        let rng = random_stream(seed, thread, 0);
        let next_ns = match arrivals {
            Arrivals::Even => gap_ns * thread as f64 / threads as f64,
            Arrivals::Poisson => 0.0,
        };
        let mut schedule = Self { arrivals, gap_ns, next_ns, rng };
        if arrivals == Arrivals::Poisson {
            schedule.advance();
        }
        schedule
    }

    /// Returns when the next request is due.
    pub(crate) fn peek(&self) -> u64 {
        self.next_ns as u64
    }

    /// Moves on to the request after it.
    pub(crate) fn advance(&mut self) {
        // Sums of `f64` are exact to well below a nanosecond for months.
        self.next_ns += match self.arrivals {
            Arrivals::Even => self.gap_ns,
            Arrivals::Poisson => self.gap_ns * self.rng.sample::<f64, _>(Exp1),
        };
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let due = self.peek();
        self.advance();
        Some(due)
    }
}

/// Returns one of the independent streams of random numbers of a seed.
pub(crate) fn random_stream(seed: u64, thread: usize, purpose: u64) -> Xoshiro256PlusPlus {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ purpose);
    for _ in 0..thread {
        rng.jump();
    }
    rng
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn even_arrivals_have_equal_gaps() {
        let times: Vec<_> = Schedule::new(Arrivals::Even, 1e6, 1, 0, 1).take(5).collect();
        assert_eq!(times, [0, 1000, 2000, 3000, 4000]);
        let second: Vec<_> = Schedule::new(Arrivals::Even, 1e6, 1, 1, 2).take(3).collect();
        assert_eq!(second, [1000, 3000, 5000]);
    }

    #[test]
    fn poisson_arrivals_have_the_mean_and_the_spread_of_exponential_gaps() {
        let times: Vec<_> = Schedule::new(Arrivals::Poisson, 20_000.0, 3, 0, 1).take(200_001).collect();
        let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean / 50_000.0 - 1.0).abs() < 0.01, "{mean}");
        assert!((deviation / 50_000.0 - 1.0).abs() < 0.02, "{deviation}");
    }

    proptest! {
        #[test]
        fn the_same_seed_gives_the_same_schedule_and_another_seed_another(seed: u64, rate in 10.0f64..1e6) {
            let times = |seed| Schedule::new(Arrivals::Poisson, rate, seed, 0, 1).take(50).collect::<Vec<_>>();
            prop_assert_eq!(times(seed), times(seed));
            prop_assert_ne!(times(seed), times(seed.wrapping_add(1)));
            prop_assert!(times(seed).is_sorted());
        }

        #[test]
        fn threads_share_the_rate(threads in 1usize..5, seed: u64) {
            let total: usize = (0..threads)
                .map(|t| Schedule::new(Arrivals::Poisson, 100_000.0, seed, t, threads).take_while(|&ns| ns < 1_000_000_000).count())
                .sum();
            // 100,000 expected, standard deviation 316: eight of them.
            prop_assert!((97_400..102_600).contains(&total), "{total}");
        }
    }
}
