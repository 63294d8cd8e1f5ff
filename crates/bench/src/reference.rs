//! The published tables of the IRQ suspension study, as typed rows.

use abey_delivery::Mode;
use serde::Deserialize;

use crate::{Figures, Load};

/// A published table.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceTable {
    /// Title.
    pub title: &'static str,
    /// Source and notes, in lines.
    pub about: &'static str,
    /// Rows, in the order of the file.
    pub rows: Vec<ReferenceRow>,
}

/// One published row: a mode at a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReferenceRow {
    /// The delivery mode.
    pub mode: Mode,
    /// The load.
    pub load: Load,
    /// Number of runs, if published.
    pub runs: Option<u32>,
    /// The published figures.
    pub figures: Figures,
    /// Counters per query, if published.
    pub counters: Counters,
}

/// Counters of the kernel, collected under tracing. `None` if not published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Counters {
    /// Share of CPU time in user mode, in percent.
    pub user_percent: Option<f64>,
    /// Share of CPU time in system calls, in percent.
    pub system_percent: Option<f64>,
    /// Share of CPU time in hardirq context, in percent.
    pub hardirq_percent: Option<f64>,
    /// Share of CPU time in softirq context, in percent.
    pub softirq_percent: Option<f64>,
    /// Interrupts per query.
    pub interrupts_per_query: Option<f64>,
    /// Packets received per query.
    pub rx_packets_per_query: Option<f64>,
    /// Packets sent per query.
    pub tx_packets_per_query: Option<f64>,
    /// NAPI polls per query.
    pub napi_polls_per_query: Option<f64>,
    /// Packets per NAPI poll.
    pub packets_per_poll: Option<f64>,
    /// Share of polls without packets, in percent.
    pub empty_polls_percent: Option<f64>,
    /// `epoll_wait` calls per query.
    pub epoll_waits_per_query: Option<f64>,
    /// Events per `epoll_wait` call.
    pub events_per_epoll_wait: Option<f64>,
}

/// An error in a published file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// The file is not a CSV file with the expected columns.
    #[error("the published table cannot be read: {0}; restore the file as it was published")]
    Csv(#[from] csv::Error),
    /// A row has an unknown mode.
    #[error("row {row} of the published table: {source}")]
    Mode {
        /// Number of the row, from 1, without the heading.
        row: usize,
        /// The error.
        source: abey_delivery::ParseModeError,
    },
}

/// Columns of the published files; each file has a subset.
#[derive(Deserialize)]
struct Record {
    mode: String,
    load: Load,
    runs: Option<u32>,
    qps: Option<f64>,
    avg_us: Option<f64>,
    p50_us: Option<f64>,
    p95_us: Option<f64>,
    p99_us: Option<f64>,
    cpu_percent: Option<f64>,
    cycles_per_query: Option<f64>,
    instructions_per_query: Option<f64>,
}

/// Parses a published file. [`Counters`] are read separately: a flattened struct would read every value as text.
fn parse(text: &str) -> Result<Vec<ReferenceRow>, ReferenceError> {
    let mut records = csv::Reader::from_reader(text.as_bytes());
    let mut counters = csv::Reader::from_reader(text.as_bytes());
    records
        .deserialize::<Record>()
        .zip(counters.deserialize::<Counters>())
        .enumerate()
        .map(|(at, (record, counters))| {
            let record = record?;
            Ok(ReferenceRow {
                mode: record.mode.parse().map_err(|source| ReferenceError::Mode { row: at + 1, source })?,
                load: record.load,
                runs: record.runs,
                figures: Figures {
                    qps: record.qps,
                    avg_us: record.avg_us,
                    p50_us: record.p50_us,
                    p95_us: record.p95_us,
                    p99_us: record.p99_us,
                    cpu_percent: record.cpu_percent,
                    cycles_per_query: record.cycles_per_query,
                    instructions_per_query: record.instructions_per_query,
                    ..Figures::default()
                },
                counters: counters?,
            })
        })
        .collect()
}

