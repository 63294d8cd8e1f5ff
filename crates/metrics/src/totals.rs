//! Totals by device and mode family, which continue when instances are created anew or change their mode.
//!
//! What an instance counts between two samples is added to its device, under the mode family of the second sample. Counts
//! before the first sample are dropped. A device that disappears loses its totals: virtual devices come and go, and the memory for
//! totals must not grow with them.

use std::collections::{BTreeMap, BTreeSet};

use abey_delivery::Family;

use crate::collector::Collector;
use crate::counts::Counts;
use crate::sample::{Instance, InstanceKey, Owner, Sample};

/// The number of totals above which devices that are absent from a sample are dropped even if their collector has failed.
const MAX_TOTALS: usize = 4096;

/// A network device, or the NIC of datapaths.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The owner of its queues.
    pub owner: Owner,
    /// Its name.
    pub name: String,
}

impl Device {
    fn of(instance: &Instance) -> Self {
        Self { owner: instance.key.owner, name: instance.device.clone() }
    }
}

/// Totals since the first sample.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    before: BTreeMap<InstanceKey, Counts>,
    by_mode: BTreeMap<(Device, Family), Counts>,
    by_queue: BTreeMap<(Device, String), Counts>,
}

impl Totals {
    /// Adds a sample, which must be later than those before.
    pub fn add(&mut self, sample: &Sample) {
        let mut present = BTreeSet::new();
        for one in &sample.instances {
            let device = Device::of(one);
            // A new instance adds zero, which creates its entry.
            let before = self.before.get(&one.key).unwrap_or(&one.counts);
            let grown = one.counts.since(before);
            self.by_mode.entry((device.clone(), one.family)).or_default().add(&grown);
            self.by_queue.entry((device.clone(), one.queue_list())).or_default().add(&grown);
            present.insert(device);
        }
        // If its collector failed, an instance that is absent from the sample may still exist.
        let was_read = |owner| {
            let collector = match owner {
                Owner::Linux => Collector::Napi,
                Owner::Datapath => Collector::Datapath,
            };
            sample.results.iter().any(|result| result.collector == collector && result.result.is_ok())
        };
        let (linux, datapath) = (was_read(Owner::Linux), was_read(Owner::Datapath));
        let was_read = |owner| if owner == Owner::Linux { linux } else { datapath };
        // Datapaths name their NICs themselves: a process that changes the name must not make the totals grow.
        let is_full = self.by_mode.len() > MAX_TOTALS;
        let is_removed = |device: &Device| (is_full || was_read(device.owner)) && !present.contains(device);
        self.by_mode.retain(|(device, _), _| !is_removed(device));
        self.by_queue.retain(|(device, _), _| !is_removed(device));
        self.before.retain(|key, _| !was_read(key.owner));
        self.before.extend(sample.instances.iter().map(|one| (one.key, one.counts)));
    }

    /// Returns the totals by device and mode family.
    pub fn by_mode(&self) -> impl Iterator<Item = (&Device, Family, &Counts)> {
        self.by_mode.iter().map(|((device, family), counts)| (device, *family, counts))
    }

    /// Returns the totals by device and the queues that an instance serves.
    pub fn by_queue(&self) -> impl Iterator<Item = (&Device, &str, &Counts)> {
        self.by_queue.iter().map(|((device, queue), counts)| (device, queue.as_str(), counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::CollectorResult;
    use crate::counts::Counter;
    use crate::sample::tests_support::{self, sample};
    use abey_delivery::Mode;

    fn packets(totals: &Totals, family: &str) -> Option<u64> {
        totals.by_mode().find(|(_, of, _)| of.name() == family).and_then(|(_, _, counts)| counts.get(Counter::Packets))
    }

    fn instance(napi: u32, mode: &str, packets: u64) -> Instance {
        let mut one = tests_support::instance("eth0", napi);
        one.counts.set(Counter::Packets, packets);
        one.family = Family::of(&mode.parse::<Mode>().expect(mode).settings());
        one
    }

    #[test]
    fn counts_go_to_the_mode_of_their_sample_and_outlive_instances() {
        let mut totals = Totals::default();
        totals.add(&sample(vec![instance(1, "base", 1000)]));
        assert_eq!(packets(&totals, "base"), Some(0));
        totals.add(&sample(vec![instance(1, "base", 1010)]));
        totals.add(&sample(vec![instance(1, "suspend20", 1015)]));
        assert_eq!((packets(&totals, "base"), packets(&totals, "suspend")), (Some(10), Some(5)));
        // The queue is created anew, with another NAPI ID.
        totals.add(&sample(vec![instance(2, "suspend20", 0)]));
        totals.add(&sample(vec![instance(2, "suspend50", 7)]));
        assert_eq!((packets(&totals, "base"), packets(&totals, "suspend")), (Some(10), Some(12)));
        let (device, queue, counts) = totals.by_queue().next().expect("a queue");
        assert_eq!((device.name.as_str(), queue, counts.get(Counter::Packets)), ("eth0", "0", Some(22)));
    }

    #[test]
    fn totals_of_a_removed_device_are_dropped_but_a_failed_collector_removes_nothing() {
        let mut totals = Totals::default();
        totals.add(&sample(vec![instance(1, "base", 10)]));
        totals.add(&sample(vec![instance(1, "base", 30)]));
        let failed = |result: CollectorResult| CollectorResult { result: Err("no".to_owned()), ..result };
        let mut unread = sample(Vec::new());
        unread.results = unread.results.into_iter().map(failed).collect();
        totals.add(&unread);
        assert_eq!(packets(&totals, "base"), Some(20));
        totals.add(&sample(vec![instance(1, "base", 31)]));
        assert_eq!(packets(&totals, "base"), Some(21));
        totals.add(&sample(Vec::new()));
        assert_eq!(packets(&totals, "base"), None);
    }
}
