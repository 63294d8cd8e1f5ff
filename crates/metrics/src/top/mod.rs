//! Rows, columns and order of `abey top`, without a terminal: keys and frames in, text out.

mod column;
mod text;
mod view;

use std::collections::BTreeMap;
use std::time::Instant;

use abey_datapath::control::Role;
use abey_delivery::Nanos;
use abey_linux::cpu::{CpuList, CpuTimes};

pub use column::Column;
pub use text::{TopRow, headline, plain_text};
pub use view::{Key, View, pad_cell};

use crate::rates::Rates;
use crate::{Datapath, Sample, Sampler};

/// Computes frames, each from the sample of the one before.
#[derive(Debug)]
pub struct Monitor {
    sampler: Sampler,
    began: Instant,
    before: (Sample, Option<CpuTimes>),
}

/// What is shown at one time.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// One row for each instance.
    pub rows: Vec<Rates>,
    /// Busy time of the machine's CPUs, in percent of all of them.
    pub machine_cpu_percent: Option<f64>,
    /// One line for each datapath, with its CPU time.
    pub datapaths: Vec<String>,
    /// Errors of collectors.
    pub notes: Vec<String>,
}

impl Monitor {
    /// Creates a monitor and takes the first sample.
    #[must_use]
    pub fn new(mut sampler: Sampler) -> Self {
        let began = Instant::now();
        let before = (sampler.sample(Nanos::ZERO), CpuTimes::read().ok());
        Self { sampler, began, before }
    }

    /// Returns the rates from the previous call until now.
    pub fn next_frame(&mut self) -> Frame {
        let now = Nanos::from_nanos(self.began.elapsed().as_nanos() as u64);
        let (sample, times) = (self.sampler.sample(now), CpuTimes::read().ok());
        let (before, times_before) = &self.before;
        let frame = Frame {
            rows: Rates::between(before, &sample),
            machine_cpu_percent: times_before
                .as_ref()
                .zip(times.as_ref())
                .and_then(|(before, now)| busy_percent(before, now)),
            datapaths: datapath_lines(before, &sample),
            notes: sample.results.iter().filter_map(|one| one.result.clone().err()).collect(),
        };
        self.before = (sample, times);
        frame
    }
}

fn busy_percent(before: &CpuTimes, now: &CpuTimes) -> Option<f64> {
    Some(now.since(before, &CpuList::online().ok()?).ok()?.busy * 100.0)
}

/// Formats each datapath's CPU time, in total and by the role of its threads.
fn datapath_lines(before: &Sample, after: &Sample) -> Vec<String> {
    let nanos = after.at.saturating_sub(before.at).as_nanos().max(1) as f64;
    let then: BTreeMap<_, &Datapath> = before.datapaths.iter().map(|one| ((one.status.pid, one.socket), one)).collect();
    let line = |one: &Datapath| {
        let (now, then) = (&one.status, &then.get(&(one.status.pid, one.socket))?.status);
        let percent = |now: u64, then: u64| now.saturating_sub(then) as f64 / nanos * 100.0;
        let by_role = now.contexts.iter().map(|cpu| {
            let old = then.contexts.iter().find(|old| old.role == cpu.role).map_or(0, |old| old.cpu_ns);
            format!("{} {:.1}", cpu.role.map_or("application", Role::name), percent(cpu.cpu_ns, old))
        });
        let by_role: Vec<String> = by_role.collect();
        let all = percent(now.process_cpu_ns, then.process_cpu_ns);
        Some(format!("{} {} (pid {}): CPU {all:.1} % ({})", now.nic, now.program, now.pid, by_role.join(", ")))
    };
    after.datapaths.iter().filter_map(line).collect()
}
