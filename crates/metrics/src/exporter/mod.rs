//! Prometheus metrics of the sampled instances, in the text format, over HTTP or in a file.

mod catalog;
mod connections;
mod families;
mod http;
mod text_file;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use prometheus::TextEncoder;

pub use http::serve;
pub use text_file::write_until;

use crate::totals::Totals;
use crate::{Collector, CollectorResult, Sample, Sampler};

/// Minimum time between two samples: requests within it get the same metrics.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// An error of the exporter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExporterError {
    /// The metrics could not be encoded.
    #[error("cannot encode the metrics: {0}")]
    Encode(#[from] prometheus::Error),
    /// The thread that takes samples panicked.
    #[error("cannot take a sample: {0}")]
    Sample(String),
    /// The HTTP server could not start.
    #[error("cannot serve: {0}")]
    Serve(io::Error),
    /// The address could not be bound.
    #[error("cannot listen on {address}: {source}; choose another address with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error.
        source: io::Error,
    },
    /// The text file could not be written.
    #[error("cannot write {}: {source}; choose another file with --textfile", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The text file could not be removed.
    #[error("cannot remove {}: {source}", path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// A change of state that the caller may report to a service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceEvent {
    /// The first metrics are available; over HTTP at this address.
    Ready(Option<SocketAddr>),
    /// The exporter is about to end.
    Stopping,
}

/// Takes samples, adds them up and encodes the metrics.
#[derive(Debug)]
pub struct Exporter {
    sampler: Sampler,
    totals: Totals,
    per_queue: bool,
    began: Instant,
    last: Option<(Instant, String)>,
    /// Errors of the last sample.
    failing: BTreeMap<Collector, String>,
    on_collector_change: fn(Collector, Result<(), &str>),
}

impl Exporter {
    /// Creates an exporter; with `per_queue` it also writes the metrics of single queues. `on_collector_change` is called
    /// when a collector begins to fail, fails with another error, or works again.
    #[must_use]
    pub fn new(sampler: Sampler, per_queue: bool, on_collector_change: fn(Collector, Result<(), &str>)) -> Self {
        Self {
            sampler,
            totals: Totals::default(),
            per_queue,
            began: Instant::now(),
            last: None,
            failing: BTreeMap::new(),
            on_collector_change,
        }
    }

    /// Takes a sample and returns the metrics in the text format.
    ///
    /// # Errors
    /// [`ExporterError::Encode`].
    pub fn scrape(&mut self) -> Result<String, ExporterError> {
        if let Some((at, text)) = &self.last
            && at.elapsed() < MIN_SAMPLE_INTERVAL
        {
            return Ok(text.clone());
        }
        let sample = self.sampler.sample(Nanos::from_nanos(self.began.elapsed().as_nanos() as u64));
        self.totals.add(&sample);
        self.report_changes(&sample);
        let families = catalog::families(&sample, &self.totals, self.per_queue);
        let text = TextEncoder::new().encode_to_string(families.as_slice())?;
        self.last = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    fn report_changes(&mut self, sample: &Sample) {
        for CollectorResult { collector, result, .. } in &sample.results {
            match result {
                Ok(()) => {
                    if self.failing.remove(collector).is_some() {
                        (self.on_collector_change)(*collector, Ok(()));
                    }
                }
                Err(error) if self.failing.get(collector) != Some(error) => {
                    (self.on_collector_change)(*collector, Err(error));
                    self.failing.insert(*collector, error.clone());
                }
                Err(_) => {}
            }
        }
    }
}