impl ReferenceTable {
    /// Returns the evaluation of IRQ suspension with memcached: 11 modes at 6 loads.
    pub fn memcached() -> Self {
        Self {
            title: "IRQ suspension, memcached (Linux 6.13 series)",
            about: "memcached 1.6.29 under mutilate, 8 RX queues, one 64-core EPYC 7662, ConnectX-5 Ex 100 Gbit/s.\n\
                    At least 10 runs a row: latency is the median of runs, throughput and CPU the mean.\n\
                    Cycles and instructions per query in this table were divided by three times the number of queries: \
                    compare ratios only.",
            rows: parse(include_str!("../../../data/reference/irq-suspension-memcached.csv"))
                .expect("the shipped file is valid"),
        }
    }

    /// Returns the first published raw runs of the same study, with counters.
    pub fn counters() -> Self {
        Self {
            title: "IRQ suspension, memcached, raw runs with counters (Linux 6.11-rc3)",
            about: "The same study's first raw runs, averaged: 4,480 connections, 3 % sets, sizes of the ETC mix.\n\
                    Latencies are means of runs; counters were collected under tracing.\n\
                    Cycles and instructions per query are the physical ones.",
            rows: parse(include_str!("../../../data/reference/irq-suspension-counters.csv"))
                .expect("the shipped file is valid"),
        }
    }

    /// Returns the row of a mode at a load.
    pub fn find(&self, mode: Mode, load: Load) -> Option<&ReferenceRow> {
        self.rows.iter().find(|row| row.mode == mode && row.load == load)
    }

    /// Returns the loads of the table in ascending order.
    pub fn loads(&self) -> Vec<Load> {
        let mut loads: Vec<Load> = self.rows.iter().map(|row| row.load).collect();
        loads.sort_unstable();
        loads.dedup();
        loads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(table: &ReferenceTable, mode: &str, load: &str) -> ReferenceRow {
        *table.find(mode.parse().expect(mode), load.parse().expect(load)).expect("published")
    }

    #[test]
    fn the_memcached_table_is_parsed() {
        let table = ReferenceTable::memcached();
        assert_eq!((table.rows.len(), table.loads().len()), (66, 6));
        let row = find(&table, "suspend20", "800k");
        assert_eq!((row.figures.avg_us, row.figures.p99_us), (Some(90.0), Some(290.0)));
        assert_eq!((row.figures.cpu_percent, row.figures.p50_us), (Some(78.0), None));
        assert_eq!((row.figures.cycles_per_query, row.runs), (Some(8765.0), None));
        assert_eq!(find(&table, "fullbusy", "max").figures.qps, Some(1_236_608.0));
    }

    #[test]
    fn the_counters_table_is_parsed() {
        let table = ReferenceTable::counters();
        assert_eq!((table.rows.len(), table.loads().len()), (66, 6));
        let row = find(&table, "suspend20", "200k");
        assert_eq!((row.figures.p50_us, row.runs, row.figures.cycles_per_query), (Some(52.0), Some(10), Some(45509.0)));
        assert_eq!((row.counters.napi_polls_per_query, row.counters.events_per_epoll_wait), (Some(4.755), Some(1.28)));
        assert_eq!(find(&table, "defer10", "200k").counters.packets_per_poll, None);
        assert_eq!(find(&table, "base", "max").counters.events_per_epoll_wait, Some(500.81));
    }

    #[test]
    fn other_files_are_refused() {
        assert!(matches!(parse("mode,load,qps\nturbo,20k,1\n"), Err(ReferenceError::Mode { row: 1, .. })));
        assert!(matches!(parse("mode,load,qps\nbase,fast,1\n"), Err(ReferenceError::Csv(_))));
        assert!(matches!(parse("mode,qps\nbase,1\n"), Err(ReferenceError::Csv(_))));
    }
}
