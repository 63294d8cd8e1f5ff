//! A load: a rate of requests, or a closed loop.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A load. Text form: `20k`, `1500`, `1.5m`, `max`; case does not matter.
///
/// Loads are ordered by rate, with [`Load::Max`] last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Load {
    /// Open loop at this rate in requests per second, from 1 to ten million.
    Rate(u64),
    /// Closed loop: each connection sends its next request when it has the response.
    Max,
}

impl Load {
    /// Returns the rate in requests per second; `None` for [`Load::Max`].
    pub const fn rate(self) -> Option<u64> {
        match self {
            Self::Rate(rate) => Some(rate),
            Self::Max => None,
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::Rate(rate) if rate % 1_000 == 0 => format!("{}k", rate / 1_000),
            Self::Rate(rate) => rate.to_string(),
            Self::Max => "max".to_owned(),
        };
        f.pad(&text)
    }
}

/// An error for a text that is no load.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a load: write requests per second from 1 to 10m, such as 20k or 1.5m, or max")]
pub struct ParseLoadError(String);

impl FromStr for Load {
    type Err = ParseLoadError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseLoadError(text.to_owned());
        match text.trim().to_ascii_lowercase().parse().map_err(|_| wrong())? {
            abey_loadgen::Rate::Max => Ok(Self::Max),
            abey_loadgen::Rate::PerSecond(rate) if rate >= 1.0 && rate.fract() == 0.0 => Ok(Self::Rate(rate as u64)),
            abey_loadgen::Rate::PerSecond(_) => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Load {
    type Error = ParseLoadError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Load> for String {
    fn from(load: Load) -> Self {
        load.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_are_parsed() {
        let read = |text: &str| text.parse::<Load>().ok();
        assert_eq!(read("20k"), Some(Load::Rate(20_000)));
        assert_eq!(read("200K"), Some(Load::Rate(200_000)));
        assert_eq!(read("1.5m"), Some(Load::Rate(1_500_000)));
        assert_eq!(read("1000000"), Some(Load::Rate(1_000_000)));
        assert_eq!(read("MAX"), Some(Load::Max));
        for wrong in ["", "k", "0", "0.0k", "-5", "1.5", "1.2345k", "fast", "20kk", "1e5", "99999999999999999999k"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn max_is_greater_than_any_rate() {
        assert!(Load::Rate(u64::MAX) < Load::Max);
    }

    proptest! {
        #[test]
        fn any_rate_round_trips(rate in 1..=10_000_000_u64) {
            prop_assert_eq!(Load::Rate(rate).to_string().parse(), Ok(Load::Rate(rate)));
        }
    }
}
