//! What a scrape gives, and what is said when a part of it cannot be read.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use abey_delivery::Nanos;
use abey_observe::totals::Totals;
use abey_observe::{Collector, Outcome, Sample, Sampler};
use prometheus::TextEncoder;

use super::metrics;
use crate::failure::Failure;

/// Several who ask at once get the same answer: a sample is not taken again before this time has passed.
const FRESH: Duration = Duration::from_millis(50);

/// Samples, and adds up.
pub(super) struct Exporter {
    sampler: Sampler,
    totals: Totals,
    per_queue: bool,
    began: Instant,
    last: Option<(Instant, String)>,
    /// Why collectors failed the last time.
    failing: BTreeMap<Collector, String>,
}

impl Exporter {
    pub(super) fn new(sampler: Sampler, per_queue: bool) -> Self {
        let totals = Totals::default();
        Self { sampler, totals, per_queue, began: Instant::now(), last: None, failing: BTreeMap::new() }
    }

    /// The metrics as they are now.
    pub(super) fn scrape(&mut self) -> Result<String, Failure> {
        if let Some((at, text)) = &self.last
            && at.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let sample = self.sampler.sample(Nanos::from_nanos(self.began.elapsed().as_nanos() as u64));
        self.totals.take(&sample);
        self.report(&sample);
        let families = metrics::families(&sample, &self.totals, self.per_queue);
        let text = TextEncoder::new().encode_to_string(families.as_slice());
        let text = text.map_err(|error| Failure::check(format!("cannot write the metrics: {error}")))?;
        self.last = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    /// One line when a collector begins to fail, fails otherwise, or works again.
    fn report(&mut self, sample: &Sample) {
        for Outcome { collector, result, .. } in &sample.outcomes {
            match result {
                Ok(()) => {
                    if self.failing.remove(collector).is_some() {
                        eprintln!("abey: collector {collector} works again");
                    }
                }
                Err(why) if self.failing.get(collector) != Some(why) => {
                    eprintln!("abey: collector {collector} fails: {why}");
                    self.failing.insert(*collector, why.clone());
                }
                Err(_) => {}
            }
        }
    }
}
