//! The tuner's goal, bounds and sources of latencies, as arguments.

use std::ops::RangeInclusive;
use std::path::Path;

use abey_delivery::{Family, Nanos};
use abey_linux::netns::NetNs;
use abey_loadgen::Rate;
use abey_tune::{Bounds, Goal};
use abey_tuner::latency::{LatencyFile, LatencySource};
use abey_tuner::probe::{Probe, ProbeTarget};

use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::nic_args::resolve;

/// The goal and the bounds.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct GoalArgs {
    /// Hold the latency of 99 % of the requests (p99=250us) with the least CPU, or a share of one CPU (cpu=50%) with the
    /// lowest latency
    #[arg(long, value_name = "p99=TIME|cpu=N%")]
    pub(crate) goal: Option<Goal>,
    /// Bounds of gro-flush-timeout [default: 10us..200us]
    #[arg(long, value_name = "MIN..MAX", value_parser = range)]
    gro_flush_timeout: Option<Range>,
    /// Bounds of irq-suspend-timeout [default: 5ms..20ms]
    #[arg(long, value_name = "MIN..MAX", value_parser = range)]
    irq_suspend_timeout: Option<Range>,
    /// Families of modes to choose from: base, defer, suspend, napibusy; on a datapath also fullbusy [default: base, defer,
    /// suspend, as far as they are available]
    #[arg(long, value_name = "FAMILY,..", value_delimiter = ',')]
    pub(crate) families: Vec<Family>,
}

/// A range of times, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    low: Nanos,
    high: Nanos,
}

impl From<Range> for RangeInclusive<Nanos> {
    fn from(range: Range) -> Self {
        range.low..=range.high
    }
}

/// Parses a range. Empty ranges are refused by the bounds, which name the setting.
fn range(text: &str) -> Result<Range, String> {
    let wrong = |why: String| format!("{why}: write two times with two dots between them, such as 10us..200us");
    let (low, high) = text.split_once("..").ok_or_else(|| wrong(format!("`{text}` is no range")))?;
    let time = |text: &str| text.parse::<Nanos>().map_err(|error| wrong(error.to_string()));
    Ok(Range { low: time(low)?, high: time(high)? })
}

impl GoalArgs {
    /// Returns the goal, which is required.
    pub(crate) fn wanted(&self) -> Result<Goal, Failure> {
        self.goal.ok_or_else(|| Failure::usage("there is no goal: give --goal p99=250us or --goal cpu=50%"))
    }

    /// Returns the bounds, with the families in `available` where none are named.
    pub(crate) fn bounds(&self, available: &[Family]) -> Result<Bounds, Failure> {
        let default = Bounds::default();
        let flush = self.gro_flush_timeout.map_or_else(|| default.flush(), Into::into);
        let suspend = self.irq_suspend_timeout.map_or_else(|| default.suspend(), Into::into);
        let families = if self.families.is_empty() { available } else { &self.families };
        Bounds::new(flush, suspend, families).map_err(Failure::usage)
    }

    /// Returns whether any of these arguments is given.
    pub(crate) fn is_given(&self) -> bool {
        let Self { goal, gro_flush_timeout, irq_suspend_timeout, families } = self;
        goal.is_some() || gro_flush_timeout.is_some() || irq_suspend_timeout.is_some() || !families.is_empty()
    }
}

/// The probe.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ProbeArgs {
    /// Measure latencies by a few requests to the server: memcached (the default; stores one key), redis, http or rr
    #[arg(long, value_name = "HOST:PORT[/PROTOCOL]")]
    pub(crate) probe: Option<ProbeTarget>,
    /// Requests of the probe per second
    #[arg(long, value_name = "RATE", default_value = "500", requires = "probe")]
    probe_rate: Rate,
    /// Network namespace that the probe sends from [default: that of --netns]
    #[arg(long, value_name = "NAME", requires = "probe")]
    probe_netns: Option<String>,
}

impl ProbeArgs {
    /// Opens the source of latencies that was requested: the probe, or the file `latencies`.
    pub(crate) fn open(
        &self,
        latencies: Option<&Path>,
        namespace: &Namespace,
    ) -> Result<Option<Box<dyn LatencySource>>, Failure> {
        Ok(match (&self.probe, latencies) {
            (Some(target), _) => {
                let netns = match &self.probe_netns {
                    Some(name) => NetNs::named(name)?,
                    None => namespace.open()?,
                };
                let address = resolve(&target.host, "10.0.0.5:11211")?;
                Some(Box::new(Probe::start(target, address, self.probe_rate, netns)?))
            }
            (None, Some(path)) => Some(Box::new(LatencyFile::open(path)?)),
            (None, None) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_and_empty_ones_are_refused() {
        let us = Nanos::from_micros;
        assert_eq!(range("10us..0.2ms"), Ok(Range { low: us(10), high: us(200) }));
        for wrong in ["", "10us", "10us..", "..20us", "10..20", "10us..20us..30us"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
        let args = |flush: &str, families: Vec<Family>| GoalArgs {
            goal: None,
            gro_flush_timeout: Some(range(flush).expect("a range")),
            irq_suspend_timeout: None,
            families,
        };
        let empty = args("20us..10us", Vec::new()).bounds(&[Family::Defer]).expect_err("empty").to_string();
        assert!(empty.contains("gro-flush-timeout"), "{empty}");
        assert!(args("10us..20us", vec![Family::Threaded]).bounds(&[]).is_err());
        let bounds = args("10us..20us", Vec::new()).bounds(&[Family::Base]).expect("bounds");
        assert_eq!((bounds.families(), bounds.flush()), (&[Family::Base][..], us(10)..=us(20)));
        assert!(args("10us..20us", Vec::new()).wanted().is_err());
    }
}
