//! Results of a run.

/// Figures of one run. Times are in microseconds as measured by the client, CPU use in percent of the server's CPUs.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Outcome {
    /// Answers per second.
    pub qps: f64,
    /// Mean latency.
    pub avg_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// CPU use of threads, softirqs and hardirqs, without the idle loop.
    pub cpu_percent: f64,
    /// Cycles per answer, including the idle loop.
    pub cycles_per_query: f64,
    /// Instructions per answer.
    pub instructions_per_query: f64,
    /// CPU use of threads, including busy polling.
    pub thread_percent: f64,
    /// CPU use of softirqs.
    pub softirq_percent: f64,
    /// CPU use of hardirqs.
    pub hardirq_percent: f64,
    /// NIC interrupts per answer.
    pub interrupts_per_query: f64,
    /// Polls per answer, in all contexts.
    pub polls_per_query: f64,
    /// Packets per poll.
    pub packets_per_poll: f64,
    /// Share of polls without packets.
    pub empty_polls_percent: f64,
    /// Calls of `epoll_wait` per answer.
    pub waits_per_query: f64,
    /// Events per call that returned any.
    pub events_per_wait: f64,
    /// 99th percentile of the time that packets waited in a receive ring for a poll. It is the latency that a mode
    /// adds to other traffic on the same queue. Rounded up by at most a sixteenth.
    pub ring_wait_p99_us: f64,
    /// Longest such wait, exact.
    pub ring_wait_max_us: f64,
    /// Context switches to a thread per answer.
    pub switches_per_query: f64,
    /// Threads per answer that woke on another CPU than before or were migrated.
    pub migrations_per_query: f64,
    /// Packets dropped by full rings.
    pub drops: u64,
    /// Requests sent since the start of the run, including the warm-up.
    pub requests: u64,
    /// Requests answered since the start of the run.
    pub answers: u64,
    /// Requests outstanding at the end of the run.
    pub outstanding: u64,
    /// Requests of an open loop that waited too long for their connection (the profile's `client.skip_ns`) and were
    /// not sent. They are not included in [`Self::requests`].
    pub skipped: u64,
    /// Packets received and sent in the whole run.
    pub packets: u64,
}
