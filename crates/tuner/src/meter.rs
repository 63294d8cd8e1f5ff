//! Packets, polls and CPU time of a group's instances in an interval.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use abey_linux::cpu::{CpuList, CpuTimes};
use abey_linux::device::received_packets;
use abey_linux::napi::Napi;
use abey_metrics::{Counter, Counts};
use abey_tune::Sample;

use crate::TuneError;
use crate::host::SharedHost;
use crate::poll_cpus::PollCpus;

/// Reads the counters of a group's instances.
pub(crate) struct Meter {
    host: SharedHost,
    /// The group's number at the host.
    number: u32,
    /// Whether polls are counted: where there is no source of latencies, and where the device's counters include other instances.
    /// Counting costs a server that polls much a few hundredths of its CPU.
    counts_polls: bool,
    polled: PollCpus,
    /// The current IDs of the instances.
    ids: BTreeSet<u32>,
    start: Option<Reading>,
}

/// Counters at one moment.
struct Reading {
    at: Instant,
    cpu: CpuTimes,
    packets: u64,
    polls: BTreeMap<u32, (Counts, BTreeMap<u32, u64>)>,
}

impl Meter {
    pub(crate) fn new(host: &SharedHost, counts_polls: bool) -> Self {
        let number = host.borrow_mut().add_group();
        let (host, polled, ids) = (Rc::clone(host), PollCpus::default(), BTreeSet::new());
        Self { host, number, counts_polls, polled, ids, start: None }
    }

    /// Returns whether the group consists of exactly these instances.
    pub(crate) fn has(&self, found: &[Napi]) -> bool {
        self.ids == ids(found)
    }

    /// Sets the group's instances.
    pub(crate) fn set_instances(&mut self, found: &[Napi]) -> Result<(), TuneError> {
        self.ids = ids(found);
        if self.counts_polls { self.host.borrow_mut().count_polls(self.number, self.ids.clone()) } else { Ok(()) }
    }

    pub(crate) fn ids(&self) -> &BTreeSet<u32> {
        &self.ids
    }

    /// Returns whether one CPU polls instances of both groups.
    pub(crate) fn shares_cpu_with(&self, other: &Self) -> bool {
        self.polled.shares_cpu_with(&other.polled)
    }

    /// Takes over the polls of another group, whose instances are added by [`Self::set_instances`] next.
    pub(crate) fn merge(&mut self, other: Self) -> Result<(), TuneError> {
        self.start = None;
        self.polled.merge(other.polled);
        self.host.borrow_mut().count_polls(other.number, BTreeSet::new())
    }

    /// Begins an interval; `None` while the device is absent, for an interval without counters.
    pub(crate) fn begin(&mut self, ifindex: Option<u32>) -> Result<(), TuneError> {
        self.start = ifindex.map_or(Ok(None), |ifindex| self.read(ifindex))?;
        Ok(())
    }

    /// Returns the sample of the interval; `None` if the device was absent. CPU time is that of `cpus`, or of the CPUs that poll.
    pub(crate) fn end(&mut self, ifindex: u32, cpus: Option<&CpuList>) -> Result<Option<Sample>, TuneError> {
        let Some((before, now)) = self.start.take().zip(self.read(ifindex)?) else { return Ok(None) };
        let (counts, by_cpu) = difference(&before, &now);
        self.polled.add(&by_cpu);
        let polling = self.polled.cpus();
        let counted = |counter| counts.get(counter).unwrap_or(0);
        let packets = now.packets.saturating_sub(before.packets);
        Ok(Some(Sample {
            interval: Nanos::from_nanos((now.at - before.at).as_nanos() as u64),
            packets: if self.counts_polls { counted(Counter::Packets) } else { packets },
            polls: counts.polls().unwrap_or(0),
            empty_polls: counted(Counter::EmptyPolls),
            cpu: cpu_share(&before, &now, cpus.unwrap_or(&polling))?,
            latency: None,
        }))
    }

    fn read(&self, ifindex: u32) -> Result<Option<Reading>, TuneError> {
        let mut host = self.host.borrow_mut();
        let packets = match received_packets(host.handle().netlink(), ifindex) {
            Err(error) if error.is_not_found() => return Ok(None),
            other => other?,
        };
        let mut polls = BTreeMap::new();
        for id in self.ids.iter().filter(|_| self.counts_polls) {
            polls.insert(*id, host.counts(*id).map_err(TuneError::failed)?);
        }
        Ok(Some(Reading { at: Instant::now(), cpu: CpuTimes::read().map_err(TuneError::failed)?, packets, polls }))
    }
}

/// Returns the sample of an interval without packets, from which a controller learns nothing.
pub(crate) fn empty_sample(interval: Duration) -> Sample {
    let interval = Nanos::from_nanos(interval.as_nanos() as u64);
    Sample { interval, packets: 0, polls: 0, empty_polls: 0, cpu: 0.0, latency: None }
}

fn ids(found: &[Napi]) -> BTreeSet<u32> {
    found.iter().map(|napi| napi.id).collect()
}

/// Returns the CPU time of these CPUs, as a share of one.
fn cpu_share(before: &Reading, now: &Reading, cpus: &CpuList) -> Result<f64, TuneError> {
    if cpus.is_empty() {
        // There were no polls.
        return Ok(0.0);
    }
    let usage = now.cpu.since(&before.cpu, cpus).map_err(TuneError::failed)?;
    Ok(usage.busy_time.as_secs_f64() / usage.interval.as_secs_f64().max(1e-9))
}

/// Returns the counts of all instances between two readings, and the number of polls by CPU.
fn difference(before: &Reading, now: &Reading) -> (Counts, BTreeMap<u32, u64>) {
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
