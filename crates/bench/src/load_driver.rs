//! Runs of the load generator against a server of any world.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abey_delivery::Mode;
use abey_linux::counters::WorkCounter;
use abey_linux::cpu::{CpuList, Usage};
use abey_loadgen::network::Network;
use abey_loadgen::{Config, ConfigError, LoadError, Options, Phase, Rate, Report, RunConfig, Workload, pin_to_cpus};

use crate::row::CURVE_PERCENTILES;
use crate::server::Server;
use crate::{BenchError, Conditions, CurvePoint, Figure, Figures, Load, Run, World};

/// A load generator that is connected to a server.
pub(crate) struct LoadDriver<'a, N: Network> {
    load: abey_loadgen::Load<N>,
    server: &'a mut Server,
    world: World,
    mode: Mode,
    conditions: &'a Conditions,
    /// Share of the last run that the load waited for its CPU.
    run_delay_share: f64,
}

impl<'a, N: Network> LoadDriver<'a, N> {
    /// Connects from the calling thread, which must run on the client's CPU.
    pub(crate) fn connect(
        network: N,
        (target, workload): (SocketAddr, Workload),
        server: &'a mut Server,
        (world, mode): (World, Mode),
        conditions: &'a Conditions,
    ) -> Result<Self, BenchError> {
        let mut options = Options::new(target, workload);
        options.connections = conditions.connections;
        let config = Config::new(options).expect("the options are valid");
        let connected = abey_loadgen::Load::connect_on(network, &config, Some(Arc::clone(&conditions.stop)));
        let load = connected.map_err(|source| failed(server, world, mode, Load::Max, source))?;
        Ok(Self { load, server, world, mode, conditions, run_delay_share: 0.0 })
    }

    /// Runs the load once. `at` is called at the beginning and at the end of the measured time.
    ///
    /// With [`Conditions::min_responses`], a run with fewer responses is repeated with twice the duration.
    ///
    /// # Errors
    /// [`BenchError::NothingAnswered`] if no request was answered.
    pub(crate) fn run(
        &mut self,
        load: Load,
        duration: Duration,
        warmup: Duration,
        seed: u64,
        at: &mut dyn FnMut(Phase),
    ) -> Result<Report, BenchError> {
        let (began, mut duration) = (Instant::now(), duration);
        loop {
            let report = self.run_once(load, duration, warmup, seed, at)?;
            let is_enough = report.count >= self.conditions.min_responses;
            if is_enough || began.elapsed() > MIN_RESPONSES_HANG_LIMIT {
                if report.count > 0 {
                    return Ok(report);
                }
                let (world, mode, unsent) = (self.world, self.mode, report.unsent);
                return Err(BenchError::NothingAnswered { world, mode, load, duration, unsent });
            }
            duration *= 2;
        }
    }

    fn run_once(
        &mut self,
        load: Load,
        duration: Duration,
        warmup: Duration,
        seed: u64,
        at: &mut dyn FnMut(Phase),
    ) -> Result<Report, BenchError> {
        let config = run_config(load, duration, warmup, seed)?.stop_flag(Arc::clone(&self.conditions.stop));
        let (before, since) = (run_delay(), Instant::now());
        let report =
            self.load.run(&config, at).map_err(|source| failed(self.server, self.world, self.mode, load, source))?;
        let delay = run_delay().zip(before).map_or(Duration::ZERO, |(now, before)| now.saturating_sub(before));
        self.run_delay_share = delay.as_secs_f64() / since.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Returns the proof that the mode was active, or the error [`BenchError::NotActive`].
    pub(crate) fn check_proof(&self, load: Load, proof: Result<String, String>) -> Result<String, BenchError> {
        proof.map_err(|reason| BenchError::NotActive { world: self.world, mode: self.mode, load, reason })
    }

    /// Returns the run of a mode that was proved active, with the proof and an optional note.
    pub(crate) fn finish_run(
        &self,
        load: Load,
        report: &Report,
        figures: Figures,
        (proof, note): (String, Option<String>),
    ) -> Run {
        let delayed = (self.run_delay_share > MAX_RUN_DELAY_SHARE)
            .then(|| "other programs ran on the load's CPU and may have delayed requests and responses".to_owned());
        Run {
            world: self.world,
            mode: self.mode,
            load,
            figures,
            curve: curve(report),
            active: true,
            proof: Some(proof),
            client_bound: report.client_bound,
            notes: note.into_iter().chain(delayed).collect(),
        }
    }
}

/// The time after which [`Conditions::min_responses`] is given up: a limit that only a hang reaches.
const MIN_RESPONSES_HANG_LIMIT: Duration = Duration::from_secs(120);

/// The share of a run above which a delay of the load is noted.
const MAX_RUN_DELAY_SHARE: f64 = 0.005;

/// Returns how long the calling thread has waited for a CPU (the second field of `/proc/thread-self/schedstat`, in
/// nanoseconds; Linux `Documentation/scheduler/sched-stats.rst`). `None` if the kernel does not count it.
fn run_delay() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

fn run_config(load: Load, duration: Duration, warmup: Duration, seed: u64) -> Result<RunConfig, ConfigError> {
    let rate = load.rate().map_or(Ok(Rate::Max), |rate| Rate::per_second(rate as f64))?;
    Ok(RunConfig::new(rate, duration)?.warmup(warmup)?.seed(seed))
}

/// Converts an error of the load. If the server has ended, that is the error.
fn failed(server: &mut Server, world: World, mode: Mode, load: Load, source: LoadError) -> BenchError {
    match (source, server.check()) {
        (LoadError::Stopped, _) => BenchError::Stopped,
        (_, Err(ended)) => ended,
        (source, Ok(())) => BenchError::Load { world, mode, load, source },
    }
}

/// Pins the calling thread, and threads it starts later, to the client's CPU.
pub(crate) fn pin_client(cpu: u32) -> Result<(), BenchError> {
    pin_to_cpus(&[cpu as usize])
        .map_err(|error| BenchError::Lacks { what: error.to_string(), advice: "allow this process all CPUs" })
}

/// The CPUs of server and client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// CPU of the server and of the delivery of its packets.
    pub server: u32,
    /// CPU of the load.
    pub client: u32,
}

