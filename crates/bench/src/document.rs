//! The JSON document of a bench: its rows, and what a reader needs to judge and repeat them.

use serde::{Deserialize, Serialize};

use crate::{BenchError, BenchRow, Conditions, Machine, RatioRow, Run, Suite, World, ratios, stats};

/// The document that `abey bench --json` prints and the report shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// One row for each world, mode and load, in the order of the table.
    pub rows: Vec<BenchRow>,
    /// Ratios of the other worlds' figures to the kernel's, if the worlds can be compared ([`Setup::side_by_side`]).
    #[serde(rename = "pairs", default, skip_serializing_if = "Vec::is_empty")]
    pub ratios: Vec<RatioRow>,
    /// The machine.
    pub machine: Machine,
    /// The seed of the order of runs.
    pub seed: u64,
    /// The setup.
    pub setup: Setup,
    /// The build profile of `abey`: `release`, `dist` or `debug`.
    #[serde(default)]
    pub profile: String,
    /// Notes on the whole bench, such as a mode that was left out.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// The build profile of this crate, and so of the `abey` command: `release`, `dist` or `debug`.
pub const BUILD_PROFILE: &str = env!("ABEY_BUILD_PROFILE");

/// Facts of a bench that are not measured.
#[derive(Clone, Debug)]
pub struct BenchFacts {
    /// The command line.
    pub command: String,
    /// The date, as shown in the report.
    pub date: String,
    /// A name of the request, such as "GET".
    pub request: &'static str,
    /// Whether the worlds can be compared.
    pub side_by_side: bool,
    /// Notes on the whole bench.
    pub notes: Vec<String>,
}

impl Document {
    /// Creates the document of measured runs.
    ///
    /// # Errors
    /// [`BenchError::Count`] if the server's CPU has gone offline.
    pub fn new(facts: BenchFacts, conditions: &Conditions, suites: &[Suite], runs: &[Run]) -> Result<Self, BenchError> {
        let mut hardware_counters = false;
        for suite in suites {
            hardware_counters |= suite.test_bed().counts_cycles()?;
        }
        let rows = stats::aggregate(runs);
        let connections = conditions.connections;
        Ok(Self {
            ratios: if facts.side_by_side { ratios::ratio_rows(&rows) } else { Vec::new() },
            rows,
            machine: Machine::read(hardware_counters, &facts.date),
            seed: conditions.seed,
            setup: Setup {
                command: facts.command,
                test_beds: suites.iter().map(|suite| suite.test_bed().setup().clone()).collect(),
                side_by_side: facts.side_by_side,
                load: format!(
                    "{}, {connections} connections, Poisson arrivals in an open loop; `max` is a closed loop",
                    facts.request
                ),
                run_ms: conditions.duration.as_millis() as u64,
                warmup_ms: conditions.warmup.as_millis() as u64,
                repetitions: conditions.repetitions,
                abey_version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            profile: BUILD_PROFILE.to_owned(),
            notes: facts.notes,
        })
    }
}

/// The setup of a bench.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The command line.
    pub command: String,
    /// The test beds, in the order of the table.
    #[serde(rename = "beds")]
    pub test_beds: Vec<TestBedSetup>,
    /// Whether the worlds can be compared: they ran the same server over the same wire.
    #[serde(default)]
    pub side_by_side: bool,
    /// The load, such as "GET, 20 connections, Poisson arrivals".
    pub load: String,
    /// Measured time of one run in milliseconds, without warm-up.
    pub run_ms: u64,
    /// Warm-up before each run in milliseconds.
    pub warmup_ms: u64,
    /// Runs of each mode at each load.
    pub repetitions: u32,
    /// Version of Abey.
    pub abey_version: String,
}

/// Server, client and wire of one world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestBedSetup {
    /// The world.
    pub world: World,
    /// The server, such as "memcached 1.6.18, 1 thread, on CPU 1".
    pub server: String,
    /// The client, such as "over the kernel's sockets, from CPU 0".
    pub client: String,
    /// The NIC or network between them, such as "veth pair, GRO on, TSO off".
    pub wire: String,
}

impl Setup {
    /// Returns the test bed of a world.
    pub fn test_bed(&self, world: World) -> Option<&TestBedSetup> {
        self.test_beds.iter().find(|test_bed| test_bed.world == world)
    }

    /// Returns the servers of all worlds, each once.
    pub fn servers(&self) -> String {
        let mut servers: Vec<&str> = self.test_beds.iter().map(|test_bed| test_bed.server.as_str()).collect();
        servers.dedup();
        servers.join(" and ")
    }
}
