//! Time in integer nanoseconds.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

/// A point in time or a span of it, in nanoseconds.
///
/// One type serves both, as in the kernel's `ktime_t`: an instant is the span since an origin that the world chooses.
/// "No deadline" is `Option::<Nanos>::None`, never zero.
///
/// Text form: a decimal number with a unit (`250ns`, `20us`, `1.5ms`, `2s`), or a plain `0`. Serde form (feature `serde`): the
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Nanos(u64);

impl Nanos {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// Returns `n` nanoseconds.
    pub const fn from_nanos(n: u64) -> Self {
        Self(n)
    }

    /// Returns `n` microseconds; saturates at the largest value (584 years).
    pub const fn from_micros(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }

    /// Returns `n` milliseconds; saturates at the largest value (584 years).
    pub const fn from_millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// Returns the number of nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the number of whole microseconds, rounded down.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns whether this is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns the difference, or zero if `other` is larger.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Nanos {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sub for Nanos {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Self {
        Self::from_nanos(span.0)
    }
}

const UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

impl fmt::Display for Nanos {
    /// Writes the time in the largest unit that needs no fraction: `20us`, `1500us`, `2s`, `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.pad("0");
        }
        let (unit, scale) =
            UNITS.into_iter().rev().find(|(_, scale)| self.0.is_multiple_of(*scale)).expect("1 divides everything");
        f.pad(&format!("{}{unit}", self.0 / scale))
    }
}

/// Why a text is not a time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseNanosError {
    /// The number has no unit.
    #[error("`{0}` has no unit: write {0}us, {0}ms or {0}s")]
    NoUnit(String),
    /// The text is not a number with a unit.
    #[error("`{0}` is not a duration: write a number with a unit, such as 20us, 1.5ms or 2s")]
    Malformed(String),
    /// A fraction of a nanosecond, or more than 584 years.
    #[error("`{0}` is out of range: durations are whole nanoseconds up to 584 years")]
    OutOfRange(String),
}

impl FromStr for Nanos {
    type Err = ParseNanosError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &text[digits.len()..];
        let malformed = || ParseNanosError::Malformed(text.to_owned());
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || digits.ends_with('.') {
            return Err(malformed());
        }
        let out_of_range = || ParseNanosError::OutOfRange(text.to_owned());
        let whole: u64 = whole.parse().map_err(|_| out_of_range())?;
        if unit.is_empty() {
            let zero = whole == 0 && fraction.is_empty();
            return if zero { Ok(Self::ZERO) } else { Err(ParseNanosError::NoUnit(text.to_owned())) };
        }
        let (_, scale) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(malformed)?;
        // A fraction must be a whole number of nanoseconds: 1.5ms is 1,500,000 ns; 0.5ns is an error.
        let fraction = fraction.trim_end_matches('0');
        let fraction = if fraction.is_empty() {
            0
        } else {
            let power =
                u32::try_from(fraction.len()).ok().and_then(|n| 10u64.checked_pow(n)).ok_or_else(out_of_range)?;
            let parts = fraction.parse::<u64>().map_err(|_| out_of_range())?;
            let scaled = parts.checked_mul(scale).ok_or_else(out_of_range)?;
            if scaled % power != 0 {
                return Err(out_of_range());
            }
            scaled / power
        };
        whole.checked_mul(scale).and_then(|n| n.checked_add(fraction)).map(Self).ok_or_else(out_of_range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_are_parsed() {
        for (text, ns) in
            [("0", 0), ("250ns", 250), ("20us", 20_000), ("1.5ms", 1_500_000), ("2s", 2_000_000_000), ("0.001us", 1)]
        {
            assert_eq!(text.parse(), Ok(Nanos::from_nanos(ns)), "{text}");
        }
    }

    #[test]
    fn invalid_texts_are_rejected_with_the_reason() {
        use ParseNanosError::{Malformed, NoUnit, OutOfRange};
        for text in ["", "us", "-1us", "1 us", "1.us", ".5us", "1min", "1e3us", "+1us", "1.5.5us"] {
            assert_eq!(text.parse::<Nanos>(), Err(Malformed(text.into())), "{text}");
        }
        assert_eq!("20".parse::<Nanos>(), Err(NoUnit("20".into())));
        for text in
            ["0.5ns", "1.0000000001s", "99999999999999999999s", "18446744073709551615us", "0.99999999999999999999s"]
        {
            assert_eq!(text.parse::<Nanos>(), Err(OutOfRange(text.into())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn displayed_times_parse_back(ns: u64) {
            let shown = Nanos::from_nanos(ns).to_string();
            prop_assert_eq!(shown.parse(), Ok(Nanos::from_nanos(ns)));
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,12}") {
            let _ = text.parse::<Nanos>();
        }
    }
}
