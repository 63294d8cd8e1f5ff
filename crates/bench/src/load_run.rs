//! What one load gives, whichever world answers it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abey_delivery::Mode;
use abey_linux::counters::WorkCounter;
use abey_linux::cpu::{CpuList, Usage};
use abey_load::network::Network;
use abey_load::{Config, ConfigError, LoadError, Options, Phase, Rate, Report, RunConfig, Workload, pin_to_cpus};

use crate::row::CURVE_PERCENTILES;
use crate::server::Server;
use crate::{BenchError, Conditions, CurvePoint, Figure, Figures, Load, Run, World};

/// A load that is connected to a server.
pub(crate) struct Driver<'a, N: Network> {
    load: abey_load::Load<N>,
    server: &'a mut Server,
    world: World,
    mode: Mode,
    conditions: &'a Conditions,
    /// How long the load waited for its CPU in the last run, as a share of it.
    kept_waiting: f64,
}

impl<'a, N: Network> Driver<'a, N> {
    /// Connects from the calling thread, which is on the client's CPU already.
    pub(crate) fn connect(
        network: N,
        (target, workload): (SocketAddr, Workload),
        server: &'a mut Server,
        (world, mode): (World, Mode),
        conditions: &'a Conditions,
    ) -> Result<Self, BenchError> {
        let mut options = Options::new(target, workload);
        options.connections = conditions.connections;
        let config = Config::new(options).expect("the bench's own options are valid");
        let connected = abey_load::Load::connect_on(network, &config, Some(Arc::clone(&conditions.stop)));
        let load = connected.map_err(|source| failed(server, world, mode, Load::Max, source))?;
        Ok(Self { load, server, world, mode, conditions, kept_waiting: 0.0 })
    }

    /// One run, in which something was answered; `at` is called at both ends of what is measured.
    pub(crate) fn run(
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
        let waited = run_delay().zip(before).map_or(Duration::ZERO, |(now, before)| now.saturating_sub(before));
        self.kept_waiting = waited.as_secs_f64() / since.elapsed().as_secs_f64();
        if report.count == 0 {
            let (world, mode, unsent) = (self.world, self.mode, report.unsent);
            return Err(BenchError::NothingAnswered { world, mode, load, duration, unsent });
        }
        Ok(report)
    }

    /// What the counters prove, or the error that they do not.
    pub(crate) fn proved(&self, load: Load, judged: Result<String, String>) -> Result<String, BenchError> {
        judged.map_err(|reason| BenchError::NotActive { world: self.world, mode: self.mode, load, reason })
    }

    /// A run that was proved; `said` are the counters, and a note if there is one.
    pub(crate) fn measured(
        &self,
        load: Load,
        report: &Report,
        figures: Figures,
        said: (String, Option<String>),
    ) -> Run {
        let (proof, note) = said;
        let late = (self.kept_waiting > KEPT_WAITING).then(|| {
            "other programs ran on the load's CPU, so that requests and answers waited for the load".to_owned()
        });
        Run {
            world: self.world,
            mode: self.mode,
            load,
            figures,
            curve: curve(report),
            active: true,
            proof: Some(proof),
            client_bound: report.client_bound,
            notes: note.into_iter().chain(late).collect(),
        }
    }
}

/// A share of a run that the load may wait for its CPU without a word.
const KEPT_WAITING: f64 = 0.005;

/// How long the calling thread was ready to run and waited for a CPU so far (the second figure of
/// `/proc/thread-self/schedstat`, in nanoseconds; Linux `Documentation/scheduler/sched-stats.rst`). `None` where the kernel
/// does not count it.
fn run_delay() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

fn run_config(load: Load, duration: Duration, warmup: Duration, seed: u64) -> Result<RunConfig, ConfigError> {
    let rate = load.rate().map_or(Ok(Rate::Max), |rate| Rate::per_second(rate as f64))?;
    Ok(RunConfig::new(rate, duration)?.warmup(warmup)?.seed(seed))
}

/// A server that has ended is the reason of whatever its load says.
fn failed(server: &mut Server, world: World, mode: Mode, load: Load, source: LoadError) -> BenchError {
    match (source, server.check()) {
        (LoadError::Stopped, _) => BenchError::Stopped,
        (_, Err(ended)) => ended,
        (source, Ok(())) => BenchError::Load { world, mode, load, source },
    }
}

/// Puts the calling thread, and what it starts later, on the client's CPU.
pub(crate) fn pin_client(cpu: u32) -> Result<(), BenchError> {
    pin_to_cpus(&[cpu as usize])
        .map_err(|error| BenchError::Lacks { what: error.to_string(), advice: "allow this process all CPUs" })
}

/// One CPU for either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// The server's, with all that delivers its packets.
    pub server: u32,
    /// The load's.
    pub client: u32,
}

impl Cpus {
    /// The last CPU for the server, unless one is named, and the first of the others for the load.
    ///
    /// # Errors
    /// [`BenchError::Lacks`] if there is one CPU only, or not the one that is named.
    pub fn choose(all: &CpuList, server: Option<u32>) -> Result<Self, BenchError> {
        let server = match server {
            Some(cpu) if !all.contains(cpu) => {
                let what = format!("there is no CPU {cpu} for this process, which has {all}");
                return Err(BenchError::Lacks { what, advice: "name another one for the server" });
            }
            Some(cpu) => Some(cpu),
            None => all.iter().last(),
        };
        let client = all.iter().find(|cpu| Some(*cpu) != server);
        let Some((server, client)) = server.zip(client) else {
            let what = "there is one CPU for this process".to_owned();
            return Err(BenchError::Lacks { what, advice: "server and load need one each: use a machine with two" });
        };
        Ok(Self { server, client })
    }

    /// The server's, as a list.
    pub(crate) fn of_server(self) -> CpuList {
        std::iter::once(self.server).collect()
    }
}

/// Whether these counts can be made on the CPU.
pub(crate) fn can_count(cpu: u32, count: abey_linux::counters::Count) -> Result<bool, BenchError> {
    let cpus: CpuList = std::iter::once(cpu).collect();
    Ok(WorkCounter::on_cpus(&cpus, &[count])?.missing().is_empty())
}

/// The figures that come from the load itself, and the CPU time.
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

/// A count for each request that was answered.
pub(crate) fn per_query(count: f64, report: &Report) -> Option<f64> {
    finite(Some(count / report.count as f64))
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
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

    #[test]
    fn one_cpu_is_not_enough() {
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
