//! Distributions of durations and message sizes, with the same samples on every machine.

use abey_delivery::Nanos;

use crate::input::InputError;
use crate::random::Random;

/// 99th percentile of the standard normal distribution.
const Z99: f64 = 2.326_347_874_040_841;

/// Longest message in bytes; larger samples are clamped.
const LARGEST: u64 = 1 << 30;

/// Longest duration in nanoseconds (an hour); longer samples are clamped.
const LONGEST: u64 = 3_600_000_000_000;

/// Distribution of durations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    /// Constant.
    Constant(Nanos),
    /// Exponential distribution.
    Exponential {
        /// Mean.
        mean: Nanos,
    },
    /// Lognormal distribution with a given mean.
    Lognormal {
        /// Mean.
        mean: Nanos,
        /// Coefficient of variation: standard deviation divided by the mean.
        cv: f64,
    },
    /// Lognormal distribution with two given quantiles.
    Quantiles {
        /// Median.
        median: Nanos,
        /// 99th percentile.
        p99: Nanos,
    },
}

impl Delay {
    /// Returns the mean in nanoseconds.
    pub fn mean_ns(&self) -> f64 {
        match *self {
            Self::Constant(mean) | Self::Exponential { mean } | Self::Lognormal { mean, .. } => mean.as_nanos() as f64,
            Self::Quantiles { median, p99 } => {
                lognormal_mean(median.as_nanos(), sigma(median.as_nanos(), p99.as_nanos()))
            }
        }
    }

    pub(crate) fn validate(&self, key: &'static str) -> Result<(), InputError> {
        let wrong = |value: String, allowed| Err(InputError::Value { key, value, allowed });
        let longest = match *self {
            Self::Constant(span) | Self::Exponential { mean: span } => span,
            Self::Lognormal { mean, cv } => {
                if !(cv.is_finite() && (0.0..=100.0).contains(&cv)) {
                    return wrong(format!("cv {cv}"), "a coefficient of variation is from 0 to 100");
                }
                if mean.is_zero() {
                    return wrong(mean.to_string(), "a lognormal distribution has a mean above 0");
                }
                mean
            }
            Self::Quantiles { median, p99 } => {
                if median.is_zero() || p99 < median {
                    let allowed = "the median is above 0 and the 99th percentile not below it";
                    return wrong(format!("median {median}, p99 {p99}"), allowed);
                }
                p99
            }
        };
        if longest.as_nanos() > LONGEST {
            return wrong(longest.to_string(), "an hour at most");
        }
        Ok(())
    }

    pub(crate) fn sampler(&self) -> Sampler {
        match *self {
            Self::Constant(span) => Sampler::Constant(span.as_nanos()),
            Self::Exponential { mean } => Sampler::Exponential { mean: mean.as_nanos() as f64 },
            Self::Lognormal { mean, cv } => Sampler::lognormal(mean.as_nanos() as f64, cv, LONGEST),
            Self::Quantiles { median, p99 } => {
                let (median, p99) = (median.as_nanos(), p99.as_nanos());
                Sampler::Lognormal { mu: libm::log(median as f64), sigma: sigma(median, p99), most: LONGEST }
            }
        }
    }
}

