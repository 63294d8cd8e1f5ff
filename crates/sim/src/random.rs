//! Random numbers that are the same on every machine: a fixed generator, and logarithms independent of the system
//! library.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Random numbers of one purpose. Each purpose has its own stream, so that they do not affect each other.
#[derive(Clone, Debug)]
pub(crate) struct Random(Xoshiro256PlusPlus);

impl Random {
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Returns a number uniform in (0, 1].
    #[inline]
    fn unit(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns an exponential sample, rounded to whole units. A constant mean gives a Poisson process.
    #[inline]
    pub(crate) fn exponential(&mut self, mean: f64) -> u64 {
        (-libm::log(self.unit()) * mean) as u64
    }

    /// Returns a standard normal sample (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(self.unit()));
        radius * libm::cos(2.0 * std::f64::consts::PI * self.unit())
    }

    /// Returns a number uniform in 0 .. `bound`, or 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with this probability, in millionths.
    pub(crate) fn chance(&mut self, millionths: u64) -> bool {
        millionths > 0 && self.below(1_000_000) < millionths
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_known() {
        // A change here changes every published run, by the generator or the logarithm.
        let mut random = Random::new(1, 2);
        let numbers: Vec<u64> = (0..4).map(|_| random.exponential(1e6)).collect();
        assert_eq!(numbers, [828_030, 1_600_360, 2_065_867, 1_632_167]);
        let mean = (0..100_000).map(|_| random.exponential(1e6)).sum::<u64>() / 100_000;
        assert!((990_000..1_010_000).contains(&mean), "{mean}");
    }
}
