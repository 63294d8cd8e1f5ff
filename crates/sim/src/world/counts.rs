//! Counters, and the figures derived from them.

use super::World;
use super::cpu::Level;
use crate::outcome::Outcome;
use crate::waits::Waits;

#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) instructions: u64,
    pub(super) answers: u64,
    /// Received packets, and sent segments of answers.
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) polled: u64,
    pub(super) polls: u64,
    pub(super) empty_polls: u64,
    pub(super) interrupts: u64,
    pub(super) waits: u64,
    pub(super) deliveries: u64,
    pub(super) events: u64,
    pub(super) drops: u64,
    /// Times that a thread was given a CPU, and those on another CPU than before.
    pub(super) switches: u64,
    pub(super) migrations: u64,
    /// Packets before the last reset of the counters.
    pub(super) packets_before: u64,
}

impl Counts {
    pub(super) fn packets(&self) -> u64 {
        self.received + self.sent
    }
}

impl World<'_> {
    /// Returns how long packets waited in the rings.
    fn ring_waits(&self) -> Waits {
        let mut waits = Waits::default();
        self.queues.iter().for_each(|queue| waits.add(&queue.rx.waits));
        waits
    }

    /// Returns the figures of the last measurement interval.
    pub(super) fn figures(&self) -> Outcome {
        let ns = self.scenario.duration.as_nanos() as f64;
        let cpus = &self.cpus[..self.server_cpus];
        let cpu_ns = ns * cpus.len() as f64;
        let spent = |level: Level| cpus.iter().map(|cpu| cpu.spent[level as usize]).sum::<u64>() as f64;
        let share = |level| 100.0 * spent(level) / cpu_ns;
        let counts = &self.counts;
        let per_query = |n: u64| n as f64 / counts.answers.max(1) as f64;
        let ratio = |n: u64, of: u64| n as f64 / of.max(1) as f64;
        let busy = spent(Level::Thread) + spent(Level::Soft) + spent(Level::Hard);
        let latency = &self.clients.latency;
        let percentile = |q: f64| latency.value_at_quantile(q) as f64 / 1e3;
        let waits = self.ring_waits();
        Outcome {
            qps: counts.answers as f64 * 1e9 / ns,
            avg_us: latency.mean() / 1e3,
            p50_us: percentile(0.5),
            p90_us: percentile(0.9),
            p95_us: percentile(0.95),
            p99_us: percentile(0.99),
            p999_us: percentile(0.999),
            cpu_percent: 100.0 * busy / cpu_ns,
            cycles_per_query: (busy + spent(Level::Idle)) * self.profile.processor.frequency_mhz as f64
                / 1e3
                / counts.answers.max(1) as f64,
            instructions_per_query: per_query(counts.instructions),
            thread_percent: share(Level::Thread),
            softirq_percent: share(Level::Soft),
            hardirq_percent: share(Level::Hard),
            interrupts_per_query: per_query(counts.interrupts),
            polls_per_query: per_query(counts.polls),
            packets_per_poll: ratio(counts.polled, counts.polls),
            empty_polls_percent: 100.0 * ratio(counts.empty_polls, counts.polls),
            waits_per_query: per_query(counts.waits),
            events_per_wait: ratio(counts.events, counts.deliveries),
            ring_wait_p99_us: waits.percentile(99) as f64 / 1e3,
            ring_wait_max_us: waits.longest() as f64 / 1e3,
            switches_per_query: per_query(counts.switches),
            migrations_per_query: per_query(counts.migrations),
            drops: counts.drops,
            requests: self.clients.requests,
            answers: self.clients.answers,
            outstanding: self.clients.outstanding(),
            skipped: self.clients.skipped,
            packets: counts.packets_before + counts.packets(),
        }
    }
}
