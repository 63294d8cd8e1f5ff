//! The controller's goal.

use std::fmt;
use std::str::FromStr;

use abey_delivery::{Nanos, ParseNanosError};

/// A limit for one of latency and CPU; the other is minimized.
///
/// Text form: `p99=250us` or `cpu=50%`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Limit of the 99th percentile of latency, with minimal CPU.
    P99(Nanos),
    /// Limit of CPU time as a share of one CPU (above 0, at most 1), with minimal latency.
    Cpu(f64),
}

/// The reason why a text is not a goal.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseGoalError {
    /// The text starts with neither `p99=` nor `cpu=`.
    #[error("`{0}` is not a goal: write p99=250us, or cpu=50% for half of one CPU")]
    Unknown(String),
    /// The latency is not a duration.
    #[error("the goal `{text}` has no usable latency: {source}")]
    Latency {
        /// The given text.
        text: String,
        /// The error of the duration.
        source: ParseNanosError,
    },
    /// The latency is zero.
    #[error("the goal `{0}` can never be met: a latency is above 0")]
    NoLatency(String),
    /// The share is not a percentage of one CPU.
    #[error("the goal `{0}` has no usable share: write a percentage above 0 and at most 100, such as cpu=50%")]
    Share(String),
}

impl Goal {
    /// Checks the value. A goal that [`FromStr`] returned always passes.
    ///
    /// # Errors
    /// Returns an error for a latency of zero, and for a share outside of its range.
    pub fn validate(self) -> Result<(), ParseGoalError> {
        match self {
            Self::P99(limit) if limit.is_zero() => Err(ParseGoalError::NoLatency(self.to_string())),
            Self::Cpu(share) if !(share > 0.0 && share <= 1.0) => Err(ParseGoalError::Share(self.to_string())),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::P99(limit) => f.pad(&format!("p99={limit}")),
            // The rounding removes only the error of the multiplication by 100.
            Self::Cpu(share) => f.pad(&format!("cpu={}%", (share * 1e8).round() / 1e6)),
        }
    }
}

impl FromStr for Goal {
    type Err = ParseGoalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let goal = match text.split_once('=') {
            Some(("p99", limit)) => {
                Self::P99(limit.parse().map_err(|source| ParseGoalError::Latency { text: text.to_owned(), source })?)
            }
            Some(("cpu", share)) => {
                let percent = share.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
                Self::Cpu(percent.ok_or_else(|| ParseGoalError::Share(text.to_owned()))? / 100.0)
            }
            _ => return Err(ParseGoalError::Unknown(text.to_owned())),
        };
        goal.validate().map(|()| goal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_read_and_shown() {
        for (text, goal) in [
            ("p99=250us", Goal::P99(Nanos::from_micros(250))),
            ("p99=1ms", Goal::P99(Nanos::from_millis(1))),
            ("cpu=50%", Goal::Cpu(0.5)),
            ("cpu=7%", Goal::Cpu(0.07)),
            ("cpu=12.5%", Goal::Cpu(0.125)),
            ("cpu=100%", Goal::Cpu(1.0)),
        ] {
            assert_eq!(text.parse(), Ok(goal), "{text}");
            assert_eq!(goal.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_goal_says_why() {
        for text in ["", "p99", "p95=3us", "50%"] {
            assert!(matches!(text.parse::<Goal>(), Err(ParseGoalError::Unknown(_))), "{text}");
        }
        for text in ["p99=", "p99=250", "p99=-1us", "p99=fast"] {
            assert!(matches!(text.parse::<Goal>(), Err(ParseGoalError::Latency { .. })), "{text}");
        }
        assert!(matches!("p99=0".parse::<Goal>(), Err(ParseGoalError::NoLatency(_))));
        for text in ["cpu=", "cpu=50", "cpu=0%", "cpu=101%", "cpu=nan%", "cpu=-5%", "cpu=inf%"] {
            assert!(matches!(text.parse::<Goal>(), Err(ParseGoalError::Share(_))), "{text}");
        }
    }
}
