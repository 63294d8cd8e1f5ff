//! `abey exporter`: Prometheus metrics of NAPI instances, the kernel's and running datapaths'.

mod families;
mod metrics;
mod scrape;
mod serve;
mod text_file;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use abey_delivery::Nanos;
use abey_observe::{Collector, Options, Sampler};
use glob::Pattern;

use self::scrape::Exporter;
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::print_text;

/// Serve Prometheus metrics of NAPI instances, the kernel's and running datapaths': modes and settings, polls by context,
/// packets and batches, suspensions, interrupts, CPU time. What may not be read is left out, and
/// abey_scrape_collector_success says so; polls take CAP_BPF and CAP_PERFMON
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to serve /metrics
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9736")]
    listen: SocketAddr,
    /// Metrics of every queue as well; there may be many
    #[arg(long)]
    per_queue: bool,
    #[command(flatten)]
    watched: Watched,
    /// What to collect, separated by commas: napi, polls, interrupts, softnet, datapath
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = Collector::ALL.map(Collector::name))]
    collectors: Vec<Collector>,
    /// Count for --interval, print the metrics and end
    #[arg(long, conflicts_with_all = ["listen", "textfile"])]
    once: bool,
    /// In place of serving, write the metrics to this file every --interval, for the text-file collector of another exporter
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    textfile: Option<PathBuf>,
    /// How long --once counts, and --textfile waits (from 10ms to 1 hour)
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Nanos,
}

/// Which instances are looked at.
#[derive(clap::Args)]
pub(crate) struct Watched {
    /// Only devices and NICs of these names, in which * and ? stand for any text and any character; may be given again
    #[arg(long = "dev", value_name = "GLOB")]
    devices: Vec<Pattern>,
    #[command(flatten)]
    namespace: Namespace,
}

impl Watched {
    /// A sampler of them.
    pub(crate) fn sampler(&self, collectors: BTreeSet<Collector>) -> Result<Sampler, Failure> {
        if self.devices.iter().any(|pattern| pattern.as_str().is_empty()) {
            return Err(Failure::usage("--dev \"\" names no device: give a name, or a pattern such as eth*"));
        }
        Ok(Sampler::new(self.namespace.open()?, &Options { collectors, devices: self.devices.clone() }))
    }
}

const INTERVALS: std::ops::RangeInclusive<Nanos> = Nanos::from_millis(10)..=Nanos::from_millis(3_600_000);

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if !INTERVALS.contains(&args.interval) {
        return Err(Failure::usage(format!(
            "--interval {} is out of range: it goes from 10ms to 1 hour",
            args.interval
        )));
    }
    let sampler = args.watched.sampler(args.collectors.into_iter().collect())?;
    let mut exporter = Exporter::new(sampler, args.per_queue);
    let interval = Duration::from(args.interval);
    if args.once {
        exporter.scrape()?;
        std::thread::sleep(interval);
        return print_text(&exporter.scrape()?);
    }
    match args.textfile {
        Some(path) => text_file::keep(&path, exporter, interval),
        None => serve::run(args.listen, exporter),
    }
}
