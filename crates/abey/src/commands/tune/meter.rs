//! What the instances of a group do in an interval: packets, polls, and CPU time.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use abey_linux::cpu::{CpuList, CpuTimes};
use abey_linux::device::received_packets;
use abey_linux::napi::Napi;
use abey_observe::{Counter, Counts};
use abey_tune::Sample;

use super::machine::Shared;
use super::split::Polled;
use crate::failure::Failure;

/// Reads the counters of some instances.
pub(super) struct Meter {
    machine: Shared,
    /// What the machine knows the group by.
    number: u32,
    /// Whether polls are counted: where nobody sees latencies, and where the device's counters are not of these instances
    /// alone. It costs a server that polls much a few hundredths of its CPU.
    counts_polls: bool,
    polled: Polled,
    /// The instances' IDs, as they were last seen.
    ids: BTreeSet<u32>,
    mark: Option<Mark>,
}

/// The counters when an interval began.
struct Mark {
    at: Instant,
    cpu: CpuTimes,
    packets: u64,
    polls: BTreeMap<u32, (Counts, BTreeMap<u32, u64>)>,
}

impl Meter {
    pub(super) fn new(machine: &Shared, counts_polls: bool) -> Self {
        let number = machine.borrow_mut().number();
        let (machine, polled, ids) = (Rc::clone(machine), Polled::default(), BTreeSet::new());
        Self { machine, number, counts_polls, polled, ids, mark: None }
    }

    /// Whether these are the instances that are known.
    pub(super) fn knows(&self, found: &[Napi]) -> bool {
        self.ids == ids(found)
    }

    /// These are the instances from here on.
    pub(super) fn know(&mut self, found: &[Napi]) -> Result<(), Failure> {
        self.ids = ids(found);
        if self.counts_polls { self.machine.borrow_mut().watch(self.number, self.ids.clone()) } else { Ok(()) }
    }

    /// Those that are known.
    pub(super) fn ids(&self) -> &BTreeSet<u32> {
        &self.ids
    }

    /// Whether one CPU polls instances of both.
    pub(super) fn meets(&self, other: &Self) -> bool {
        self.polled.meets(&other.polled)
    }

    /// What others saw, whose instances are to be known here next.
    pub(super) fn unite(&mut self, other: Self) -> Result<(), Failure> {
        self.mark = None;
        self.polled.unite(other.polled);
        self.machine.borrow_mut().watch(other.number, BTreeSet::new())
    }

    /// An interval begins. While the device is away there is none.
    pub(super) fn begin(&mut self, ifindex: Option<u32>) -> Result<(), Failure> {
        self.mark = ifindex.map_or(Ok(None), |ifindex| self.mark(ifindex))?;
        Ok(())
    }

    /// What happened since it began; nothing if the device was away. The CPU time is that of `cpus`, or of the CPUs that poll.
    pub(super) fn end(&mut self, ifindex: u32, cpus: Option<&CpuList>) -> Result<Option<Sample>, Failure> {
        let Some((before, now)) = self.mark.take().zip(self.mark(ifindex)?) else { return Ok(None) };
        let (counts, by_cpu) = between(&before, &now);
        self.polled.add(&by_cpu);
        let polling = self.polled.cpus();
        let counted = |counter| counts.get(counter).unwrap_or(0);
        let packets = now.packets.saturating_sub(before.packets);
        Ok(Some(Sample {
            interval: Nanos::from_nanos((now.at - before.at).as_nanos() as u64),
            packets: if self.counts_polls { counted(Counter::Packets) } else { packets },
            polls: counts.polls().unwrap_or(0),
            empty_polls: counted(Counter::EmptyPolls),
            cpu: share(&before, &now, cpus.unwrap_or(&polling))?,
            latency: None,
        }))
    }

    fn mark(&self, ifindex: u32) -> Result<Option<Mark>, Failure> {
        let mut machine = self.machine.borrow_mut();
        let packets = match received_packets(machine.place().netlink(), ifindex) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        let mut polls = BTreeMap::new();
        for id in self.ids.iter().filter(|_| self.counts_polls) {
            polls.insert(*id, machine.counts(*id).map_err(Failure::check)?);
        }
        Ok(Some(Mark { at: Instant::now(), cpu: CpuTimes::read().map_err(Failure::check)?, packets, polls }))
    }
}

/// A sample of nothing, from which a controller learns nothing.
pub(super) fn nothing(interval: Duration) -> Sample {
    let interval = Nanos::from_nanos(interval.as_nanos() as u64);
    Sample { interval, packets: 0, polls: 0, empty_polls: 0, cpu: 0.0, latency: None }
}

fn ids(found: &[Napi]) -> BTreeSet<u32> {
    found.iter().map(|napi| napi.id).collect()
}

/// CPU time of these CPUs, as a share of one.
fn share(before: &Mark, now: &Mark, cpus: &CpuList) -> Result<f64, Failure> {
    if cpus.is_empty() {
        // Nothing was polled, so there is nothing to learn from it either.
        return Ok(0.0);
    }
    let usage = now.cpu.since(&before.cpu, cpus).map_err(Failure::check)?;
    Ok(usage.busy_time.as_secs_f64() / usage.interval.as_secs_f64().max(1e-9))
}

/// What was counted of all instances in an interval, and how many polls on each CPU.
fn between(before: &Mark, now: &Mark) -> (Counts, BTreeMap<u32, u64>) {
    let (mut all, mut by_cpu) = (Counts::default(), BTreeMap::<u32, u64>::new());
    for (id, (counts, cpus)) in &now.polls {
        let (counts_before, cpus_before) = before.polls.get(id).cloned().unwrap_or_default();
        all.add(&counts.since(&counts_before));
        for (cpu, count) in cpus {
            let earlier = cpus_before.get(cpu).copied().unwrap_or(0);
            *by_cpu.entry(*cpu).or_default() += count.saturating_sub(earlier);
        }
    }
    (all, by_cpu)
}
