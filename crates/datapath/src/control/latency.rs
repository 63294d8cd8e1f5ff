//! Request latencies as documents, and where they are gathered.

use abey_delivery::Nanos;
use serde::{Deserialize, Serialize};

use crate::error::number;
use crate::runtime::Shared;

/// The longest that latencies are measured without anybody asking.
pub const LONGEST_WATCH: Nanos = Nanos::from_millis(60_000);

/// How long requests took on one shard, since somebody first asked. What is a request, what is an answer and what is not
/// seen of the time between them is told in [`Wanted::Latency`](super::Wanted::Latency).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyPage {
    /// The shard's NAPI instance.
    pub napi: u32,
    /// Its queue pair.
    pub queue: u32,
    /// Requests, measured or not.
    pub requests: u64,
    /// Pairs of a time in nanoseconds (within a hundredth) and how many of the measured requests took that long, ascending.
    pub answered: Vec<(u64, u64)>,
}

/// How long requests took between two questions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Requests that were measured.
    pub count: u64,
    times: Vec<(u64, u64)>,
}

impl Latencies {
    /// Of all the shards together, from `earlier` to `later`. A shard that is new, or that began anew because nobody had
    /// asked for a while, counts from its beginning.
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

    /// The time within which this share (0 to 1) of the requests were answered; `None` where there were none.
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

impl Shared {
    /// A page of each shard, one shard after the other.
    pub(super) fn latencies(&self, watch_ns: u64) -> Vec<LatencyPage> {
        let span = Nanos::from_nanos(watch_ns).min(LONGEST_WATCH);
        let page = |shard: &std::sync::Arc<crate::shard::Shard>| {
            let view = shard.with(|core| core.watch_latency(span));
            LatencyPage {
                napi: number(shard.id),
                queue: shard.index.0,
                requests: view.requests,
                answered: view.answered,
            }
        };
        self.shards.iter().map(page).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(napi: u32, requests: u64, answered: &[(u64, u64)]) -> LatencyPage {
        LatencyPage { napi, queue: 0, requests, answered: answered.to_vec() }
    }

    #[test]
    fn what_came_between_two_questions_is_told_from_what_was_before() {
        let earlier = [page(3, 10, &[(10, 5), (20, 5)]), page(4, 9, &[(10, 9)])];
        // The second shard began anew: it has seen less than before.
        let later = [page(3, 20, &[(10, 5), (20, 8), (30, 7)]), page(4, 2, &[(10, 2)])];
        let between = Latencies::between(&earlier, &later);
        assert_eq!(between.count, 12);
        let at = |share| between.quantile(share).map(Nanos::as_nanos);
        assert_eq!((at(0.0), at(0.16), at(0.4), at(0.5), at(1.0)), (Some(10), Some(10), Some(20), Some(30), Some(30)));
        assert_eq!(Latencies::between(&later, &later).quantile(0.5), None, "nothing came");
        assert_eq!(Latencies::between(&[], &later).count, 22);
    }
}
