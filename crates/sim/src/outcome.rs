//! What a run measured.

/// The figures of one run. Times are in microseconds as a client measures them, CPU in percent of the server's CPUs.
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
    /// CPU use: threads, softirq and hardirq; not the idle loop.
    pub cpu_percent: f64,
    /// Cycles of all kinds per answer, the idle loop included.
    pub cycles_per_query: f64,
    /// Instructions of all kinds per answer.
    pub instructions_per_query: f64,
    /// CPU use by threads, busy polling included.
    pub thread_percent: f64,
    /// CPU use by softirqs.
    pub softirq_percent: f64,
    /// CPU use by hardirqs.
    pub hardirq_percent: f64,
    /// The NIC's interrupts.
    pub interrupts_per_query: f64,
    /// Polls by anybody.
    pub polls_per_query: f64,
    /// Packets per poll.
    pub packets_per_poll: f64,
    /// Share of polls that found nothing.
    pub empty_polls_percent: f64,
    /// Calls of `epoll_wait`.
    pub waits_per_query: f64,
    /// Events per call that had any.
    pub events_per_wait: f64,
    /// 99th percentile of the time that packets waited in a receive ring until a poll took them: what a mode adds to the
    /// latency of whatever else arrives on the same queue. Up to a sixteenth too long.
    pub ring_wait_p99_us: f64,
    /// The longest such wait, exactly.
    pub ring_wait_max_us: f64,
    /// Times that a thread was given a CPU.
    pub switches_per_query: f64,
    /// Threads that woke on another CPU than they ran on before, or were moved to one.
    pub migrations_per_query: f64,
    /// Packets that rings dropped.
    pub drops: u64,
    /// Requests sent, answered and outstanding since the beginning of the run, warm-up included.
    pub requests: u64,
    /// See [`Self::requests`].
    pub answers: u64,
    /// See [`Self::requests`].
    pub outstanding: u64,
    /// Requests of an open loop that waited too long for their connection (the profile's `client.skip_ns`) and were never
    /// sent; not among [`Self::requests`].
    pub skipped: u64,
    /// Packets received and sent in the whole run.
    pub packets: u64,
}
