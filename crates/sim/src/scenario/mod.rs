//! Scenarios: who sends what to whom, under which mode.

use std::borrow::Cow;

use abey_delivery::{Mode, ModeSettings, Nanos};
use serde::Deserialize;

use crate::distribution::{Delay, Size};
use crate::profile::Profile;
use crate::topology::Topology;

mod file;
mod parse;
mod validate;

pub use file::ScenarioFile;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Open loop: this many requests per second over all connections, following each other as [`Arrivals`] says.
    Open(f64),
    /// Closed loop: every connection sends its next request when it has the answer, and has thought.
    Closed,
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open(rate) => f.pad(&format!("{rate}")),
            Self::Closed => f.pad("max"),
        }
    }
}

/// Who answers requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Responder {
    /// An event-loop server thread per queue.
    #[default]
    EventLoop,
    /// The network stack itself, as it answers pings.
    Stack,
    /// A server thread per queue that blocks in a receive on one socket, answers, and receives again (a datagram server).
    /// Nothing acknowledges its answers.
    Receive,
    /// Two equal hosts, queue 0 and queue 1, whose threads block in a receive and then send to the other (netperf's round
    /// trips). The figures are of both; an answer is a round trip.
    #[serde(skip)]
    RoundTrip,
}

/// The study's connections per queue.
const CONNECTIONS_PER_QUEUE: u32 = 560;

/// How the requests of an open loop follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Arrivals {
    /// A Poisson process: independent requests.
    #[default]
    Poisson,
    /// All gaps are the same.
    Constant,
    /// So many requests at one time, on connections chosen at random; the bursts are a Poisson process.
    Bursts(u32),
    /// Lognormal gaps with this coefficient of variation (standard deviation over mean).
    Lognormal {
        /// The coefficient of variation.
        cv: f64,
    },
}

/// Settings of the NIC that differ from the profile's. `[nic]` in a scenario file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSettings {
    /// Moderation adapts itself to the traffic.
    pub adaptive: Option<bool>,
    /// An interrupt waits this long, in microseconds (0: not at all).
    pub rx_usecs: Option<u64>,
    /// An interrupt comes at once after this many packets.
    pub rx_frames: Option<u32>,
    /// Size of a receive ring, in packets.
    pub ring_packets: Option<u32>,
}

impl NicSettings {
    /// The host with these settings.
    pub(crate) fn apply<'a>(&self, profile: &'a Profile) -> Cow<'a, Profile> {
        if *self == Self::default() {
            return Cow::Borrowed(profile);
        }
        let mut host = profile.clone();
        let nic = &mut host.nic;
        nic.adaptive = self.adaptive.unwrap_or(nic.adaptive);
        nic.rx_usecs = self.rx_usecs.unwrap_or(nic.rx_usecs);
        nic.rx_frames = self.rx_frames.unwrap_or(nic.rx_frames);
        nic.ring_packets = self.ring_packets.map_or(nic.ring_packets, |packets| packets as usize);
        Cow::Owned(host)
    }
}

/// How large messages are, in bytes without headers.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Requests.
    pub request: Size,
    /// Answers.
    pub response: Size,
}

/// One run: a server with `queues` receive queues, and the CPUs and event-loop threads of its topology.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The delivery mode; for messages and tables, what counts are the settings.
    pub mode: Mode,
    /// What the queues, the epoll contexts and the event loops are set to.
    pub settings: ModeSettings,
    /// How requests come.
    pub load: Load,
    /// Who answers them.
    pub responder: Responder,
    /// Receive queues.
    pub queues: u32,
    /// CPUs and server threads; by default one of each for each queue.
    pub topology: Topology,
    /// Connections, spread over the queues by hashing.
    pub connections: u32,
    /// Requests that a connection has outstanding at most; with more than 1 they are answered in order (pipelining).
    pub outstanding: u32,
    /// How the requests of an open loop follow each other.
    pub arrivals: Arrivals,
    /// From an answer to the next request of a closed loop; no time unless given.
    pub think: Option<Delay>,
    /// The processor time that the application takes for a request when nothing disturbs it; the profile's `server.request`
    /// unless given.
    pub service: Option<Delay>,
    /// Time between the service of a request and its answer that takes no processor: a device such as an SSD. None unless
    /// given.
    pub device: Option<Delay>,
    /// How large requests and answers are. Unless given they are one packet each, of the profile's bytes, whose time on the
    /// wire is part of the profile's `client.base_ns`; they wait for the wire only if it is more than a microsecond behind.
    pub sizes: Option<Sizes>,
    /// Settings of the NIC that differ from the profile's.
    pub nic: NicSettings,
    /// How long to simulate before counting.
    pub warmup: Nanos,
    /// How long to count.
    pub duration: Nanos,
    /// The same seed gives the same bytes.
    pub seed: u64,
    /// Delivery exactly as in Linux, rather than as the core does it by default.
    pub linux: bool,
    /// Check the core's invariants around every event.
    pub check: bool,
}

impl Scenario {
    /// One queue, 560 connections, half a second after a warm-up of 50 ms, seed 1, delivery as the core does it.
    pub fn new(mode: Mode, load: Load) -> Self {
        Self {
            mode,
            settings: mode.settings(),
            load,
            responder: Responder::EventLoop,
            queues: 1,
            topology: Topology::default(),
            connections: CONNECTIONS_PER_QUEUE,
            outstanding: 1,
            arrivals: Arrivals::Poisson,
            think: None,
            service: None,
            device: None,
            sizes: None,
            nic: NicSettings::default(),
            warmup: Nanos::from_millis(50),
            duration: Nanos::from_millis(500),
            seed: 1,
            linux: false,
            check: false,
        }
    }
}
