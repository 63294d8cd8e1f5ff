//! The parts of a sample, which succeed or fail one by one.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A part of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Collector {
    /// The kernel's instances and their settings, by netlink: without it there are none of the kernel's.
    Napi,
    /// Polls, packets, timers, suspensions and softirq CPU time of the kernel's instances, by BPF.
    Polls,
    /// Their interrupts, from `/proc/interrupts`.
    Interrupts,
    /// The receive softirq's squeezes and drops, from `/proc/net/softnet_stat`.
    Softnet,
    /// Running datapaths, by their control sockets.
    Datapath,
}

impl Collector {
    /// All of them, in the order in which they are asked.
    pub const ALL: [Self; 5] = [Self::Napi, Self::Polls, Self::Interrupts, Self::Softnet, Self::Datapath];

    /// Its name.
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

/// A name that no collector has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no collector {0:?}: they are {all}", all = Collector::ALL.map(Collector::name).join(", "))]
pub struct UnknownCollector(String);

impl FromStr for Collector {
    type Err = UnknownCollector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|collector| collector.name() == text);
        found.ok_or_else(|| UnknownCollector(text.to_owned()))
    }
}

/// How a collector fared in one sample.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub collector: Collector,
    /// How long it took.
    pub took: Duration,
    /// Why it could not read everything, if it could not.
    pub result: Result<(), String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for collector in Collector::ALL {
            assert_eq!(collector.to_string().parse(), Ok(collector));
        }
        let unknown = "cpu".parse::<Collector>().expect_err("no such collector").to_string();
        assert_eq!(unknown, "there is no collector \"cpu\": they are napi, polls, interrupts, softnet, datapath");
    }
}
