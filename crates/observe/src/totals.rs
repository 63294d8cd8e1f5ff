//! Counts by device and kind of mode, which go on when instances are made anew or change their mode.
//!
//! What an instance did between two samples is its device's, in the mode that it has at the second one. What it did before
//! it was first seen is nobody's. A device that is gone takes its totals with it: names of virtual devices come and go, and
//! what is kept must not grow with them.

use std::collections::{BTreeMap, BTreeSet};

use abey_delivery::Family;

use crate::collector::Collector;
use crate::counts::Counts;
use crate::sample::{Instance, Key, Sample, World};

/// A device, or the NIC of datapaths.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Who owns its queues.
    pub world: World,
    /// Its name.
    pub name: String,
}

impl Device {
    fn of(instance: &Instance) -> Self {
        Self { world: instance.key.world, name: instance.device.clone() }
    }
}

/// Totals since the first sample.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    before: BTreeMap<Key, Counts>,
    modes: BTreeMap<(Device, Family), Counts>,
    queues: BTreeMap<(Device, String), Counts>,
}

impl Totals {
    /// Takes a sample in, which is later than those before.
    pub fn take(&mut self, sample: &Sample) {
        let mut seen = BTreeSet::new();
        for one in &sample.instances {
            let device = Device::of(one);
            // The first sight of one counts nothing, and makes its row.
            let before = self.before.get(&one.key).unwrap_or(&one.counts);
            let grown = one.counts.since(before);
            self.modes.entry((device.clone(), one.family)).or_default().add(&grown);
            self.queues.entry((device.clone(), one.queue())).or_default().add(&grown);
            seen.insert(device);
        }
        // A collector that failed says nothing about what is gone.
        let is_known = |world| {
            let collector = match world {
                World::Linux => Collector::Napi,
                World::Datapath => Collector::Datapath,
            };
            sample.outcomes.iter().any(|outcome| outcome.collector == collector && outcome.result.is_ok())
        };
        let (linux, datapath) = (is_known(World::Linux), is_known(World::Datapath));
        let is_gone = |device: &Device| {
            let known = if device.world == World::Linux { linux } else { datapath };
            known && !seen.contains(device)
        };
        self.modes.retain(|(device, _), _| !is_gone(device));
        self.queues.retain(|(device, _), _| !is_gone(device));
        self.before.retain(|key, _| !(if key.world == World::Linux { linux } else { datapath }));
        self.before.extend(sample.instances.iter().map(|one| (one.key, one.counts)));
    }

    /// By device and kind of mode.
    pub fn modes(&self) -> impl Iterator<Item = (&Device, Family, &Counts)> {
        self.modes.iter().map(|((device, family), counts)| (device, *family, counts))
    }

    /// By device and the queues that an instance serves.
    pub fn queues(&self) -> impl Iterator<Item = (&Device, &str, &Counts)> {
        self.queues.iter().map(|((device, queue), counts)| (device, queue.as_str(), counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::Outcome;
    use crate::counts::Counter;
    use crate::sample::tests_support::{self, sample};
    use abey_delivery::Mode;

    fn of(totals: &Totals, family: &str) -> Option<u64> {
        totals.modes().find(|(_, of, _)| of.name() == family).and_then(|(_, _, counts)| counts.get(Counter::Packets))
    }

    fn instance(napi: u32, mode: &str, packets: u64) -> Instance {
        let mut one = tests_support::instance("eth0", napi);
        one.counts.set(Counter::Packets, packets);
        one.family = Family::of(&mode.parse::<Mode>().expect(mode).settings());
        one
    }

    #[test]
    fn what_was_done_belongs_to_the_mode_of_its_time_and_outlives_instances() {
        let mut totals = Totals::default();
        totals.take(&sample(vec![instance(1, "base", 1000)]));
        assert_eq!(of(&totals, "base"), Some(0));
        totals.take(&sample(vec![instance(1, "base", 1010)]));
        totals.take(&sample(vec![instance(1, "suspend20", 1015)]));
        assert_eq!((of(&totals, "base"), of(&totals, "suspend")), (Some(10), Some(5)));
        // The queue is made anew, with another ID.
        totals.take(&sample(vec![instance(2, "suspend20", 0)]));
        totals.take(&sample(vec![instance(2, "suspend50", 7)]));
        assert_eq!((of(&totals, "base"), of(&totals, "suspend")), (Some(10), Some(12)));
        let (device, queue, counts) = totals.queues().next().expect("a queue");
        assert_eq!((device.name.as_str(), queue, counts.get(Counter::Packets)), ("eth0", "0", Some(22)));
    }

    #[test]
    fn a_device_that_is_gone_is_forgotten_and_one_that_cannot_be_seen_is_not() {
        let mut totals = Totals::default();
        totals.take(&sample(vec![instance(1, "base", 10)]));
        totals.take(&sample(vec![instance(1, "base", 30)]));
        let failed = |outcome: Outcome| Outcome { result: Err("no".to_owned()), ..outcome };
        let mut blind = sample(Vec::new());
        blind.outcomes = blind.outcomes.into_iter().map(failed).collect();
        totals.take(&blind);
        assert_eq!(of(&totals, "base"), Some(20));
        totals.take(&sample(vec![instance(1, "base", 31)]));
        assert_eq!(of(&totals, "base"), Some(21));
        totals.take(&sample(Vec::new()));
        assert_eq!(of(&totals, "base"), None);
    }
}
