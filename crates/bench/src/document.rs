//! The one document a bench writes as JSON: its rows, and all that is needed to judge and repeat them.

use serde::{Deserialize, Serialize};

use crate::{Machine, Row};

/// What `abey bench --json` prints and the report is made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// One row for each world, mode and load, in the order of the table.
    pub rows: Vec<Row>,
    /// The machine it ran on.
    pub machine: Machine,
    /// The seed of the order in which the runs were interleaved.
    pub seed: u64,
    /// How it was measured.
    pub setup: Setup,
    /// What a reader has to know about the whole bench: a mode that was refused, a built-in server used instead.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// How a bench was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The exact command line.
    pub command: String,
    /// The server that was measured: "memcached 1.6.18, 1 thread, on CPU 1".
    pub server: String,
    /// The load that was put on it: "GET, 20 connections, Poisson arrivals, from CPU 0".
    pub client: String,
    /// Measured time of one run in milliseconds, without warm-up.
    pub run_ms: u64,
    /// Warm-up before each run in milliseconds.
    pub warmup_ms: u64,
    /// Runs of each mode at each load.
    pub repetitions: u32,
    /// Version of Abey.
    pub abey_version: String,
}
