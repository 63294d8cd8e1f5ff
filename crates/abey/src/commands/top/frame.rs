//! What is shown at one time: rows, and what there is to say beside them.

use std::collections::BTreeMap;
use std::time::Instant;

use abey_datapath::control::Role;
use abey_delivery::Nanos;
use abey_linux::cpu::{CpuList, CpuTimes};
use abey_observe::rates::Rates;
use abey_observe::{Datapath, Sample, Sampler};

/// Takes looks, each counted from the one before.
pub(super) struct Looker {
    sampler: Sampler,
    began: Instant,
    before: (Sample, Option<CpuTimes>),
}

/// One look.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    pub(super) rows: Vec<Rates>,
    /// How busy the machine's CPUs were, in percent of all of them.
    pub(super) machine_cpu_percent: Option<f64>,
    /// CPU time of datapaths, in words.
    pub(super) datapaths: Vec<String>,
    /// What could not be read.
    pub(super) notes: Vec<String>,
}

impl Looker {
    /// The first look is only counted from.
    pub(super) fn new(mut sampler: Sampler) -> Self {
        let began = Instant::now();
        let before = (sampler.sample(Nanos::ZERO), CpuTimes::read().ok());
        Self { sampler, began, before }
    }

    /// From the look before until now.
    pub(super) fn look(&mut self) -> Frame {
        let now = Nanos::from_nanos(self.began.elapsed().as_nanos() as u64);
        let (sample, times) = (self.sampler.sample(now), CpuTimes::read().ok());
        let (before, times_before) = &self.before;
        let frame = Frame {
            rows: Rates::between(before, &sample),
            machine_cpu_percent: times_before.as_ref().zip(times.as_ref()).and_then(|(before, now)| busy(before, now)),
            datapaths: datapaths(before, &sample),
            notes: sample.outcomes.iter().filter_map(|one| one.result.clone().err()).collect(),
        };
        self.before = (sample, times);
        frame
    }
}

fn busy(before: &CpuTimes, now: &CpuTimes) -> Option<f64> {
    Some(now.since(before, &CpuList::online().ok()?).ok()?.busy * 100.0)
}

/// Each datapath's CPU time by what its threads are for.
fn datapaths(before: &Sample, after: &Sample) -> Vec<String> {
    let nanos = after.at.saturating_sub(before.at).as_nanos().max(1) as f64;
    let then: BTreeMap<u32, &Datapath> = before.datapaths.iter().map(|one| (one.status.pid, one)).collect();
    let says = |one: &Datapath| {
        let (now, then) = (&one.status, &then.get(&one.status.pid)?.status);
        let percent = |now: u64, then: u64| now.saturating_sub(then) as f64 / nanos * 100.0;
        let by_role = now.contexts.iter().map(|cpu| {
            let old = then.contexts.iter().find(|old| old.role == cpu.role).map_or(0, |old| old.cpu_ns);
            format!("{} {:.1}", cpu.role.map_or("application", Role::name), percent(cpu.cpu_ns, old))
        });
        let by_role: Vec<String> = by_role.collect();
        let all = percent(now.process_cpu_ns, then.process_cpu_ns);
        Some(format!("{} {} (pid {}): CPU {all:.1} % ({})", now.nic, now.program, now.pid, by_role.join(", ")))
    };
    after.datapaths.iter().filter_map(says).collect()
}
