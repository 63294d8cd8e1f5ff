//! `abey load`: one load against one server, as a table or a JSON document.

mod bar;
mod text;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abey_delivery::Nanos;
use abey_loadgen::network::Network;
use abey_loadgen::{
    Arrivals, Config, HttpGet, Kernel, Load, LoadError, Memcached, Options, Rate, Report, RequestResponse, RunConfig,
    SizeDist, Workload,
};
use clap::{Subcommand, ValueEnum};

use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::nic_args::{End, NicArgs, Opened, resolve};
use crate::output::{print_rows, print_text};
use crate::signals;
use bar::Bar;
use text::{notes, table};

/// Send requests at a given rate, whether or not the server keeps up, and measure latency from intended send times
///
/// Ctrl-C ends the run early with exit status 130 and prints no result.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    protocol: ProtocolArgs,
}

#[derive(Subcommand)]
enum ProtocolArgs {
    /// Send `get` and `set` over memcached's text protocol (TCP); all keys are stored first
    Memcached {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        mix: Mix,
    },
    /// Send `GET` and `SET` over redis's protocol; all keys are stored first
    Redis {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        mix: Mix,
    },
    /// Send `GET` of one path over persistent HTTP/1.1 connections; responses need a Content-Length
    Http {
        #[command(flatten)]
        common: Common,
        /// Connections
        #[arg(long, default_value_t = 20)]
        connections: usize,
        /// Path and query, with the leading slash
        #[arg(long, default_value = "/")]
        path: String,
    },
    /// Exchange requests and responses of fixed sizes over TCP or UDP, as netperf's TCP_RR and UDP_RR
    Rr {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        exchange: Exchange,
        /// Flows: TCP connections or UDP sockets
        #[arg(long, default_value_t = 20)]
        flows: usize,
    },
}

/// Options of key-value workloads.
#[derive(clap::Args)]
struct Mix {
    /// Connections
    #[arg(long, default_value_t = 20)]
    connections: usize,
    /// Share of requests that are `set`
    #[arg(long, value_name = "RATIO", default_value_t = 0.03)]
    sets: f64,
    /// Number of keys
    #[arg(long, value_parser = parse_count, default_value = "10k")]
    keys: usize,
    /// Key size in bytes, or `etc` for Facebook's ETC distribution
    #[arg(long, value_name = "BYTES|etc", default_value = "30")]
    key_size: SizeDist,
    /// Value size in bytes, or `etc` for Facebook's ETC distribution
    #[arg(long, value_name = "BYTES|etc", default_value = "200")]
    value_size: SizeDist,
}

impl From<Mix> for Memcached {
    fn from(mix: Mix) -> Self {
        let Mix { connections: _, sets, keys, key_size, value_size } = mix;
        Self { set_ratio: sets, keys, key_size, value_size }
    }
}

