//! The one document a bench writes as JSON: its rows, and all that is needed to judge and repeat them.

use serde::{Deserialize, Serialize};

use crate::{Machine, Pair, Row, World};

/// What `abey bench --json` prints and the report is made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// One row for each world, mode and load, in the order of the table.
    pub rows: Vec<Row>,
    /// What the other worlds' figures are to the kernel's, where the worlds can be compared ([`Setup::side_by_side`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<Pair>,
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
    /// What was measured in each world, in the order of the table.
    pub beds: Vec<BedSetup>,
    /// Whether the worlds had one server and one wire, with one client unless their beds say otherwise, so that they can be
    /// compared.
    #[serde(default)]
    pub side_by_side: bool,
    /// The load that was put on each server: "GET, 20 connections, Poisson arrivals".
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

/// Server, client and wire of one world. They differ between worlds, so that figures can be compared within one only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BedSetup {
    /// The world.
    pub world: World,
    /// The server that was measured: "memcached 1.6.18, 1 thread, on CPU 1".
    pub server: String,
    /// How the load reaches it: "over the kernel's sockets, from CPU 0".
    pub client: String,
    /// The NIC or test network between them: "veth pair, GRO on, TSO off".
    pub wire: String,
}

impl Setup {
    /// What was measured in a world.
    pub fn bed(&self, world: World) -> Option<&BedSetup> {
        self.beds.iter().find(|bed| bed.world == world)
    }

    /// The servers, each once.
    pub fn servers(&self) -> String {
        let mut servers: Vec<&str> = self.beds.iter().map(|bed| bed.server.as_str()).collect();
        servers.dedup();
        servers.join(" and ")
    }
}
