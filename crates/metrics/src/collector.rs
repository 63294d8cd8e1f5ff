//! The parts of a sample, each of which succeeds or fails on its own.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A part of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Collector {
    /// The kernel's NAPI instances and their settings, over netlink. Without it a sample has no instance of the kernel.
    Napi,
    /// Polls, packets, timers, suspensions and softirq CPU time of the kernel's instances, counted by BPF programs.
    Polls,
    /// Interrupts of the kernel's instances, from `/proc/interrupts`.
    Interrupts,
    /// Squeezes and drops of the receive softirq, from `/proc/net/softnet_stat`.
    Softnet,
    /// Running datapaths, over their control sockets.
    Datapath,
}

impl Collector {
    /// All collectors, in the order in which a sample runs them.
    pub const ALL: [Self; 5] = [Self::Napi, Self::Polls, Self::Interrupts, Self::Softnet, Self::Datapath];

    /// Returns the collector's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Napi => "napi",
            Self::Polls => "polls",
            Self::Interrupts => "interrupts",
            Self::Softnet => "softnet",
            Self::Datapath => "datapath",
        }
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error for a name that no collector has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no collector {0:?}: use {all}", all = Collector::ALL.map(Collector::name).join(", "))]
pub struct UnknownCollector(String);

impl FromStr for Collector {
    type Err = UnknownCollector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|collector| collector.name() == text);
        found.ok_or_else(|| UnknownCollector(text.to_owned()))
    }
}

/// The result of one collector in one sample.
#[derive(Clone, Debug)]
pub struct CollectorResult {
    /// The collector.
    pub collector: Collector,
    /// How long it took.
    pub duration: Duration,
    /// The error, if it could not read everything.
    pub result: Result<(), String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for collector in Collector::ALL {
            assert_eq!(collector.to_string().parse(), Ok(collector));
        }
        let unknown = "cpu".parse::<Collector>().expect_err("no such collector").to_string();
        assert_eq!(unknown, "there is no collector \"cpu\": use napi, polls, interrupts, softnet, datapath");
    }
}
