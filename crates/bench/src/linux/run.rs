//! One server under one mode, measured at each load.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use abey_delivery::Mode;
use abey_linux::apply::{Place, Plan, Target};
use abey_linux::counters::{Count, CountError, Work, WorkCounter};
use abey_linux::cpu::{CpuList, CpuTimes, Usage, set_thread_affinity};
use abey_linux::napi::NapiChange;
use abey_linux::probe::NapiCapabilities;
use abey_load::{
    Config, ConfigError, LoadError, Memcached, Options, Phase, Rate, Report, RunConfig, Workload, pin_to_cpus,
};

use super::error::BenchError;
use super::proof::{Testimony, Witness};
use super::server::{App, Server};
use super::testbed::TestBed;
use crate::row::CURVE_PERCENTILES;
use crate::{CurvePoint, Figure, Figures, Load, Run, World};

/// What is the same for every run.
pub(super) struct Bench<'a> {
    pub(super) bed: &'a TestBed,
    pub(super) app: &'a App,
    pub(super) library: &'a Path,
    pub(super) able: NapiCapabilities,
    pub(super) connections: usize,
    pub(super) duration: Duration,
    pub(super) warmup: Duration,
    pub(super) stop: Arc<AtomicBool>,
}

impl Bench<'_> {
    /// Starts the server under `mode`, measures it at each load in turn, and puts everything back.
    pub(super) fn measure(&self, mode: Mode, loads: &[Load], seed: u64) -> Result<Vec<Run>, BenchError> {
        let refused = |source| BenchError::Apply { mode, source };
        let mut place = Place::open(&self.bed.server)?;
        let wanted = NapiChange::to(&mode.settings().napi);
        let plan = Plan::new(&mut place, &self.bed.device, &Target::Device, &wanted, self.able).map_err(refused)?;
        // No journal: the namespace and everything set in it vanish with this process.
        let applied = plan.apply(place, None).map_err(refused)?;
        let kthreads = self.pin_napi_threads()?;
        let server = Server::start(self.app, mode, self.library, self.bed)?;
        // The load's sockets and threads inherit namespace and CPU of the thread that makes them.
        let runs = self.bed.client.run(|| self.at_each_load(mode, loads, seed, &server, &kthreads))?;
        drop(server);
        applied.restore()?;
        runs
    }

    /// The threads of threaded NAPI belong to the server's side of the comparison.
    fn pin_napi_threads(&self) -> Result<Vec<u32>, BenchError> {
        let threads: Vec<u32> = self.bed.napis()?.iter().filter_map(|napi| napi.thread).collect();
        for thread in &threads {
            set_thread_affinity(*thread, &self.server_cpus())?;
        }
        Ok(threads)
    }

    fn server_cpus(&self) -> CpuList {
        std::iter::once(self.bed.server_cpu).collect()
    }

    fn at_each_load(
        &self,
        mode: Mode,
        loads: &[Load],
        seed: u64,
        server: &Server,
        kthreads: &[u32],
    ) -> Result<Vec<Run>, BenchError> {
        let first = loads.first().copied().unwrap_or(Load::Max);
        let failed = |load| move |source| loaded(mode, load, source);
        pin_to_cpus(&[self.bed.client_cpu as usize])
            .map_err(|error| BenchError::Lacks { what: error.to_string(), advice: "allow this process all CPUs" })?;
        // GETs only, as the published measurements nearly are: the mode is what differs, not the mix.
        let mix = Memcached { set_ratio: 0.0, ..Memcached::default() };
        let mut options = Options::new(TestBed::address(), Workload::Memcached(mix));
        options.connections = self.connections;
        let config = Config::new(options).expect("the bench's own options are valid");
        let mut load_on_server = abey_load::Load::connect(&config).map_err(failed(first))?;
        let mut runs = Vec::new();
        for &load in loads {
            let settle = self.config(load, self.warmup, seed, Duration::ZERO)?;
            let measured = self.config(load, self.duration, seed.wrapping_add(1), SETTLE)?;
            let witness = Witness::open(&self.bed.device.name, kthreads, server.pid())?;
            let before = load_on_server.run(&settle, &mut |_| {}).map_err(failed(load))?;
            let testimony = witness.close()?;
            let proof = testimony.judge(mode).map_err(|reason| BenchError::NotActive { mode, load, reason })?;
            let mut meter = Meter::new(&self.server_cpus())?;
            let report = load_on_server.run(&measured, &mut |phase| meter.at(phase)).map_err(failed(load))?;
            let (work, usage) = meter.finish()?;
            let figures = figures(&report, &work, usage, &testimony, &before);
            runs.push(Run {
                world: World::Linux,
                mode,
                load,
                figures,
                curve: curve(&report),
                active: true,
                proof: Some(proof),
                client_bound: report.client_bound,
                notes: Vec::new(),
            });
        }
        Ok(runs)
    }

    fn config(&self, load: Load, duration: Duration, seed: u64, warmup: Duration) -> Result<RunConfig, ConfigError> {
        let rate = load.rate().map_or(Ok(Rate::Max), |rate| Rate::per_second(rate as f64))?;
        Ok(RunConfig::new(rate, duration)?.warmup(warmup)?.seed(seed).stop_flag(Arc::clone(&self.stop)))
    }
}

