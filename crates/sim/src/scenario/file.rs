//! Scenario files in TOML.

use std::path::Path;

use abey_config::{FileError, SettingsFile, read_text};
use abey_delivery::{Mode, ModeSettings, Nanos};
use serde::Deserialize;

use super::parse::{arrivals, delay, load, modes, size, span};
use super::{Arrivals, CONNECTIONS_PER_QUEUE, Load, NicSettings, Responder, Scenario, Sizes};
use crate::distribution::{Delay, Size};
use crate::input::InputError;
use crate::plan::nearest_mode;
use crate::profile::Profile;
use crate::topology::Topology;

/// A user's scenario, as a TOML file: one run, or one for each of several modes.
///
/// ```
/// let text = r#"
///     profile = "epyc-7662"
///     modes = ["base", "suspend20"]
///     load = "400k"
///     service = { mean = "8us", distribution = "exponential" }
///     duration = "50ms"
///
///     [sizes]
///     request = 100
///     response = [[200, 9], [5000, 1]]
/// "#;
/// let file = abey_sim::ScenarioFile::parse("scenario", text)?;
/// file.validate(&file.load_profile()?)?;
/// assert_eq!(file.scenarios().len(), 2);
/// # Ok::<(), abey_sim::InputError>(())
/// ```
///
/// # Keys
/// Durations have a unit (`"20us"`, `"1.5ms"`, `"2s"`), sizes are bytes without headers. Unknown keys are refused.
///
/// | key | unless given | what it is |
/// | --- | --- | --- |
/// | `profile` | `"epyc-7662"` | a shipped host profile, or the path of one |
/// | `modes` | required, or `settings` | delivery modes to run: `["base", "suspend20"]` |
/// | `settings` | none | a settings file to run after the modes; a relative path starts where the scenario is |
/// | `load` | required | requests per second over all connections (`"400k"`), or `"max"`: a closed loop |
/// | `server` | `"event-loop"` | what answers: an event loop per queue; `"receive"`: a thread per queue that blocks in a receive, as a datagram server does; `"stack"`: the network stack itself, as it answers pings |
/// | `queues` | 1 | receive queues |
/// | `cpus` | as many as queues | CPUs |
/// | `hyperthreads` | `false` | CPU *n* and CPU *n* + half their number are one core, and the scheduler prefers cores that are completely idle |
/// | `threads` | as many as queues | server threads; thread *n* begins on CPU *n*, modulo their number |
/// | `irq_cpus` | `[0, 1, ...]` | the CPU that each queue interrupts |
/// | `pinned` | `true` | whether threads stay on their CPUs |
/// | `pollers_pinned` | as `pinned` | whether NAPI threads stay where their queues interrupt, and the pool's workers on theirs |
/// | `by_queue` | with as many threads as queues | whether a connection belongs to a thread of its queue; otherwise connections are assigned to the threads in turn, and a thread has sockets on several queues |
/// | `connections` | 560 a queue | connections, spread over the queues by hashing |
/// | `outstanding` | 1 | requests that a connection has outstanding at most; with more they are answered in order |
/// | `arrivals` | `"poisson"` | how the requests of an open loop follow each other: also `"constant"`, `{ bursts = 8 }` (that many at a time), `{ cv = 2.0 }` (lognormal gaps: standard deviation over mean) |
/// | `think` | none | a distribution: from an answer to the next request of a closed loop |
/// | `service` | the profile's `server.request` | a distribution: processor time that the application takes for a request when nothing disturbs it |
/// | `device` | none | a distribution: time between the service of a request and its answer that takes no processor, such as an SSD's |
/// | `sizes.request`, `sizes.response` | one packet of the profile's bytes | sizes of the messages; both or none |
/// | `nic.adaptive` | the profile's | whether moderation adapts itself to the traffic |
/// | `nic.rx_usecs` | the profile's | how long an interrupt waits, in microseconds; needs `adaptive = false` |
/// | `nic.rx_frames` | the profile's | after how many packets it comes at once; needs `adaptive = false` |
/// | `nic.ring_packets` | the profile's | size of a receive ring |
/// | `warmup` | `"50ms"` | how long to simulate before counting |
/// | `duration` | `"500ms"` | how long to count |
/// | `seed` | 1 | the same seed gives the same bytes |
/// | `linux` | `false` | delivery exactly as in Linux, rather than as the core does it |
///
/// A distribution of durations is `"8us"` (always that), `{ mean = "8us", distribution = "exponential" }`,
/// `{ mean = "8us", distribution = "lognormal", cv = 1.5 }` (standard deviation over mean), or
/// `{ median = "80us", p99 = "400us" }` (lognormal).
///
/// A distribution of sizes is `5000` (always that), `{ min = 100, max = 300 }` (uniform),
/// `{ median = 1000, p99 = 20000 }` or `{ median = 1000, sigma = 0.8 }` (lognormal; sigma is the standard deviation of the
/// logarithm), or a list of sizes with weights, `[[100, 9], [5000, 1]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// Name of a shipped profile, or path of a profile.
    #[serde(default = "default_profile")]
    pub profile: String,
    #[serde(default, deserialize_with = "modes")]
    modes: Vec<Mode>,
    /// Path of a settings file to run.
    pub settings: Option<String>,
    #[serde(skip)]
    settings_file: Option<SettingsFile>,
    #[serde(deserialize_with = "load")]
    load: Load,
    #[serde(default)]
    server: Responder,
    #[serde(default = "one")]
    queues: u32,
    cpus: Option<u32>,
    #[serde(default)]
    hyperthreads: bool,
    threads: Option<u32>,
    irq_cpus: Option<Vec<u32>>,
    #[serde(default = "yes")]
    pinned: bool,
    pollers_pinned: Option<bool>,
    by_queue: Option<bool>,
    connections: Option<u32>,
    #[serde(default = "one")]
    outstanding: u32,
    #[serde(default, deserialize_with = "arrivals")]
    arrivals: Arrivals,
    #[serde(default, deserialize_with = "delay")]
    think: Option<Delay>,
    #[serde(default, deserialize_with = "delay")]
    service: Option<Delay>,
    #[serde(default, deserialize_with = "delay")]
    device: Option<Delay>,
    sizes: Option<SizesTable>,
    #[serde(default)]
    nic: NicSettings,
    #[serde(default = "default_warmup", deserialize_with = "span")]
    warmup: Nanos,
    #[serde(default = "default_duration", deserialize_with = "span")]
    duration: Nanos,
    #[serde(default = "default_seed")]
    seed: u64,
    #[serde(default)]
    linux: bool,
    /// File name for error messages.
    #[serde(skip)]
    name: String,
    /// Parsed settings file.
    #[serde(skip)]
    text: String,
}

