//! Scenarios: load, server, messages and delivery mode of a run.

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

/// Load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Open loop with this many requests per second over all connections, distributed as [`Arrivals`] defines.
    Open(f64),
    /// Closed loop: every connection sends its next request after the answer and the think time.
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

/// Part of the host that answers requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Responder {
    /// Event-loop server thread per queue.
    #[default]
    EventLoop,
    /// Network stack, as for pings.
    Stack,
    /// Server thread per queue that blocks in a receive on one socket and answers (a datagram server). Its answers
    /// are not acknowledged.
    Receive,
    /// Two equal hosts, queue 0 and queue 1, whose threads block in a receive and then send to the other (netperf's
    /// round trips). The figures include both hosts, and an answer is a round trip.
    #[serde(skip)]
    RoundTrip,
}

/// The study's connections per queue.
const CONNECTIONS_PER_QUEUE: u32 = 560;

/// Arrival process of an open loop.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Arrivals {
    /// Poisson process: independent requests.
    #[default]
    Poisson,
    /// Constant intervals.
    Constant,
    /// Poisson process of bursts of this many simultaneous requests on random connections.
    Bursts(u32),
    /// Lognormal intervals with this coefficient of variation (standard deviation divided by the mean).
    Lognormal {
        /// Coefficient of variation.
        cv: f64,
    },
}

/// NIC settings that differ from the profile's, `[nic]` in a scenario file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicSettings {
    /// Whether moderation adapts to the traffic.
    pub adaptive: Option<bool>,
    /// Maximum delay of an interrupt in microseconds; 0 disables it.
    pub rx_usecs: Option<u64>,
    /// Packets after which the NIC interrupts at once.
    pub rx_frames: Option<u32>,
    /// Size of a receive ring in packets.
    pub ring_packets: Option<u32>,
}

impl NicSettings {
    /// Returns the profile with these settings.
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

/// Sizes of messages in bytes without headers.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizes {
    /// Requests.
    pub request: Size,
    /// Answers.
    pub response: Size,
}

/// One run: a server with `queues` receive queues and the CPUs and threads of its topology.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Delivery mode, for messages and tables; only the settings take effect.
    pub mode: Mode,
    /// Settings of the queues, the epoll contexts and the event loops.
    pub settings: ModeSettings,
    /// Load.
    pub load: Load,
    /// Part of the host that answers.
    pub responder: Responder,
    /// Receive queues.
    pub queues: u32,
    /// CPUs and server threads; by default one of each per queue.
    pub topology: Topology,
    /// Connections, spread over the queues by hashing.
    pub connections: u32,
    /// Maximum number of outstanding requests per connection; more than 1 are answered in order (pipelining).
    pub outstanding: u32,
    /// Arrival process of an open loop.
    pub arrivals: Arrivals,
    /// Time from an answer to the next request of a closed loop; none by default.
    pub think: Option<Delay>,
    /// Processor time of a request in the undisturbed application; the profile's `server.request` by default.
    pub service: Option<Delay>,
    /// Time between the service of a request and its answer without the processor, such as that of an SSD; none by
    /// default.
    pub device: Option<Delay>,
    /// Sizes of requests and answers. By default each is one packet with the profile's bytes, whose time on the wire
    /// is part of the profile's `client.base_ns`; they wait for the wire only if it is more than a microsecond
    /// behind.
    pub sizes: Option<Sizes>,
    /// NIC settings that differ from the profile's.
    pub nic: NicSettings,
    /// Simulated time before the measurement.
    pub warmup: Nanos,
    /// Simulated time of the measurement.
    pub duration: Nanos,
    /// Seed; the same seed gives identical results.
    pub seed: u64,
    /// Whether delivery follows Linux exactly rather than the core's defaults.
    pub linux: bool,
    /// Whether to check the core's invariants after every event.
    pub check: bool,
}

impl Scenario {
    /// Creates a scenario with one queue, 560 connections, half a second after a warm-up of 50 ms, seed 1, and the
    /// core's defaults.
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
