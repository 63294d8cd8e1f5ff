//! `abey exporter`: Prometheus metrics of the NAPI instances of the kernel and of running datapaths.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use abey_delivery::Nanos;
use abey_metrics::exporter::{Exporter, ExporterError, ServiceEvent, serve, write_until};
use abey_metrics::{Collector, Options, Sampler};
use abey_supervise::signals::TERMINATION;
use glob::Pattern;
use sd_notify::NotifyState;

use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::print_text;
use crate::service::notify;
use crate::signals;

/// Serve Prometheus metrics of the NAPI instances of the kernel and of running datapaths
///
/// The metrics are modes and settings, polls by context, packets and batches, suspensions, interrupts and CPU time. A
/// collector that lacks a privilege is left out, and abey_scrape_collector_success is 0 for it; counting polls needs CAP_BPF
/// and CAP_PERFMON.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address to serve /metrics on
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9736")]
    listen: SocketAddr,
    /// Add the metrics of every queue; there may be many
    #[arg(long)]
    per_queue: bool,
    #[command(flatten)]
    selection: Selection,
    /// Collectors to run, separated by commas: napi, polls, interrupts, softnet, datapath
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values = Collector::ALL.map(Collector::name))]
    collectors: Vec<Collector>,
    /// Count for --interval, print the metrics and exit
    #[arg(long, conflicts_with_all = ["listen", "textfile"])]
    once: bool,
    /// Write the metrics to this file every --interval instead of serving them, for the text-file collector of another
    /// exporter
    #[arg(long, value_name = "FILE", conflicts_with = "listen")]
    textfile: Option<PathBuf>,
    /// Time that --once counts, and between two writes of --textfile (10ms to 1 hour)
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Nanos,
}

/// The instances to sample.
#[derive(clap::Args)]
pub(crate) struct Selection {
    /// Sample only devices and NICs whose name matches (* is any text, ? any character); may be repeated
    #[arg(long = "dev", value_name = "GLOB")]
    devices: Vec<Pattern>,
    #[command(flatten)]
    namespace: Namespace,
}

impl Selection {
    /// Creates a sampler of the selected instances.
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
        return Err(Failure::usage(format!("--interval {} is out of range: use 10ms to 1 hour", args.interval)));
    }
    let sampler = args.selection.sampler(args.collectors.into_iter().collect())?;
    let mut exporter = Exporter::new(sampler, args.per_queue, report_collector);
    let interval = Duration::from(args.interval);
    if args.once {
        exporter.scrape()?;
        std::thread::sleep(interval);
        return print_text(&exporter.scrape()?);
    }
    match args.textfile {
        Some(path) => {
            let stop = signals::stop_flag(&TERMINATION)?;
            write_until(&stop, &path, interval, exporter, &mut notify_event)?;
        }
        None => serve(args.listen, exporter, &mut notify_event)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn report_collector(collector: Collector, result: Result<(), &str>) {
    match result {
        Ok(()) => eprintln!("abey: collector {collector} works again"),
        Err(error) => eprintln!("abey: collector {collector} fails: {}", abey_text::visible(error)),
    }
}

fn notify_event(event: ServiceEvent) {
    match event {
        ServiceEvent::Ready(address) => {
            if let Some(address) = address {
                eprintln!("abey: metrics at http://{address}/metrics");
            }
            notify(&[NotifyState::Ready]);
        }
        ServiceEvent::Stopping => notify(&[NotifyState::Stopping]),
    }
}

impl From<ExporterError> for Failure {
    fn from(error: ExporterError) -> Self {
        match error {
            ExporterError::Serve(_) | ExporterError::Listen { .. } | ExporterError::Write { .. } => Self::lacks(error),
            _ => Self::check(error),
        }
    }
}
