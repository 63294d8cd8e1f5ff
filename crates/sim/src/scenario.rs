//! Scenarios: who sends what to whom, under which mode.

use abey_delivery::{Mode, ModeSettings, Nanos};
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::profile::{InputError, Profile};

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Open loop: a Poisson process of this many requests per second over all connections.
    Open(f64),
    /// Closed loop: every connection sends its next request when it has the answer.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Responder {
    /// An event-loop server thread per queue.
    #[default]
    EventLoop,
    /// The network stack itself, as it answers pings.
    Stack,
    /// Two equal hosts, queue 0 and queue 1, whose threads block in a receive and then send to the other (netperf's round
    /// trips). The figures are of both; an answer is a round trip.
    RoundTrip,
}

/// The study's connections per queue.
const CONNECTIONS_PER_QUEUE: u32 = 560;

/// One run: a server with `queues` receive queues, each with its interrupt, its CPU and its event-loop thread.
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
    /// Receive queues; queue *n* interrupts CPU *n*, and thread *n* serves the connections that arrive on it.
    pub queues: u32,
    /// Connections, spread over the queues by hashing; each has one request outstanding at most.
    pub connections: u32,
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
            connections: CONNECTIONS_PER_QUEUE,
            warmup: Nanos::from_millis(50),
            duration: Nanos::from_millis(500),
            seed: 1,
            linux: false,
            check: false,
        }
    }

    /// Checks that the scenario can be.
    ///
    /// # Errors
    /// The first thing that cannot.
    pub fn validate(&self, profile: &Profile) -> Result<(), InputError> {
        let wrong = |key, value: String, allowed| Err(InputError::Value { key, value, allowed });
        if self.queues == 0 || self.queues > 1_024 {
            return wrong("queues", self.queues.to_string(), "a server has 1 to 1024 queues");
        }
        if self.connections == 0 || self.connections > 10_000_000 {
            return wrong("connections", self.connections.to_string(), "clients open 1 to 10000000 connections");
        }
        if self.settings.socket_busy_poll.is_some() && self.responder != Responder::RoundTrip {
            let allowed = "an event loop does not block in a receive: choose napibusy or fullbusy, or round trips";
            return wrong("modes", self.mode.to_string(), allowed);
        }
        if let Some(epoll) = self.settings.epoll {
            epoll.validate()?;
        }
        if self.responder == Responder::RoundTrip && self.queues != 2 {
            return wrong("queues", self.queues.to_string(), "a round trip between two hosts has two queues");
        }
        if self.duration.is_zero() {
            return wrong("duration", self.duration.to_string(), "measure for longer than nothing");
        }
        if let Load::Open(rate) = self.load {
            let bytes = profile.client.request_bytes.max(profile.client.response_bytes).max(1);
            let wire = profile.nic.wire_mbits_per_s as f64 * 1e6 / (bytes as f64 * 8.0);
            if !(rate.is_finite() && rate > 0.0) {
                return wrong("load", rate.to_string(), "a rate is above 0 requests per second");
            }
            if rate > wire {
                return wrong(
                    "load",
                    rate.to_string(),
                    "the wire does not carry so many requests or answers per second",
                );
            }
        }
        Ok(())
    }
}

/// A user's scenario, as a TOML file: one run, or one for each of several modes.
///
/// ```
/// let text = r#"
///     profile = "epyc-7662"
///     modes = ["base", "suspend20"]
///     load = "400k"
///     duration = "50ms"
/// "#;
/// let file = abey_sim::ScenarioFile::parse("scenario", text)?;
/// assert_eq!(file.scenarios().len(), 2);
/// # Ok::<(), abey_sim::InputError>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// A shipped profile, or the path of one.
    #[serde(default = "default_profile")]
    pub profile: String,
    /// The delivery modes to run.
    #[serde(deserialize_with = "modes")]
    modes: Vec<Mode>,
    /// Requests per second (`400k`), or `max`: a closed loop.
    #[serde(deserialize_with = "load")]
    load: Load,
    /// Receive queues, each with its CPU and its server thread; 1 unless given.
    #[serde(default = "one")]
    queues: u32,
    /// Connections; 560 a queue unless given.
    connections: Option<u32>,
    /// Before counting starts; 50 ms unless given.
    #[serde(default = "default_warmup", deserialize_with = "span")]
    warmup: Nanos,
    /// How long to count; 500 ms unless given.
    #[serde(default = "default_duration", deserialize_with = "span")]
    duration: Nanos,
    /// 1 unless given.
    #[serde(default = "default_seed")]
    seed: u64,
    /// Delivery exactly as in Linux; the core's own way unless given.
    #[serde(default)]
    linux: bool,
}

impl ScenarioFile {
    /// Reads a scenario from its text; `name` is for messages.
    ///
    /// # Errors
    /// If it has keys or values that are not allowed; the message has the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, InputError> {
        toml::from_str(text).map_err(|source| InputError::Parse { name: name.to_owned(), source: Box::new(source) })
    }

    /// Reads a scenario from a file.
    ///
    /// # Errors
    /// As [`Self::parse`], and if the file cannot be read.
    pub fn load(path: &std::path::Path) -> Result<Self, InputError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| InputError::Read { path: path.to_owned(), source })?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// One scenario for each mode.
    pub fn scenarios(&self) -> Vec<Scenario> {
        let scenario = |mode: &Mode| Scenario {
            queues: self.queues,
            connections: self.connections.unwrap_or(self.queues.saturating_mul(CONNECTIONS_PER_QUEUE)),
            warmup: self.warmup,
            duration: self.duration,
            seed: self.seed,
            linux: self.linux,
            ..Scenario::new(*mode, self.load)
        };
        self.modes.iter().map(scenario).collect()
    }
}

fn default_profile() -> String {
    "epyc-7662".to_owned()
}

const fn one() -> u32 {
    1
}

const fn default_seed() -> u64 {
    1
}

const fn default_warmup() -> Nanos {
    Nanos::from_millis(50)
}

const fn default_duration() -> Nanos {
    Nanos::from_millis(500)
}

fn modes<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Mode>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    if names.is_empty() {
        return Err(D::Error::custom("name at least one mode, such as [\"base\", \"suspend20\"]"));
    }
    names.iter().map(|name| name.parse().map_err(D::Error::custom)).collect()
}

fn span<'de, D: Deserializer<'de>>(from: D) -> Result<Nanos, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn load<'de, D: Deserializer<'de>>(from: D) -> Result<Load, D::Error> {
    let text = String::deserialize(from)?;
    parse_load(&text).ok_or_else(|| {
        D::Error::custom(format!(
            "`{text}` is no load: write a rate such as 500, 50k or 1.2M (requests per second), or max"
        ))
    })
}

fn parse_load(text: &str) -> Option<Load> {
    if text.eq_ignore_ascii_case("max") {
        return Some(Load::Closed);
    }
    let (number, scale) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1e3),
        b'M' => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let rate = number.parse::<f64>().ok().filter(|_| plain)? * scale;
    (rate > 0.0).then_some(Load::Open(rate))
}
