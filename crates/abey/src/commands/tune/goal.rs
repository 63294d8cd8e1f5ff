//! What is wanted of the tuner: a goal, and the bounds it keeps to.

use std::ops::RangeInclusive;

use abey_delivery::{Family, Nanos};
use abey_tune::{Bounds, Goal};

use crate::failure::Failure;

/// What is wanted.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct GoalArgs {
    /// The goal: the latency that 99 % of the requests stay within (p99=250us), at as little CPU as that takes; or the
    /// share of one CPU that may be used (cpu=50%), with the lowest latency for it
    #[arg(long, value_name = "p99=TIME|cpu=N%")]
    pub(crate) goal: Option<Goal>,
    /// The bounds of gro-flush-timeout [default: 10us..200us]
    #[arg(long, value_name = "MIN..MAX", value_parser = range)]
    gro_flush_timeout: Option<Range>,
    /// The bounds of irq-suspend-timeout [default: 5ms..20ms]
    #[arg(long, value_name = "MIN..MAX", value_parser = range)]
    irq_suspend_timeout: Option<Range>,
    /// The families of modes to choose from: base, defer, suspend, napibusy; on a datapath also fullbusy [default: base,
    /// defer, suspend, as far as they can be had]
    #[arg(long, value_name = "FAMILY,..", value_delimiter = ',')]
    pub(crate) families: Vec<Family>,
}

/// Two times, both included.
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

/// A range in text form. That it is not empty is the bounds' to check, in the words of the setting.
fn range(text: &str) -> Result<Range, String> {
    let wrong = |why: String| format!("{why}: write two times with two dots between them, such as 10us..200us");
    let (low, high) = text.split_once("..").ok_or_else(|| wrong(format!("`{text}` is no range")))?;
    let time = |text: &str| text.parse::<Nanos>().map_err(|error| wrong(error.to_string()));
    Ok(Range { low: time(low)?, high: time(high)? })
}

impl GoalArgs {
    /// The goal, which has to be given.
    pub(crate) fn wanted(&self) -> Result<Goal, Failure> {
        self.goal.ok_or_else(|| Failure::usage("say what is wanted: --goal p99=250us, or --goal cpu=50%"))
    }

    /// The bounds, of which the families are `possible` where none are named.
    pub(crate) fn bounds(&self, possible: &[Family]) -> Result<Bounds, Failure> {
        let default = Bounds::default();
        let flush = self.gro_flush_timeout.map_or_else(|| default.flush(), Into::into);
        let suspend = self.irq_suspend_timeout.map_or_else(|| default.suspend(), Into::into);
        let families = if self.families.is_empty() { possible } else { &self.families };
        Bounds::new(flush, suspend, families).map_err(Failure::usage)
    }

    /// Whether anything is said that only a tuner understands.
    pub(crate) fn is_given(&self) -> bool {
        let Self { goal, gro_flush_timeout, irq_suspend_timeout, families } = self;
        goal.is_some() || gro_flush_timeout.is_some() || irq_suspend_timeout.is_some() || !families.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_empty_ones_are_no_bounds() {
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