/// Distribution of message sizes in bytes without headers, from 1 to 2^30.
#[derive(Clone, Debug, PartialEq)]
pub enum Size {
    /// Constant.
    Fixed(u64),
    /// Uniform distribution from `min` to `max`.
    Uniform {
        /// Smallest size.
        min: u64,
        /// Largest size.
        max: u64,
    },
    /// Lognormal distribution with a given median and shape.
    Lognormal {
        /// Median.
        median: u64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Lognormal distribution with two given quantiles.
    Quantiles {
        /// Median.
        median: u64,
        /// 99th percentile.
        p99: u64,
    },
    /// List of sizes, each with its weight.
    Weighted(Vec<(u64, f64)>),
}

impl Size {
    /// Returns the mean in bytes.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed(bytes) => *bytes as f64,
            Self::Uniform { min, max } => (*min as f64 + *max as f64) / 2.0,
            Self::Lognormal { median, sigma } => lognormal_mean(*median, *sigma),
            Self::Quantiles { median, p99 } => lognormal_mean(*median, sigma(*median, *p99)),
            Self::Weighted(list) => {
                let total: f64 = list.iter().map(|(_, weight)| weight).sum();
                list.iter().map(|(bytes, weight)| *bytes as f64 * weight / total).sum()
            }
        }
    }

    pub(crate) fn validate(&self, key: &'static str) -> Result<(), InputError> {
        let wrong = |value: String, allowed| Err(InputError::Value { key, value, allowed });
        let fits = |bytes: &u64| (1..=LARGEST).contains(bytes);
        let range = "a message has 1 to 1073741824 bytes";
        match self {
            Self::Fixed(bytes) if !fits(bytes) => wrong(bytes.to_string(), range),
            Self::Uniform { min, max } if !fits(min) || !fits(max) => wrong(format!("min {min}, max {max}"), range),
            Self::Uniform { min, max } if min > max => wrong(format!("min {min}, max {max}"), "min is not above max"),
            Self::Lognormal { median, .. } if !fits(median) => wrong(format!("median {median}"), range),
            Self::Lognormal { sigma, .. } if !(sigma.is_finite() && (0.0..=5.0).contains(sigma)) => {
                wrong(format!("sigma {sigma}"), "sigma is from 0 to 5")
            }
            Self::Quantiles { median, p99 } if !fits(median) || !fits(p99) => {
                wrong(format!("median {median}, p99 {p99}"), range)
            }
            Self::Quantiles { median, p99 } if p99 < median => {
                wrong(format!("median {median}, p99 {p99}"), "the 99th percentile is not below the median")
            }
            Self::Weighted(list) => match list.iter().find(|(bytes, weight)| !fits(bytes) || !is_weight(*weight)) {
                Some((bytes, weight)) => {
                    wrong(format!("[{bytes}, {weight}]"), "1 to 1073741824 bytes, with a weight above 0 up to 1000000")
                }
                None if list.is_empty() || list.len() > 10_000 => {
                    wrong(format!("a list of {}", list.len()), "a list has 1 to 10000 sizes")
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    pub(crate) fn sampler(&self) -> Sampler {
        match self {
            Self::Fixed(bytes) => Sampler::Constant(*bytes),
            Self::Uniform { min, max } => Sampler::Uniform { min: *min, count: max - min + 1 },
            Self::Lognormal { median, sigma } => {
                Sampler::Lognormal { mu: libm::log(*median as f64), sigma: *sigma, most: LARGEST }
            }
            Self::Quantiles { median, p99 } => {
                Sampler::Lognormal { mu: libm::log(*median as f64), sigma: sigma(*median, *p99), most: LARGEST }
            }
            Self::Weighted(list) => Sampler::weighted(list),
        }
    }
}

fn is_weight(weight: f64) -> bool {
    weight.is_finite() && weight > 0.0 && weight <= 1e6
}

/// Returns the shape of the lognormal distribution with this median and 99th percentile.
fn sigma(median: u64, p99: u64) -> f64 {
    libm::log(p99 as f64 / median as f64) / Z99
}

fn lognormal_mean(median: u64, sigma: f64) -> f64 {
    median as f64 * libm::exp(sigma * sigma / 2.0)
}

/// Distribution prepared for sampling.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Sampler {
    Constant(u64),
    Exponential { mean: f64 },
    Uniform { min: u64, count: u64 },
    Lognormal { mu: f64, sigma: f64, most: u64 },
    Weighted { values: Vec<u64>, cumulative: Vec<u64> },
}

impl Sampler {
    /// Returns the lognormal distribution with this mean and coefficient of variation.
    pub(crate) fn lognormal(mean: f64, cv: f64, most: u64) -> Self {
        let variance = libm::log(1.0 + cv * cv);
        Self::Lognormal { mu: libm::log(mean) - variance / 2.0, sigma: libm::sqrt(variance), most }
    }

    fn weighted(list: &[(u64, f64)]) -> Self {
        let total: f64 = list.iter().map(|(_, weight)| weight).sum();
        let mut sum = 0.0;
        let cumulative = list.iter().map(|(_, weight)| {
            sum += weight;
            (sum / total * (1u64 << 53) as f64) as u64
        });
        Self::Weighted { cumulative: cumulative.collect(), values: list.iter().map(|(bytes, _)| *bytes).collect() }
    }

    /// Draws a sample in whole units.
    #[inline]
    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::Constant(value) => *value,
            Self::Exponential { mean } => random.exponential(*mean),
            Self::Uniform { min, count } => min + random.below(*count),
            Self::Lognormal { mu, sigma, most } => {
                (libm::round(libm::exp(mu + sigma * random.normal())) as u64).min(*most)
            }
            Self::Weighted { values, cumulative } => {
                let at = random.below(1 << 53);
                let index = cumulative.partition_point(|bound| *bound <= at);
                values[index.min(values.len() - 1)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantile_and_mean(sampler: &Sampler, q: f64) -> (u64, f64) {
        let mut random = Random::new(1, 9);
        let mut draws: Vec<u64> = (0..200_000).map(|_| sampler.draw(&mut random)).collect();
        draws.sort_unstable();
        let mean = draws.iter().sum::<u64>() as f64 / draws.len() as f64;
        (draws[(draws.len() as f64 * q) as usize], mean)
    }

    fn near(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 0.03
    }

    #[test]
    fn delays_have_the_mean_and_the_quantiles_that_were_asked_for() {
        let micros = Nanos::from_micros;
        for delay in [
            Delay::Constant(micros(50)),
            Delay::Exponential { mean: micros(50) },
            Delay::Lognormal { mean: micros(50), cv: 1.5 },
            Delay::Quantiles { median: micros(80), p99: micros(400) },
        ] {
            delay.validate("device").expect("a delay that can be");
            let (_, mean) = quantile_and_mean(&delay.sampler(), 0.5);
            assert!(near(mean, delay.mean_ns()), "{delay:?}: {mean} for {}", delay.mean_ns());
        }
        let tail = Delay::Quantiles { median: micros(80), p99: micros(400) }.sampler();
        assert!(near(quantile_and_mean(&tail, 0.5).0 as f64, 80e3));
        assert!(near(quantile_and_mean(&tail, 0.99).0 as f64, 400e3));
    }

    #[test]
    fn sizes_have_the_mean_that_was_asked_for_and_stay_in_range() {
        for size in [
            Size::Fixed(100),
            Size::Uniform { min: 100, max: 300 },
            Size::Lognormal { median: 1_000, sigma: 0.8 },
            Size::Quantiles { median: 1_000, p99: 20_000 },
            Size::Weighted(vec![(100, 3.0), (1_000, 1.0), (100_000, 0.1)]),
        ] {
            size.validate("sizes.request").expect("a size that can be");
            let (_, mean) = quantile_and_mean(&size.sampler(), 0.5);
            assert!((mean / size.mean() - 1.0).abs() < 0.05, "{size:?}: {mean} for {}", size.mean());
        }
        let uniform = Size::Uniform { min: 5, max: 7 }.sampler();
        let mut random = Random::new(1, 1);
        let mut seen = [false; 3];
        (0..100).for_each(|_| seen[uniform.draw(&mut random) as usize - 5] = true);
        assert_eq!(seen, [true; 3]);
        let huge = Size::Lognormal { median: LARGEST, sigma: 5.0 }.sampler();
        assert!((0..1_000).all(|_| huge.draw(&mut random) <= LARGEST));
    }
}
