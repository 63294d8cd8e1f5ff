//! Remote SSDs in the threaded NAPI study: a fixed rate of reads and writes, with polls in three contexts.
//!
//! The study publishes few details, so this is assumed: a storage server with one thread pinned to each CPU, which
//! spends [`SERVICE`] on an operation; as many reads as writes; NAPI threads and workers pinned to the CPUs that the
//! queues interrupt. The times of the device and `SERVICE` are fitted to the softirq rows.

use abey_delivery::Nanos;
use serde::Deserialize;

use super::threaded_napi::{FITTED, host_topology, mode};
use super::{Figure, Figures, Row, run_all};
use crate::distribution::{Delay, Size};
use crate::input::InputError;
use crate::outcome::Outcome;
use crate::profile::Profile;
use crate::scenario::{Load, Scenario, Sizes};
use crate::topology::Topology;

const TABLE: &str = include_str!("../../../../data/reference/threaded-napi-remote-ssd.csv");

/// Processor time of an operation; fitted to the 4 KiB softirq row, whose CPUs are nearly saturated.
const SERVICE: Nanos = Nanos::from_micros(59);
/// Time of both directions, without the client's time in the profile's closed loop.
const CLIENT_NS: u64 = 40_000;
/// Every operation is sent, however late.
const SKIP_NS: u64 = 1_000_000_000;
/// Length of a command, or of a completion without data.
const SMALL: u64 = 100;
/// Number of connections, large enough that operations do not wait for a connection.
const CONNECTIONS: u32 = 40_000;

#[derive(Clone, Debug, Deserialize)]
struct TableRow {
    context: String,
    op_bytes: u64,
    ops_per_s: f64,
    p50_us: f64,
    p95_us: f64,
    p99_us: f64,
    p999_us: f64,
}

/// Returns the median and the 99th percentile of the device's time for this size, in microseconds; fitted to the
/// softirq rows.
const fn device_us(bytes: u64) -> (u64, u64) {
    match bytes {
        0..=4_096 => (100, 2_300),
        4_097..=65_536 => (500, 2_900),
        _ => (1_000, 1_200),
    }
}

pub(super) fn predict(profile: &Profile, seed: u64, millis: u64) -> Result<Vec<Row>, InputError> {
    let mut host = profile.clone();
    host.client.base_ns = CLIENT_NS;
    host.client.skip_ns = SKIP_NS;
    let table: Vec<TableRow> = super::read(TABLE);
    let scenarios: Vec<Scenario> = table.iter().map(|row| scenario(row, seed, millis)).collect();
    let outcomes = run_all(&host, &scenarios)?;
    Ok(table.iter().zip(&outcomes).map(|(row, outcome)| to_row(row, outcome)).collect())
}

fn scenario(row: &TableRow, seed: u64, millis: u64) -> Scenario {
    let either = Size::Weighted(vec![(SMALL, 1.0), (row.op_bytes, 1.0)]);
    let (median, p99) = device_us(row.op_bytes);
    Scenario {
        topology: Topology { unpinned: false, unpinned_pollers: false, ..host_topology() },
        queues: 8,
        connections: CONNECTIONS,
        sizes: Some(Sizes { request: either.clone(), response: either }),
        service: Some(Delay::Exponential { mean: SERVICE }),
        device: Some(Delay::Quantiles { median: Nanos::from_micros(median), p99: Nanos::from_micros(p99) }),
        warmup: Nanos::from_millis(50),
        duration: Nanos::from_millis(millis),
        seed,
        linux: true,
        ..Scenario::new(mode(&row.context), Load::Open(row.ops_per_s))
    }
}

fn to_row(row: &TableRow, outcome: &Outcome) -> Row {
    let figure = |published, predicted| Figure { published: Some(published), predicted };
    let figures = Figures(vec![
        ("qps", figure(row.ops_per_s, outcome.qps)),
        ("p50_us", figure(row.p50_us, outcome.p50_us)),
        ("p95_us", figure(row.p95_us, outcome.p95_us)),
        ("p99_us", figure(row.p99_us, outcome.p99_us)),
        ("p999_us", figure(row.p999_us, outcome.p999_us)),
    ]);
    let load = format!("SSD {} B", row.op_bytes);
    Row { mode: row.context.clone(), load, fitted: row.context == FITTED, figures }
}
