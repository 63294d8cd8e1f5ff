//! The counts and histograms of one thread's run, which can be merged.

use hdrhistogram::Histogram;

/// Histograms resolve 1 ns with three significant digits, up to an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Latencies from intended send times, ns.
    pub(crate) latency: Histogram<u64>,
    /// Actual minus intended send times of requests that did not have to wait for the server, ns.
    pub(crate) send_lag: Histogram<u64>,
    /// Answers that arrived within the measured interval.
    pub(crate) answered: u64,
    /// Requests due (open loop) or sent (closed loop) within the measured interval.
    pub(crate) due: u64,
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) sets: u64,
    /// UDP requests that were not answered in time.
    pub(crate) lost: u64,
    /// Requests whose connections all had their depth outstanding when they were due.
    pub(crate) queued: u64,
    /// Requests that were due but had not been sent when the interval ended.
    pub(crate) unsent: u64,
    /// Time in sending and receiving within the measured interval, ns.
    pub(crate) work_ns: u64,
    /// CPU time of the thread within the measured interval, spinning included, ns.
    pub(crate) cpu_ns: u64,
    /// The length of the measured interval, ns.
    pub(crate) elapsed_ns: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let histogram = || Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("bounds that HDR histograms take");
        Self {
            latency: histogram(),
            send_lag: histogram(),
            answered: 0,
            due: 0,
            gets: 0,
            hits: 0,
            sets: 0,
            lost: 0,
            queued: 0,
            unsent: 0,
            work_ns: 0,
            cpu_ns: 0,
            elapsed_ns: 0,
        }
    }

    /// Adds the counts of another thread of the same run.
    pub(crate) fn merge(&mut self, other: &Self) {
        let same_bounds = "histograms of the same bounds";
        self.latency.add(&other.latency).expect(same_bounds);
        self.send_lag.add(&other.send_lag).expect(same_bounds);
        for (mine, theirs) in [
            (&mut self.answered, other.answered),
            (&mut self.due, other.due),
            (&mut self.gets, other.gets),
            (&mut self.hits, other.hits),
            (&mut self.sets, other.sets),
            (&mut self.lost, other.lost),
            (&mut self.queued, other.queued),
            (&mut self.unsent, other.unsent),
            (&mut self.work_ns, other.work_ns),
            (&mut self.cpu_ns, other.cpu_ns),
        ] {
            *mine += theirs;
        }
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
    }
}
