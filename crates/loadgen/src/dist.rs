//! Sizes of keys and values: fixed, or the distributions of Facebook's ETC pool.
//!
//! Source of every constant: B. Atikoglu, Y. Xu, E. Frachtenberg, S. Jiang, M. Paleczny, "Workload Analysis of a
//! Large-Scale Key-Value Store", SIGMETRICS 2012, section 5 and its table of small value sizes. The generators that
//! published results were made with (mutilate's `fb_key` and `fb_value`) use the same.

use std::str::FromStr;

use rand::{Rng, RngExt};

use crate::config::{ConfigError, MAX_KEY_SIZE, MAX_VALUE_SIZE};

/// How sizes are chosen.
///
/// Text form: `200` or `fixed:200` (bytes), or `etc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeDist {
    /// Always so many bytes.
    Fixed(usize),
    /// The ETC distribution of keys or of values: [`etc_key_size`], [`etc_value_size`].
    Etc,
}

impl FromStr for SizeDist {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        if text == "etc" {
            return Ok(Self::Etc);
        }
        let number = text.strip_prefix("fixed:").unwrap_or(text);
        let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        let size = number.parse().ok().filter(|_| digits);
        size.map(Self::Fixed).ok_or_else(|| ConfigError::Size(text.to_owned()))
    }
}

impl std::fmt::Display for SizeDist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(size) => f.pad(&size.to_string()),
            Self::Etc => f.pad("etc"),
        }
    }
}

impl SizeDist {
    /// Returns the size of the key at quantile `u` (0 to 1), bytes.
    pub(crate) fn key_size(self, u: f64) -> usize {
        match self {
            Self::Fixed(size) => size,
            Self::Etc => etc_key_size(u),
        }
    }

    /// Returns a value size drawn with `rng`, bytes.
    pub(crate) fn value_size(self, rng: &mut impl Rng) -> usize {
        match self {
            Self::Fixed(size) => size,
            Self::Etc => etc_value_size(rng.random()),
        }
    }

    /// Returns the largest value that [`Self::value_size`] returns, bytes.
    pub(crate) fn max_value_size(self) -> usize {
        match self {
            Self::Fixed(size) => size,
            Self::Etc => MAX_VALUE_SIZE,
        }
    }
}

/// Returns the ETC key size at quantile `u` (0 to 1): generalized extreme value with location 30.7984, scale 8.20449, shape
/// 0.078688; in bytes, between 1 and the protocol's longest key.
pub fn etc_key_size(u: f64) -> usize {
    const LOCATION: f64 = 30.7984;
    const SCALE: f64 = 8.20449;
    const SHAPE: f64 = 0.078688;
    let x = LOCATION + SCALE * ((-u.ln()).powf(-SHAPE) - 1.0) / SHAPE;
    x.round().clamp(1.0, MAX_KEY_SIZE as f64) as usize
}

/// Probabilities of the value sizes 0 to 14 bytes, which the Pareto tail does not describe.
const ETC_SMALL_VALUES: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837, 0.08989,
    0.00092, 0.00326, 0.01980,
];

/// Returns the ETC value size at quantile `u` (0 to 1): up to 14 bytes by table, above that generalized Pareto from 15 bytes
/// with scale 214.476 and shape 0.348238; at most 1,000,000 bytes, so that a value fits in memcached's largest item.
pub fn etc_value_size(u: f64) -> usize {
    const LOCATION: f64 = 15.0;
    const SCALE: f64 = 214.476;
    const SHAPE: f64 = 0.348238;
    let mut below = 0.0;
    for (size, probability) in ETC_SMALL_VALUES.into_iter().enumerate() {
        below += probability;
        if u < below {
            return size;
        }
    }
    let tail = ((u - below) / (1.0 - below)).clamp(0.0, 1.0);
    let x = LOCATION + SCALE * ((1.0 - tail).powf(-SHAPE) - 1.0) / SHAPE;
    x.round().min(MAX_VALUE_SIZE as f64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_xoshiro::Xoshiro256PlusPlus;

    fn draws(n: usize, draw: impl Fn(f64) -> usize) -> Vec<usize> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
        let mut sizes: Vec<_> = (0..n).map(|_| draw(rng.random())).collect();
        sizes.sort_unstable();
        sizes
    }

    fn mean(sizes: &[usize]) -> f64 {
        sizes.iter().sum::<usize>() as f64 / sizes.len() as f64
    }

    #[test]
    fn etc_keys_have_the_moments_of_their_distribution() {
        // GEV: median = mu + sigma ((ln 2)^-xi - 1) / xi = 33.8; mean = mu + sigma (Gamma(1 - xi) - 1) / xi = 36.3.
        let sizes = draws(200_000, etc_key_size);
        assert!((mean(&sizes) - 36.3).abs() < 0.3, "{}", mean(&sizes));
        assert!((33..=35).contains(&sizes[100_000]), "{}", sizes[100_000]);
        // P(X > 70.5) = 1 - exp(-(1 + xi 39.7 / sigma)^(-1 / xi)) = 0.0181.
        let long = sizes.iter().filter(|&&s| s > 70).count() as f64 / 200_000.0;
        assert!((long - 0.0181).abs() < 0.003, "{long}");
    }

    #[test]
    fn etc_values_have_the_moments_of_their_distribution() {
        let head: f64 = ETC_SMALL_VALUES.iter().sum();
        let small: f64 = ETC_SMALL_VALUES.iter().enumerate().map(|(size, p)| size as f64 * p).sum();
        // Generalized Pareto: mean = 15 + sigma / (1 - k).
        let want = small + (1.0 - head) * (15.0 + 214.476 / (1.0 - 0.348238));
        let sizes = draws(400_000, etc_value_size);
        assert!((mean(&sizes) / want - 1.0).abs() < 0.03, "{} against {want}", mean(&sizes));
        for (size, probability) in ETC_SMALL_VALUES.into_iter().enumerate() {
            let share = sizes.iter().filter(|&&s| s == size).count() as f64 / 400_000.0;
            assert!((share - probability).abs() < 0.003, "size {size}: {share}");
        }
        // Half way up the tail: 15 + sigma (2^k - 1) / k.
        let middle = sizes[((head + (1.0 - head) / 2.0) * 400_000.0) as usize] as f64;
        let want = 15.0 + 214.476 * (2f64.powf(0.348238) - 1.0) / 0.348238;
        assert!((middle / want - 1.0).abs() < 0.03, "{middle} against {want}");
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!("etc".parse(), Ok(SizeDist::Etc));
        assert_eq!("200".parse(), Ok(SizeDist::Fixed(200)));
        assert_eq!("fixed:30".parse(), Ok(SizeDist::Fixed(30)));
        for text in ["", "fixed:", "+3", "-1", "ETC", "3k", "99999999999999999999999"] {
            assert_eq!(text.parse::<SizeDist>(), Err(ConfigError::Size(text.into())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_quantile_has_a_size_in_range(u in 0.0f64..=1.0) {
            prop_assert!((1..=MAX_KEY_SIZE).contains(&etc_key_size(u)));
            prop_assert!(etc_value_size(u) <= MAX_VALUE_SIZE);
        }

        #[test]
        fn sizes_grow_with_the_quantile(a in 0.0f64..1.0, b in 0.0f64..1.0) {
            let (low, high) = if a < b { (a, b) } else { (b, a) };
            prop_assert!(etc_key_size(low) <= etc_key_size(high));
            prop_assert!(etc_value_size(low) <= etc_value_size(high));
        }
    }
}