/// `[sizes]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SizesTable {
    #[serde(deserialize_with = "size")]
    request: Size,
    #[serde(deserialize_with = "size")]
    response: Size,
}

impl ScenarioFile {
    /// Parses a scenario. `name` is used in error messages, and relative paths start at its directory.
    ///
    /// # Errors
    /// If it has keys or values that are not allowed; the message names the line.
    pub fn parse(name: &str, text: &str) -> Result<Self, InputError> {
        let mut file: Self = toml::from_str(text).map_err(|error| FileError::toml(name, text, &error))?;
        if let Some(path) = &file.settings {
            file.settings_file = Some(SettingsFile::load(&Path::new(name).with_file_name(path))?);
        } else if file.modes.is_empty() {
            let allowed = "name at least one mode, such as [\"base\", \"suspend20\"], or a settings file";
            return Err(InputError::Value { key: "modes", value: "[]".to_owned(), allowed }.at(name, text));
        }
        Ok(Self { name: name.to_owned(), text: text.to_owned(), ..file })
    }

    /// Reads a scenario from a file.
    ///
    /// # Errors
    /// As [`Self::parse`], and if the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, InputError> {
        Self::parse(&path.display().to_string(), &read_text(path)?)
    }

    /// Loads the scenario's profile.
    ///
    /// # Errors
    /// As [`Profile::load`]; the message names the line if the file names the profile.
    pub fn load_profile(&self) -> Result<Profile, InputError> {
        Profile::load(&self.profile).map_err(|error| match error {
            InputError::Unknown(_) | InputError::File(FileError::Read { .. }) => error.at(&self.name, &self.text),
            _ => error,
        })
    }

    /// Checks all scenarios of the file.
    ///
    /// # Errors
    /// The first invalid value; the message names the line.
    pub fn validate(&self, profile: &Profile) -> Result<(), InputError> {
        let mut scenarios = self.scenarios().into_iter();
        scenarios.try_for_each(|scenario| scenario.validate(profile)).map_err(|error| error.at(&self.name, &self.text))
    }

    /// Returns a scenario for each mode, and one for the settings file.
    pub fn scenarios(&self) -> Vec<Scenario> {
        let of_file = self.settings_file.iter().map(|file| (nearest_mode(&file.settings), file.settings));
        let of_modes = self.modes.iter().map(|mode| (*mode, mode.settings()));
        of_modes.chain(of_file).map(|(mode, settings)| self.scenario(mode, settings)).collect()
    }

    /// Returns the scenario with these settings. `mode` is used in messages and tables.
    fn scenario(&self, mode: Mode, settings: ModeSettings) -> Scenario {
        Scenario {
            settings,
            responder: self.server,
            nic: self.nic,
            queues: self.queues,
            topology: self.topology(),
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

    fn topology(&self) -> Topology {
        Topology {
            cpus: self.cpus,
            hyperthreads: self.hyperthreads,
            threads: self.threads,
            irq_cpus: self.irq_cpus.clone(),
            unpinned: !self.pinned,
            unpinned_pollers: !self.pollers_pinned.unwrap_or(self.pinned),
            by_queue: self.by_queue,
        }
    }
}

fn default_profile() -> String {
    "epyc-7662".to_owned()
}

const fn one() -> u32 {
    1
}

const fn yes() -> bool {
    true
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
