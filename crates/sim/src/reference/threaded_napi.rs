//! Threaded NAPI (2021): polls in softirq, in a thread for each queue, or by a pool of workers.
//!
//! What the simulation says about the tail of softirq: no packet waits longer than 0.1 ms for its poll. But with
//! 1-byte requests a fourteenth of them is served by threads that are on one of the eight CPUs which poll in softirq, and
//! those wait for the softirq, 1 ms at the 90th percentile and 3 ms at the 99th; all others wait 0.04 ms at most. The
//! scheduler takes such a CPU to be idle, or to run one thread, and does not move it. A NAPI thread is a thread on its CPU,
//! so others are woken elsewhere, and whoever wakes them has to look for that place: the throughput that it costs.

use abey_delivery::{Mode, Nanos};
use serde::Deserialize;

use super::{Figure, Figures, Row, remote_ssd, run_all};
use crate::distribution::Size;
use crate::input::InputError;
use crate::outcome::Outcome;
use crate::profile::Profile;
use crate::scenario::{Load, Scenario, Sizes};
use crate::topology::Topology;

const ROUND_TRIPS: &str = include_str!("../../../../data/reference/threaded-napi-tcp-rr.csv");

/// The study's host.
const QUEUES: u32 = 8;
const CPUS: u32 = 56;
/// The study does not say how many server threads there were: one for each CPU. With any number from 28 to 112 the simulated
/// p99 and p99.9 of kthread are below those of softirq; its throughput is below only from 56 to 64.
const THREADS: u32 = 56;
const FLOWS: u32 = 1_000;
/// The context that the shipped profile is fitted on.
pub(super) const FITTED: &str = "softirq";
/// The client's time for requests and answers of 5000 bytes, its own queues and threads included; fitted on their softirq
/// row. That of 1-byte ones is the profile's `client.base_ns`, and for 1 MB the wire alone matters.
const CLIENT_NS_5000: u64 = 545_000;

#[derive(Clone, Debug, Deserialize)]
struct RoundTrip {
    context: String,
    request_bytes: u64,
    response_bytes: u64,
    transactions_per_s: f64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    p999_us: f64,
}

/// The study: tcp_rr with three sizes and remote SSDs with three, each in three contexts.
#[derive(Debug, Default)]
pub struct ThreadedNapi;

impl ThreadedNapi {
    /// The name on the command line.
    pub const NAME: &str = "threaded-napi";

    /// The profile that belongs to it.
    pub const PROFILE: &str = "xeon-56ht-2020";

    /// The columns in which it matters who beats whom.
    pub const ORDERED: [&str; 3] = ["qps", "p99_us", "p999_us"];

    /// Predicts the rows.
    ///
    /// # Errors
    /// If the profile cannot be used.
    pub fn predict(&self, profile: &Profile, seed: u64) -> Result<Vec<Row>, InputError> {
        self.predict_with(profile, seed, 2_000)
    }

    /// As [`Self::predict`], from so many milliseconds of each row: with fewer than some hundred, few of those waits have
    /// happened that the highest percentiles are made of.
    ///
    /// # Errors
    /// If the profile cannot be used.
    pub fn predict_with(&self, profile: &Profile, seed: u64, millis: u64) -> Result<Vec<Row>, InputError> {
        let table: Vec<RoundTrip> = super::read(ROUND_TRIPS);
        let mut rows = Vec::new();
        for of_one_size in table.chunk_by(|one, other| one.request_bytes == other.request_bytes) {
            let scenarios: Vec<Scenario> = of_one_size.iter().map(|row| scenario(row, seed, millis)).collect();
            let outcomes = run_all(&host(profile, of_one_size[0].request_bytes), &scenarios)?;
            rows.extend(of_one_size.iter().zip(&outcomes).map(|(row, outcome)| to_row(row, outcome)));
        }
        rows.extend(remote_ssd::predict(profile, seed, millis)?);
        Ok(rows)
    }
}

/// The host and its client as the rows of a size have them.
fn host(profile: &Profile, bytes: u64) -> Profile {
    let mut host = profile.clone();
    if bytes == 5_000 {
        host.client.base_ns = CLIENT_NS_5000;
    }
    host
}

pub(super) fn mode(context: &str) -> Mode {
    match context {
        "softirq" => Mode::Base,
        "kthread" => Mode::Threaded,
        "workqueue" => Mode::Workqueue,
        other => unreachable!("the table has no context {other}"),
    }
}

/// The study's host: nothing is pinned.
pub(super) fn host_topology() -> Topology {
    Topology {
        cpus: Some(CPUS),
        hyperthreads: true,
        threads: Some(THREADS),
        unpinned: true,
        unpinned_pollers: true,
        ..Topology::default()
    }
}

fn scenario(row: &RoundTrip, seed: u64, millis: u64) -> Scenario {
    let large = row.request_bytes > 1;
    let sizes = Sizes { request: Size::Fixed(row.request_bytes), response: Size::Fixed(row.response_bytes) };
    Scenario {
        queues: QUEUES,
        topology: host_topology(),
        connections: FLOWS,
        sizes: large.then_some(sizes),
        // A round trip of 1 MB takes a second now and then.
        warmup: Nanos::from_millis(if row.request_bytes > 5_000 { 1_000 } else { 50 }),
        duration: Nanos::from_millis(millis),
        seed,
        linux: true,
        ..Scenario::new(mode(&row.context), Load::Closed)
    }
}

fn to_row(row: &RoundTrip, outcome: &Outcome) -> Row {
    let figure = |published, predicted| Figure { published: Some(published), predicted };
    let figures = Figures(vec![
        ("qps", figure(row.transactions_per_s, outcome.qps)),
        ("p50_us", figure(row.p50_us, outcome.p50_us)),
        ("p90_us", figure(row.p90_us, outcome.p90_us)),
        ("p99_us", figure(row.p99_us, outcome.p99_us)),
        ("p999_us", figure(row.p999_us, outcome.p999_us)),
    ]);
    let load = format!("{} B", row.request_bytes);
    Row { mode: row.context.clone(), load, fitted: row.context == FITTED, figures }
}
