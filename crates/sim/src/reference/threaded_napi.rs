//! Threaded NAPI (2021): polls in softirq, in a thread per queue, or by a pool of workers.
//!
//! The simulation explains the tail of softirq as follows. No packet waits longer than 0.1 ms for its poll. But with
//! 1-byte requests a fourteenth of them is served by threads on one of the eight CPUs that poll in softirq. These
//! threads wait for the softirq, 1 ms at the 90th percentile and 3 ms at the 99th; all others wait 0.04 ms at most.
//! The scheduler regards such a CPU as idle, or as running one thread, and does not migrate the thread. A NAPI thread
//! is visible to the scheduler, so other threads are woken elsewhere. The search for another CPU costs throughput.

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

/// Queues of the study's host.
const QUEUES: u32 = 8;
const CPUS: u32 = 56;
/// Server threads: one per CPU, because the study does not state their number. With 28 to 112 threads the simulated
/// p99 and p99.9 of kthread are below those of softirq; its throughput is below only with 56 to 64.
const THREADS: u32 = 56;
const FLOWS: u32 = 1_000;
/// Context that the shipped profile is fitted to.
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

/// The study: tcp_rr and remote SSDs with three sizes each, in three contexts.
#[derive(Debug, Default)]
pub struct ThreadedNapi;

impl ThreadedNapi {
    /// Name on the command line.
    pub const NAME: &str = "threaded-napi";

    /// Profile of the study.
    pub const PROFILE: &str = "xeon-56ht-2020";

    /// Columns whose order of modes is compared.
    pub const ORDERED: [&str; 3] = ["qps", "p99_us", "p999_us"];

    /// Predicts the rows.
    ///
    /// # Errors
    /// If the profile is invalid.
    pub fn predict(&self, profile: &Profile, seed: u64) -> Result<Vec<Row>, InputError> {
        self.predict_with(profile, seed, 2_000)
    }

    /// Like [`Self::predict`], with `millis` milliseconds per row. With fewer than some hundred, the rare waits that
    /// determine the highest percentiles are missing.
    ///
    /// # Errors
    /// If the profile is invalid.
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

/// Returns the host and its client for the rows of a message size.
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

/// Returns the study's topology, without pinned threads.
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
        // A round trip of 1 MB sometimes takes a second.
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