#[derive(clap::Args)]
struct Common {
    /// Address and port of the server
    #[arg(value_name = "ADDR:PORT")]
    target: String,
    /// Requests per second (`500`, `50k`, `1.2M`), or `max` for a closed loop
    #[arg(long, default_value = "20k")]
    rate: Rate,
    /// Threads, which share the connections
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Maximum number of outstanding requests per connection; further requests wait, which counts as latency
    #[arg(long, default_value_t = 1)]
    depth: usize,
    /// Distribution of the times at which requests are due
    #[arg(long, value_enum, default_value_t = ArrivalsArg::Poisson)]
    arrivals: ArrivalsArg,
    /// Measured time
    #[arg(long, value_name = "TIME", default_value = "5s")]
    duration: Nanos,
    /// Time before the measurement
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    warmup: Nanos,
    /// Time without a response after which the run fails
    #[arg(long, value_name = "TIME", default_value = "5s")]
    timeout: Nanos,
    /// Seed; the same seed gives the same send times, keys and sizes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run on these CPUs only
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Add the latency at every percentile to the JSON document
    #[arg(long, requires = "json")]
    curve: bool,
    #[command(flatten)]
    nic: NicArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum ArrivalsArg {
    Poisson,
    Even,
}

/// Exit status after Ctrl-C: 128 + SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let (common, workload, connections) = args.protocol.split();
    let target = resolve(&common.target, "127.0.0.1:11211 or [::1]:11211")?;
    let options = Options {
        connections,
        threads: common.threads,
        depth: common.depth,
        timeout: common.timeout.into(),
        ..Options::new(target, workload)
    };
    let config = Config::new(options).map_err(Failure::usage)?;
    let stop = Arc::new(AtomicBool::new(false));
    let run = common.run_config(Arc::clone(&stop)).map_err(Failure::usage)?;
    let flag = Arc::clone(&stop);
    signals::handle_first(move |_| flag.store(true, Ordering::Relaxed), |_| i32::from(INTERRUPTED))?;
    let bar = Bar::start(common.warmup, common.duration); // before this thread is pinned
    let opened = common.nic.open(End::Client, common.threads, &common.cpu).inspect_err(|_| bar.end())?;
    let result = match &opened {
        None => measure(Kernel, &config, &run, &stop, &bar),
        Some(opened) => measure(opened.datapath.clone(), &config, &run, &stop, &bar),
    };
    bar.end();
    opened.map_or(Ok(()), Opened::finish)?;
    match result {
        Ok(report) => print(report, &common),
        Err(LoadError::Stopped) => {
            eprintln!("abey: interrupted before the end of the measurement: no result");
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(_) if stop.load(Ordering::Relaxed) => Ok(ExitCode::from(INTERRUPTED)),
        Err(error) => Err(Failure::check(error)),
    }
}

fn measure<N: Network>(
    network: N,
    config: &Config,
    run: &RunConfig,
    stop: &Arc<AtomicBool>,
    bar: &Bar,
) -> Result<Report, LoadError> {
    let mut load = Load::connect_on(network, config, Some(Arc::clone(stop)))?;
    bar.begin();
    load.run(run, &mut |_| {})
}

impl ProtocolArgs {
    fn split(self) -> (Common, Workload, usize) {
        match self {
            Self::Memcached { common, mix } => {
                let connections = mix.connections;
                (common, Workload::Memcached(mix.into()), connections)
            }
            Self::Redis { common, mix } => {
                let connections = mix.connections;
                (common, Workload::Redis(mix.into()), connections)
            }
            Self::Http { common, connections, path } => (common, Workload::Http(HttpGet { path }), connections),
            Self::Rr { common, exchange, flows } => {
                let exchange = RequestResponse::from(exchange);
                (common, Workload::RequestResponse(exchange), flows)
            }
        }
    }
}

impl Common {
    fn run_config(&self, stop: Arc<AtomicBool>) -> Result<RunConfig, abey_loadgen::ConfigError> {
        let arrivals = match self.arrivals {
            ArrivalsArg::Poisson => Arrivals::Poisson,
            ArrivalsArg::Even => Arrivals::Even,
        };
        let run = RunConfig::new(self.rate, self.duration.into())?.warmup(self.warmup.into())?;
        Ok(run.arrivals(arrivals).seed(self.seed).stop_flag(stop))
    }
}

/// Parses a count with an optional suffix: `500`, `10k`, `1M`.
fn parse_count(text: &str) -> Result<usize, String> {
    let (number, scale) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1_000),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let count = number.parse::<usize>().ok().filter(|_| digits).and_then(|count| count.checked_mul(scale));
    count.ok_or_else(|| format!("`{text}` is not a count: write a whole number such as 500, 10k or 1M"))
}

fn print(mut report: Report, common: &Common) -> Result<ExitCode, Failure> {
    if !common.curve {
        report.latency_by_percentile.clear();
    }
    if common.json {
        return print_rows(&[report]);
    }
    let mut text = format!("{}\n", table(&report));
    for note in notes(&report) {
        text += &format!("{note}\n");
    }
    print_text(&text)
}