/// Between the run that proves and the one that is measured: the queues run empty and the event loop goes back to its
/// rhythm without the witness's counters.
const SETTLE: Duration = Duration::from_millis(50);

fn loaded(mode: Mode, load: Load, source: LoadError) -> BenchError {
    match source {
        LoadError::Stopped => BenchError::Stopped,
        source => BenchError::Load { mode, load, source },
    }
}

/// Counts on the server's CPU exactly while the load is measured.
struct Meter {
    counter: WorkCounter,
    cpus: CpuList,
    start: Option<Reading>,
    end: Option<Reading>,
    failed: Option<BenchError>,
}

type Reading = (Work, CpuTimes);

impl Meter {
    fn new(cpus: &CpuList) -> Result<Self, CountError> {
        let counter = WorkCounter::on_cpus(cpus, &Count::CHEAP)?;
        Ok(Self { counter, cpus: cpus.clone(), start: None, end: None, failed: None })
    }

    fn at(&mut self, phase: Phase) {
        match self.read() {
            Err(error) => self.failed = Some(error),
            Ok(reading) if phase == Phase::MeasureStart => self.start = Some(reading),
            Ok(reading) => self.end = Some(reading),
        }
    }

    fn read(&mut self) -> Result<Reading, BenchError> {
        Ok((self.counter.read()?, CpuTimes::read()?))
    }

    fn finish(self) -> Result<(Work, Usage), BenchError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let (start, end) = self.start.zip(self.end).expect("a run that ended well has both phases");
        Ok((end.0.since(&start.0), end.1.since(&start.1, &self.cpus)?))
    }
}

fn figures(report: &Report, work: &Work, usage: Usage, testimony: &Testimony, before: &Report) -> Figures {
    let queries = report.count as f64;
    let per_query = |count| work.get(count).map(|events| events as f64 / queries);
    let seconds = usage.interval.as_secs_f64();
    let mut figures = Figures::default();
    let mut set = |figure, value: Option<f64>| figures.set(figure, value.filter(|value| value.is_finite()));
    set(Figure::Qps, Some(report.qps));
    set(Figure::Avg, report.avg_us);
    set(Figure::P50, report.p50_us);
    set(Figure::P95, report.p95_us);
    set(Figure::P99, report.p99_us);
    set(Figure::P999, report.p999_us);
    set(Figure::CpuPercent, Some(usage.busy * 100.0));
    set(Figure::CpuPerQuery, Some(usage.busy_time.as_secs_f64() * 1e6 / queries));
    set(Figure::Cycles, per_query(Count::Cycles));
    set(Figure::Instructions, per_query(Count::Instructions));
    set(Figure::Wakeups, work.get(Count::WakeUps).map(|count| count as f64 / seconds));
    set(Figure::ContextSwitches, per_query(Count::ContextSwitches));
    set(Figure::SystemCalls, testimony.system_calls.map(|calls| calls as f64 / before.count as f64));
    figures
}

/// The latency curve at [`CURVE_PERCENTILES`], as far as the run has enough answers for it.
fn curve(report: &Report) -> Vec<CurvePoint> {
    curve_of(&report.latency_by_percentile, report.count)
}

/// The generator gives ten points for each halving of the distance to 100 %; the next one above a percentile stands for
/// it.
fn curve_of(points: &[(f64, f64)], count: u64) -> Vec<CurvePoint> {
    let beyond = |percentile: f64| ((100.0 - percentile) / 100.0 * count as f64).round();
    let wanted = CURVE_PERCENTILES.into_iter().filter(|percentile| beyond(*percentile) >= 10.0);
    wanted
        .filter_map(|percentile| {
            let &(_, us) = points.iter().find(|(at, _)| *at >= percentile)?;
            Some(CurvePoint { percentile, us })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_reaches_as_far_as_the_answers_do() {
        let points: Vec<(f64, f64)> = (0..=2000).map(|n| (f64::from(n) / 20.0, f64::from(n))).collect();
        let curve = curve_of(&points, 10_000);
        let last = curve.last().expect("points");
        assert_eq!((last.percentile, last.us), (99.9, 1998.0));
        assert_eq!(curve.first().map(|point| point.percentile), Some(0.0));
        assert!(curve.windows(2).all(|pair| pair[0].us <= pair[1].us));
        assert!(curve_of(&points, 9).is_empty(), "nine answers are no distribution");
    }
}
