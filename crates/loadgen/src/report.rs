//! The result of a run, as it goes into a JSON row.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::config::{Options, Transport, Workload};
use crate::rate::{Rate, RunConfig};
use crate::tally::Tally;

/// How late requests left: actual minus intended send times, microseconds.
///
/// A request that waited because all connections had their depth outstanding is not in here (it is in
/// [`Report::queued`]): this is the generator's own lateness, not the server's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SendLag {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The latest.
    pub max: f64,
}

/// What one run measured. Latencies are microseconds from the *intended* send times (in a closed loop, from the
/// actual ones); figures without a single sample are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// `memcached`, `redis`, `http`, `rr-tcp` or `rr-udp`.
    pub protocol: String,
    /// Address and port of the server.
    pub target: String,
    /// The asked-for load: `20k`, `max`.
    pub load: String,
    /// Requests per second that were asked for; `None` in a closed loop.
    pub requested_qps: Option<f64>,
    /// Answers per second within the measured interval.
    pub qps: f64,
    /// Latency samples.
    pub count: u64,
    /// Mean latency.
    pub avg_us: Option<f64>,
    /// Median latency.
    pub p50_us: Option<f64>,
    /// 90th percentile.
    pub p90_us: Option<f64>,
    /// 95th percentile.
    pub p95_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// 99.9th percentile.
    pub p999_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
    /// The generator's lateness; `None` in a closed loop, which has no intended times.
    pub send_lag_us: Option<SendLag>,
    /// `get` requests answered.
    pub gets: u64,
    /// Those that found their key.
    pub hits: u64,
    /// Those that did not.
    pub misses: u64,
    /// `set` requests answered.
    pub sets: u64,
    /// Requests that failed; any other error ends the run. These are the UDP requests that nothing answered.
    pub errors: u64,
    /// Requests that had to wait because every connection had its depth outstanding.
    pub queued: u64,
    /// Requests that were due but still waited when the interval ended; they have no latency. Above zero, the latency
    /// figures are of an overload and flatter it.
    pub unsent: u64,
    /// Share of the measured interval in which the generator's threads sent or received, percent of one CPU per
    /// thread. Spinning until a request is due is not work.
    pub client_cpu_percent: f64,
    /// CPU time of the generator's threads, spinning included, percent of one CPU per thread.
    pub client_thread_cpu_percent: f64,
    /// Whether the generator, not the server, may have limited this run: it worked more than 95 % of the time, or sent
    /// less than 99 % of what was due although connections had room.
    pub client_bound: bool,
    /// Connections.
    pub connections: usize,
    /// Threads of the generator.
    pub threads: usize,
    /// Requests that could be outstanding on one connection.
    pub depth: usize,
    /// `poisson` or `even`; `None` in a closed loop.
    pub arrivals: Option<String>,
    /// Length of the measured interval, seconds.
    pub duration_s: f64,
    /// Load before it, seconds.
    pub warmup_s: f64,
    /// The seed of send times, keys and sizes.
    pub seed: u64,
    /// Latency by percentile for charts: (percentile 0 to 100, microseconds), ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency_by_percentile: Vec<(f64, f64)>,
}

impl Report {
    pub(crate) fn new(options: &Options, run: &RunConfig, tally: &Tally) -> Self {
        let elapsed = tally.elapsed_ns as f64;
        let percent = |ns: u64| round(100.0 * ns as f64 / (elapsed * options.threads as f64), 2);
        let open = matches!(run.rate, Rate::PerSecond(_));
        let at = |quantile: f64| (!tally.latency.is_empty()).then(|| us(tally.latency.value_at_quantile(quantile)));
        let client_cpu_percent = percent(tally.work_ns);
        // What was due and not sent is the server's doing if most of what was sent had to wait for its answers.
        let late = open && tally.unsent * 100 > tally.due && tally.queued * 2 < tally.due - tally.unsent;
        Self {
            protocol: protocol(&options.workload).to_owned(),
            target: options.target.to_string(),
            load: run.rate.to_string(),
            requested_qps: match run.rate {
                Rate::PerSecond(rate) => Some(rate),
                Rate::Max => None,
            },
            qps: round(tally.answered as f64 * 1e9 / elapsed, 1),
            count: tally.latency.len(),
            avg_us: (!tally.latency.is_empty()).then(|| round(tally.latency.mean() / 1e3, 3)),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: at(1.0),
            send_lag_us: (open && !tally.send_lag.is_empty()).then(|| SendLag {
                p50: us(tally.send_lag.value_at_quantile(0.5)),
                p99: us(tally.send_lag.value_at_quantile(0.99)),
                max: us(tally.send_lag.max()),
            }),
            gets: tally.gets,
            hits: tally.hits,
            misses: tally.gets - tally.hits,
            sets: tally.sets,
            errors: tally.lost,
            queued: tally.queued,
            unsent: tally.unsent,
            client_cpu_percent,
            client_thread_cpu_percent: percent(tally.cpu_ns),
            client_bound: client_cpu_percent > 95.0 || late,
            connections: options.connections,
            threads: options.threads,
            depth: options.depth,
            arrivals: open.then(|| run.arrivals.name().to_owned()),
            duration_s: elapsed / 1e9,
            warmup_s: run.warmup.as_secs_f64(),
            seed: run.seed,
            latency_by_percentile: curve(&tally.latency),
        }
    }
}

fn protocol(workload: &Workload) -> &'static str {
    match workload {
        Workload::Memcached(_) => "memcached",
        Workload::Redis(_) => "redis",
        Workload::Http(_) => "http",
        Workload::RequestResponse(exchange) => match exchange.transport {
            Transport::Tcp => "rr-tcp",
            Transport::Udp => "rr-udp",
        },
    }
}

/// Digits that say nothing are not written.
fn round(value: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (value * scale).round() / scale
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Ten points for each halving of the distance to 100 %: dense where tails are.
fn curve(latency: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = latency
        .iter_quantiles(10)
        .map(|v| (round(v.quantile_iterated_to() * 100.0, 6), us(v.value_iterated_to())))
        .collect();
    points.dedup();
    points
}
