//! The configuration of a run: rate, arrivals, duration, warm-up, seed; checked when built.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::config::{ConfigError, check_duration};

/// How fast requests are sent.
///
/// Text form: requests per second with an optional suffix (`500`, `50k`, `1.2M`), or `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Open loop: this many requests per second, whether or not the server keeps up.
    PerSecond(f64),
    /// Closed loop: every connection always has as many requests outstanding as its depth allows.
    Max,
}

impl Rate {
    /// Returns an open loop at `rate` requests per second.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Rate`] unless it is between one request in 1000 s and ten million a second.
    pub fn per_second(rate: f64) -> Result<Self, ConfigError> {
        if (1e-3..=1e7).contains(&rate) { Ok(Self::PerSecond(rate)) } else { Err(ConfigError::Rate(rate.to_string())) }
    }
}

impl FromStr for Rate {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let malformed = || ConfigError::Rate(text.to_owned());
        if text == "max" {
            return Ok(Self::Max);
        }
        let (number, exponent) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 3),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 6),
            _ => (text, 0),
        };
        // `f64` also parses signs, exponents, `inf` and `nan`, none of which is a rate.
        if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(malformed());
        }
        // Parsed with the exponent in the text, so that `1.005k` is 1005 and not the next smaller number.
        let rate = format!("{number}e{exponent}").parse().map_err(|_| malformed())?;
        Self::per_second(rate).map_err(|_| malformed())
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::Max => f.pad("max"),
            Self::PerSecond(rate) if rate >= 1e6 => f.pad(&format!("{}M", rate / 1e6)),
            Self::PerSecond(rate) if rate >= 1e3 => f.pad(&format!("{}k", rate / 1e3)),
            Self::PerSecond(rate) => f.pad(&rate.to_string()),
        }
    }
}

/// When requests of an open loop are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Arrivals {
    /// A Poisson process: exponential gaps, as those of many independent clients.
    #[default]
    Poisson,
    /// Equal gaps.
    Even,
}

impl Arrivals {
    /// Returns the name in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Even => "even",
        }
    }
}

/// One measurement: rate, duration, warm-up, arrivals, seed.
#[derive(Clone, Debug)]
pub struct RunConfig {
    pub(crate) rate: Rate,
    pub(crate) duration: Duration,
    pub(crate) warmup: Duration,
    pub(crate) arrivals: Arrivals,
    pub(crate) seed: u64,
    pub(crate) stop: Option<Arc<AtomicBool>>,
}

impl RunConfig {
    /// Returns a measurement of `duration` at `rate`, after 500 ms of warm-up, with Poisson arrivals and seed 1.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Duration`] for less than a millisecond or more than a day.
    pub fn new(rate: Rate, duration: Duration) -> Result<Self, ConfigError> {
        check_duration("duration", duration, Duration::from_millis(1))?;
        let warmup = Duration::from_millis(500);
        Ok(Self { rate, duration, warmup, arrivals: Arrivals::Poisson, seed: 1, stop: None })
    }

    /// Sets the length of the warm-up, which is not measured.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Duration`] for more than a day.
    pub fn warmup(mut self, warmup: Duration) -> Result<Self, ConfigError> {
        check_duration("warm-up", warmup, Duration::ZERO)?;
        self.warmup = warmup;
        Ok(self)
    }

    /// Sets when requests are due.
    pub fn arrivals(mut self, arrivals: Arrivals) -> Self {
        self.arrivals = arrivals;
        self
    }

    /// Sets the seed; the same seed gives the same send times, keys and sizes.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Ends the run with [`crate::LoadError::Stopped`] within 100 ms of becoming true.
    pub fn stop_flag(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = Some(stop);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        for (text, rate) in
            [("500", 500.0), ("50k", 50e3), ("1.2M", 1.2e6), ("0.5", 0.5), ("2K", 2e3), ("1.005k", 1005.0)]
        {
            assert_eq!(text.parse(), Ok(Rate::PerSecond(rate)), "{text}");
        }
        assert_eq!("max".parse(), Ok(Rate::Max));
        for text in ["", "k", "0", "-5", "+5", "1e3", "inf", "nan", "5q", "5kk", "99999999M", "MAX", "1.2.3"] {
            assert_eq!(text.parse::<Rate>(), Err(ConfigError::Rate(text.into())), "{text}");
        }
    }

    #[test]
    fn shown_rates_are_read_back() {
        for rate in [Rate::Max, Rate::PerSecond(0.5), Rate::PerSecond(20e3), Rate::PerSecond(1.25e6)] {
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
    }
}
