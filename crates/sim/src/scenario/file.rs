//! A user's scenario, as a TOML file.

use abey_delivery::{Mode, ModeSettings, Nanos};
use serde::Deserialize;

use super::parse::{arrivals, delay, load, modes, size, span};
use super::{Arrivals, CONNECTIONS_PER_QUEUE, Load, NicSettings, Responder, Scenario, Sizes};
use crate::distribution::{Delay, Size};
use crate::input::{InputError, read};
use crate::profile::Profile;

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
    /// Requests that a connection has outstanding at most; with more than 1 they are answered in order. 1 unless given.
    #[serde(default = "one")]
    outstanding: u32,
    /// How the requests of an open loop follow each other: `"poisson"` (unless given), `"constant"`, `{ bursts = 8 }` (so
    /// many at one time) or `{ cv = 2.0 }` (lognormal gaps: standard deviation over mean).
    #[serde(default, deserialize_with = "arrivals")]
    arrivals: Arrivals,
    /// From an answer to the next request of a closed loop (`load = "max"`), written as `service`; no time unless given.
    #[serde(default, deserialize_with = "delay")]
    think: Option<Delay>,
    /// The processor time that the application takes for a request when nothing disturbs it; the profile's
    /// `server.request` unless given.
    ///
    /// A duration (`"8us"`: always that), or a table: `{ mean = "8us", distribution = "exponential" }`,
    /// `{ mean = "8us", distribution = "lognormal", cv = 1.5 }` (standard deviation over mean), or
    /// `{ median = "80us", p99 = "400us" }` (lognormal).
    #[serde(default, deserialize_with = "delay")]
    service: Option<Delay>,
    /// Time between the service of a request and its answer that takes no processor, such as an SSD's; written as
    /// `service`. None unless given.
    #[serde(default, deserialize_with = "delay")]
    device: Option<Delay>,
    /// How large messages are; one packet of the profile's bytes each unless given.
    sizes: Option<SizesTable>,
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
    /// Settings of the NIC that differ from the profile's.
    #[serde(default)]
    nic: NicSettings,
    /// Who answers: `"event-loop"` (unless given), `"receive"` (a thread per queue that blocks in a receive, as a datagram
    /// server does) or `"stack"` (the network stack itself, as it answers pings).
    #[serde(default)]
    server: Responder,
    /// The file's name, for messages.
    #[serde(skip)]
    name: String,
    /// What is in it.
    #[serde(skip)]
    text: String,
}

/// `[sizes]`: bytes without headers.
///
/// A number (`request = 5000`: always that), or a table: `{ min = 100, max = 300 }` (uniform),
/// `{ median = 1000, p99 = 20000 }` or `{ median = 1000, sigma = 0.8 }` (lognormal), or a list of sizes with weights,
/// `[[100, 9], [5000, 1]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SizesTable {
    #[serde(deserialize_with = "size")]
    request: Size,
    #[serde(deserialize_with = "size")]
    response: Size,
}

impl ScenarioFile {
    /// Reads a scenario from its text; `name` is for messages.
    ///
    /// # Errors
    /// If it has keys or values that are not allowed; the message has the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, InputError> {
        let file: Self = toml::from_str(text).map_err(|error| InputError::parse(name, text, &error))?;
        Ok(Self { name: name.to_owned(), text: text.to_owned(), ..file })
    }

    /// Reads a scenario from a file.
    ///
    /// # Errors
    /// As [`Self::parse`], and if the file cannot be read.
    pub fn load(path: &std::path::Path) -> Result<Self, InputError> {
        Self::parse(&path.display().to_string(), &read(path)?)
    }

    /// The profile that it names.
    ///
    /// # Errors
    /// As [`Profile::load`]; the message has the line, if the profile was named in the file.
    pub fn load_profile(&self) -> Result<Profile, InputError> {
        Profile::load(&self.profile).map_err(|error| match error {
            InputError::Unknown(_) | InputError::Read { .. } => error.at(&self.name, &self.text),
            _ => error,
        })
    }

    /// Checks that all its scenarios can be.
    ///
    /// # Errors
    /// The first thing that cannot; the message has the line.
    pub fn validate(&self, profile: &Profile) -> Result<(), InputError> {
        let mut scenarios = self.scenarios().into_iter();
        scenarios.try_for_each(|scenario| scenario.validate(profile)).map_err(|error| error.at(&self.name, &self.text))
    }

    /// One scenario for each mode.
    pub fn scenarios(&self) -> Vec<Scenario> {
        self.modes.iter().map(|mode| self.scenario(*mode, mode.settings())).collect()
    }

    /// The scenario under these settings; `mode` is for messages and tables.
    fn scenario(&self, mode: Mode, settings: ModeSettings) -> Scenario {
        Scenario {
            settings,
            responder: self.server,
            nic: self.nic,
            queues: self.queues,
            connections: self.connections.unwrap_or(self.queues.saturating_mul(CONNECTIONS_PER_QUEUE)),
            outstanding: self.outstanding,
            arrivals: self.arrivals,
            think: self.think,
            service: self.service,
            device: self.device,
            sizes: self.sizes.clone().map(|sizes| Sizes { request: sizes.request, response: sizes.response }),
            warmup: self.warmup,
            duration: self.duration,
            seed: self.seed,
            linux: self.linux,
            ..Scenario::new(mode, self.load)
        }
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
