//! The load over the steps: slice by slice, with the server's CPU time read between steps.

use std::time::{Duration, Instant};

use abey_load::network::Network;

use super::{Slice, Steps, Tuner};
use crate::cpu_time::Watch;
use crate::load_run::Driver;
use crate::{BenchError, Load};

/// A way over the steps that is about to begin.
pub(crate) struct Course<'a> {
    pub(crate) steps: &'a Steps,
    pub(crate) seed: u64,
    pub(crate) warmup: Duration,
    pub(crate) cpu: Watch<'a>,
    pub(crate) tuner: Option<Tuner>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Driven {
    pub(crate) slices: Vec<Slice>,
    pub(crate) cpu_percent: Vec<f64>,
    pub(crate) tuner_cpu_percent: Option<f64>,
    pub(crate) tuner: Vec<serde_json::Value>,
    pub(crate) notes: Vec<String>,
}

impl Course<'_> {
    pub(crate) fn drive<N: Network>(mut self, driver: &mut Driver<'_, N>) -> Result<Driven, BenchError> {
        let mut driven = Driven::default();
        let Steps { loads, each, slice, .. } = self.steps;
        let mut seed = self.seed;
        let mut run = |load: u64, duration: Duration| {
            seed = seed.wrapping_add(1);
            driver.run(Load::Rate(load), duration, Duration::ZERO, seed, &mut |_| {})
        };
        // At the first load, so that the tuner is at home there as a fixed mode is from the beginning.
        let began = Instant::now();
        while began.elapsed() < self.warmup {
            let report = run(loads[0], *slice)?;
            if let Some(tuner) = &mut self.tuner {
                tuner.tell(&report, self.steps)?;
            }
        }
        let tuner_cpu = self.tuner.as_ref().map(Tuner::cpu_time).transpose()?;
        let began = Instant::now();
        for (step, load) in loads.iter().enumerate() {
            let (before, since) = (self.cpu.read()?, Instant::now());
            while since.elapsed() < *each {
                let at_s = since.elapsed().as_secs_f64();
                let report = run(*load, *slice)?;
                let of = |time: Option<f64>| time.unwrap_or(0.0);
                driven.slices.push(Slice {
                    step,
                    at_s,
                    count: report.count,
                    p50_us: of(report.p50_us),
                    p90_us: of(report.p90_us),
                    p95_us: of(report.p95_us),
                    p99_us: of(report.p99_us),
                });
                if let Some(tuner) = &mut self.tuner {
                    tuner.tell(&report, self.steps)?;
                }
            }
            let (usage, note) = self.cpu.read()?.since(&before);
            driven.cpu_percent.push(usage.busy * 100.0);
            driven.notes.extend(note);
        }
        if let Some((tuner, before)) = self.tuner.take().zip(tuner_cpu) {
            let spent = tuner.cpu_time()?.saturating_sub(before);
            driven.tuner_cpu_percent = Some(100.0 * spent.as_secs_f64() / began.elapsed().as_secs_f64());
            driven.tuner = tuner.finish()?;
        }
        driven.notes.dedup();
        Ok(driven)
    }
}
