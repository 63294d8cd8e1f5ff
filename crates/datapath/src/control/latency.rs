//! Request latencies as documents.

use abey_delivery::Nanos;
use serde::{Deserialize, Serialize};

use crate::host::Host;

/// The longest time for which latencies are measured after a query.
pub const MAX_LATENCY_WATCH: Nanos = Nanos::from_millis(60_000);

/// The request latencies of one shard since the first query. [`Query::Latency`](super::Query::Latency) defines requests,
/// answers, and the part of the latency that is not measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyPage {
    /// The shard's NAPI instance.
    pub napi: u32,
    /// Its queue pair.
    pub queue: u32,
    /// The number of requests, measured or not.
    pub requests: u64,
    /// Pairs of a latency in nanoseconds (within 1 %) and the number of measured requests that took as long, ascending.
    pub answered: Vec<(u64, u64)>,
}

/// The request latencies between two queries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// The number of measured requests.
    pub count: u64,
    times: Vec<(u64, u64)>,
}

impl Latencies {
    /// Returns the latencies of all shards from `earlier` to `later`. A shard that is new, or that restarted because there
    /// was no query for a while, counts from its start.
    pub fn between(earlier: &[LatencyPage], later: &[LatencyPage]) -> Self {
        let mut times = std::collections::BTreeMap::<u64, u64>::new();
        for page in later {
            let before = earlier.iter().find(|before| before.napi == page.napi && before.requests <= page.requests);
            for &(time, count) in &page.answered {
                let counted = before.and_then(|before| before.answered.iter().find(|(other, _)| *other == time));
                *times.entry(time).or_default() += count.saturating_sub(counted.map_or(0, |(_, count)| *count));
            }
        }
        Self { count: times.values().sum(), times: times.into_iter().collect() }
    }

    /// Returns the latency within which this share (0 to 1) of the requests was answered; `None` if there were none.
    pub fn quantile(&self, share: f64) -> Option<Nanos> {
        let wanted = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        let found = self.times.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        found.map(|(time, _)| Nanos::from_nanos(*time))
    }
}

/// Returns a page for each shard, and continues to measure for `watch_ns`.
pub(super) fn pages(host: &Host, watch_ns: u64) -> Vec<LatencyPage> {
    let span = Nanos::from_nanos(watch_ns).min(MAX_LATENCY_WATCH);
    let shards = host.shards().iter();
    shards
        .map(|shard| {
            let view = shard.query_latency(span);
            let (napi, queue) = (shard.id.get(), shard.index.0);
            LatencyPage { napi, queue, requests: view.requests, answered: view.answered }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(napi: u32, requests: u64, answered: &[(u64, u64)]) -> LatencyPage {
        LatencyPage { napi, queue: 0, requests, answered: answered.to_vec() }
    }

    #[test]
    fn only_requests_between_two_queries_are_counted() {
        let earlier = [page(3, 10, &[(10, 5), (20, 5)]), page(4, 9, &[(10, 9)])];
        // The second shard has restarted: it has fewer requests than before.
        let later = [page(3, 20, &[(10, 5), (20, 8), (30, 7)]), page(4, 2, &[(10, 2)])];
        let between = Latencies::between(&earlier, &later);
        assert_eq!(between.count, 12);
        let at = |share| between.quantile(share).map(Nanos::as_nanos);
        assert_eq!((at(0.0), at(0.16), at(0.4), at(0.5), at(1.0)), (Some(10), Some(10), Some(20), Some(30), Some(30)));
        assert_eq!(Latencies::between(&later, &later).quantile(0.5), None, "there were no requests");
        assert_eq!(Latencies::between(&[], &later).count, 22);
    }
}
