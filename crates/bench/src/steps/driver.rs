//! The load over all steps, in slices, with the server's CPU time read between steps.

use std::time::{Duration, Instant};

use abey_loadgen::network::Network;

use super::{Slice, Steps, Tuner};
use crate::cpu_time::ServerCpuTime;
use crate::load_driver::LoadDriver;
use crate::{BenchError, Load};

/// A run over all steps.
pub(crate) struct StepDriver<'a> {
    pub(crate) steps: &'a Steps,
    pub(crate) seed: u64,
    pub(crate) warmup: Duration,
    pub(crate) cpu: ServerCpuTime<'a>,
    pub(crate) tuner: Option<Tuner>,
}

/// The measurements of a run over all steps.
#[derive(Debug, Default)]
pub(crate) struct StepMeasurements {
    pub(crate) slices: Vec<Slice>,
    pub(crate) cpu_percent: Vec<f64>,
    pub(crate) tuner_cpu_percent: Option<f64>,
    pub(crate) tuner: Vec<serde_json::Value>,
    pub(crate) notes: Vec<String>,
}

impl StepDriver<'_> {
    pub(crate) fn run<N: Network>(mut self, driver: &mut LoadDriver<'_, N>) -> Result<StepMeasurements, BenchError> {
        let mut measured = StepMeasurements::default();
        let Steps { loads, each, slice, .. } = self.steps;
        let mut seed = self.seed;
        let mut run_slice = |load: u64, duration: Duration| {
            seed = seed.wrapping_add(1);
            driver.run(Load::Rate(load), duration, Duration::ZERO, seed, &mut |_| {})
        };
        // Warm up at the first load, so that the tuner has adapted to it before the measurement.
        let began = Instant::now();
        while began.elapsed() < self.warmup {
            let report = run_slice(loads[0], *slice)?;
            if let Some(tuner) = &mut self.tuner {
                tuner.report_latency(&report, self.steps)?;
            }
        }
        let tuner_cpu = self.tuner.as_ref().map(Tuner::cpu_time).transpose()?;
        let began = Instant::now();
        for (step, load) in loads.iter().enumerate() {
            let (before, since) = (self.cpu.read()?, Instant::now());
            while since.elapsed() < *each {
                let at_s = since.elapsed().as_secs_f64();
                let report = run_slice(*load, *slice)?;
                let of = |time: Option<f64>| time.unwrap_or(0.0);
                measured.slices.push(Slice {
                    step,
                    at_s,
                    count: report.count,
                    p50_us: of(report.p50_us),
                    p90_us: of(report.p90_us),
                    p95_us: of(report.p95_us),
                    p99_us: of(report.p99_us),
                });
                if let Some(tuner) = &mut self.tuner {
                    tuner.report_latency(&report, self.steps)?;
                }
            }
            let (usage, note) = self.cpu.read()?.since(&before);
            measured.cpu_percent.push(usage.busy * 100.0);
            measured.notes.extend(note);
        }
        if let Some((tuner, before)) = self.tuner.take().zip(tuner_cpu) {
            let spent = tuner.cpu_time()?.saturating_sub(before);
            measured.tuner_cpu_percent = Some(100.0 * spent.as_secs_f64() / began.elapsed().as_secs_f64());
            measured.tuner = tuner.finish()?;
        }
        measured.notes.dedup();
        Ok(measured)
    }
}