impl Cpus {
    /// Chooses the last CPU for the server, unless `server` names one, and the first of the others for the load.
    ///
    /// # Errors
    /// [`BenchError::Lacks`] if there is only one CPU, or the named one is not available.
    pub fn choose(all: &CpuList, server: Option<u32>) -> Result<Self, BenchError> {
        let server = match server {
            Some(cpu) if !all.contains(cpu) => {
                let what = format!("this process may not use CPU {cpu}, only {all}");
                return Err(BenchError::Lacks { what, advice: "choose another CPU for the server" });
            }
            Some(cpu) => Some(cpu),
            None => all.iter().last(),
        };
        let client = all.iter().find(|cpu| Some(*cpu) != server);
        let Some((server, client)) = server.zip(client) else {
            let what = "this process may use one CPU only".to_owned();
            return Err(BenchError::Lacks { what, advice: "server and load need two CPUs, one each" });
        };
        Ok(Self { server, client })
    }

    /// Returns the server's CPU as a list.
    pub(crate) fn of_server(self) -> CpuList {
        std::iter::once(self.server).collect()
    }
}

/// Returns whether a counter is available on a CPU.
pub(crate) fn can_count(cpu: u32, count: abey_linux::counters::Count) -> Result<bool, BenchError> {
    let cpus: CpuList = std::iter::once(cpu).collect();
    Ok(WorkCounter::on_cpus(&cpus, &[count])?.missing().is_empty())
}

/// Returns the figures of the load's report and of the CPU time.
pub(crate) fn figures(report: &Report, usage: Usage) -> Figures {
    let mut figures = Figures::default();
    let mut set = |figure, value| figures.set(figure, finite(value));
    set(Figure::Qps, Some(report.qps));
    set(Figure::Avg, report.avg_us);
    set(Figure::P50, report.p50_us);
    set(Figure::P95, report.p95_us);
    set(Figure::P99, report.p99_us);
    set(Figure::P999, report.p999_us);
    set(Figure::CpuPercent, Some(usage.busy * 100.0));
    set(Figure::CpuPerQuery, per_query(usage.busy_time.as_secs_f64() * 1e6, report));
    figures
}

/// Returns a count per response.
pub(crate) fn per_query(count: f64, report: &Report) -> Option<f64> {
    finite(Some(count / report.count as f64))
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

/// Returns the latency curve at those of [`CURVE_PERCENTILES`] for which the run has enough responses.
fn curve(report: &Report) -> Vec<CurvePoint> {
    curve_of(&report.latency_by_percentile, report.count)
}

/// The generator reports ten points for each halving of the distance to 100 %. The first point at or above a percentile is used.
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
    fn the_curve_ends_where_responses_are_too_few() {
        let points: Vec<(f64, f64)> = (0..=2000).map(|n| (f64::from(n) / 20.0, f64::from(n))).collect();
        let curve = curve_of(&points, 10_000);
        let last = curve.last().expect("points");
        assert_eq!((last.percentile, last.us), (99.9, 1998.0));
        assert_eq!(curve.first().map(|point| point.percentile), Some(0.0));
        assert!(curve.windows(2).all(|pair| pair[0].us <= pair[1].us));
        assert!(curve_of(&points, 9).is_empty(), "nine responses are no distribution");
    }

    #[test]
    fn cpus_are_chosen_and_one_is_not_enough() {
        let cpus = |list: &str, server| {
            let chosen = Cpus::choose(&list.parse().expect("a list"), server).ok();
            chosen.map(|Cpus { server, client }| (client, server))
        };
        assert_eq!(cpus("0-3", None), Some((0, 3)));
        assert_eq!(cpus("2,5", None), Some((2, 5)));
        assert_eq!(cpus("0-3", Some(0)), Some((1, 0)));
        assert_eq!((cpus("1", None), cpus("0-3", Some(9))), (None, None));
    }
}
