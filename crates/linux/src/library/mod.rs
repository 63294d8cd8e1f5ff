//! The contract between `abey run` and `libabey.so`: the environment variables that configure the library, and its path.
//!
//! | variable | value | meaning |
//! | --- | --- | --- |
//! | `ABEY_MODE` | `suspend20` | the mode's name, for messages |
//! | `ABEY_EPOLL` | `0,64,1` | busy-poll microseconds, budget in packets and prefer (0 or 1) of every new epoll instance |
//! | `ABEY_MAX_WAIT` | `1ms` | the longest that one wait in the kernel may block; longer ones are made of several |
//! | `ABEY_SOCKET_BUSY_POLL` | `50us` | `SO_BUSY_POLL` of every new IPv4 and IPv6 socket |
//! | `ABEY_ZERO_TIMEOUT` | `poll` | an epoll wait with timeout 0 polls once, where the kernel's own does not |
//! | `ABEY_STEER` | `queues`, `queues:4` | each connection goes to the `SO_REUSEPORT` listener of its RX queue (of which there are 4) |
//! | `ABEY_DATAPATH` | a JSON document | sockets on the NIC's addresses run over Abey's datapath: see [`DatapathConfig`] |
//! | `ABEY_STRICT` | `1` | end the program with status 3 rather than run it without the settings |
//! | `ABEY_IO_URING` | `1` | the program may have an io_uring, whose work the library does not see |
//! | `ABEY_DISABLE` | `1` | the library does nothing in this process and its children |
//! | `ABEY_SKIP` | `sh,logger` | the library does nothing in programs of these names |
//! | `ABEY_TOLD` | `-------` | which messages the library has printed, so that a process tree prints each once |
//! | `ABEY_CONTROL_DIR` | a path | where a datapath puts its control socket, in place of the user's own directory |
//! | `ABEY_LIBRARY` | a path | where `abey` finds the library; the library itself ignores it |
//!
//! An unset or empty variable has no effect. Any other `ABEY_` variable is a mistake, and is reported.

use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use abey_delivery::{EpollBusyPoll, Mode, ModeSettings, Nanos};

mod datapath;
mod find;

pub use datapath::{BrokerAddress, DatapathConfig};
pub use find::{FILE_NAME, FindError, LIBRARY_VARIABLE, equip, find_library, preload_value};

/// The version of the library that belongs to this crate; the two are released together.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The prefix of every variable.
pub const PREFIX: &str = "ABEY_";

/// The variable in which the library records the messages it has printed: [`NOTHING_PRINTED`] at first.
pub const PRINTED_VARIABLE: &str = "ABEY_TOLD";

/// The first value of [`PRINTED_VARIABLE`], one character for each kind of message.
pub const NOTHING_PRINTED: &str = "--------------";

const MODE: &str = "ABEY_MODE";
const EPOLL: &str = "ABEY_EPOLL";
const MAX_WAIT: &str = "ABEY_MAX_WAIT";
const SOCKET_BUSY_POLL: &str = "ABEY_SOCKET_BUSY_POLL";
const ZERO_TIMEOUT: &str = "ABEY_ZERO_TIMEOUT";
const STEER: &str = "ABEY_STEER";
const DATAPATH: &str = "ABEY_DATAPATH";
const STRICT: &str = "ABEY_STRICT";
const CONTROL_DIRECTORY: &str = "ABEY_CONTROL_DIR";
const IO_URING: &str = "ABEY_IO_URING";
const DISABLE: &str = "ABEY_DISABLE";
const SKIP: &str = "ABEY_SKIP";

const KNOWN: [&str; 14] = [
    MODE,
    EPOLL,
    MAX_WAIT,
    SOCKET_BUSY_POLL,
    ZERO_TIMEOUT,
    STEER,
    DATAPATH,
    STRICT,
    IO_URING,
    DISABLE,
    SKIP,
    PRINTED_VARIABLE,
    CONTROL_DIRECTORY,
    LIBRARY_VARIABLE,
];

/// Queue steering for servers with one `SO_REUSEPORT` listener per worker; see [`crate::steer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Steering {
    /// How many RX queues the device has. If `None`, workers beyond the last queue get no connections.
    pub queues: Option<NonZeroU32>,
}

/// What the library does in a process. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryConfig {
    /// The mode, for messages.
    pub mode: Option<Mode>,
    /// The busy-poll parameters of every new epoll instance.
    pub epoll: Option<EpollBusyPoll>,
    /// The longest that one wait in the kernel may block; not zero.
    pub max_wait: Option<Nanos>,
    /// How long a blocking receive polls its own queue before it sleeps.
    pub socket_busy_poll: Option<Nanos>,
    /// Whether an epoll wait with timeout 0 polls once. In the kernel such a wait neither polls nor resumes interrupts, so a
    /// loop of them starves until the safety timer fires.
    pub poll_on_zero_timeout: bool,
    /// Whether connections go to the listener of their queue.
    pub steering: Option<Steering>,
    /// The datapath for sockets on its addresses.
    pub datapath: Option<DatapathConfig>,
    /// The directory of a datapath's control socket. Read at the start, because a program may clear its environment.
    pub control_directory: Option<PathBuf>,
    /// Whether to end the program rather than run it without these settings.
    pub strict: bool,
    /// Whether the program may have an io_uring, although the library does not see the sockets that it adds and accepts in one.
    pub allows_io_uring: bool,
    /// Whether to do nothing.
    pub disabled: bool,
    /// Names of programs in which to do nothing. They are not empty and contain no comma.
    pub skip: Vec<String>,
}

/// A variable with the prefix of the library's variables that is none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownVariable {
    /// Its name.
    pub name: String,
    /// The known variable with the most similar name.
    pub closest: &'static str,
}

impl std::fmt::Display for UnknownVariable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "there is no variable {}: did you mean {}?", self.name, self.closest)
    }
}

/// Why the environment cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A malformed value.
    #[error("{variable}={value} is not usable: {expected}")]
    Malformed {
        /// The variable.
        variable: &'static str,
        /// Its value, with invalid UTF-8 replaced.
        value: String,
        /// What to write instead.
        expected: String,
    },
    /// A wait with timeout 0 would last as long as the busy polling.
    #[error(
        "--poll-on-zero-timeout ({ZERO_TIMEOUT}=poll) would make a wait with timeout 0 last for the {usecs} us that the mode busy polls: use a mode that polls for 0 us, such as suspend20"
    )]
    ZeroTimeoutLasts {
        /// The requested busy-poll time.
        usecs: u32,
    },
    /// A variable that does not exist, in strict mode.
    #[error("{0}")]
    Unknown(UnknownVariable),
}

impl LibraryConfig {
    /// Returns the part of a mode's settings that belongs to the process, not to NAPI instances.
    pub fn new(mode: Option<Mode>, settings: &ModeSettings) -> Self {
        Self {
            mode,
            epoll: settings.epoll,
            max_wait: settings.max_wait,
            socket_busy_poll: settings.socket_busy_poll,
            ..Self::default()
        }
    }

    /// Returns whether the library changes nothing in any process.
    pub fn is_passive(&self) -> bool {
        let has_settings = self.epoll.is_some() || self.max_wait.is_some() || self.socket_busy_poll.is_some();
        self.disabled
            || !(has_settings || self.poll_on_zero_timeout || self.steering.is_some() || self.datapath.is_some())
    }

    /// Returns the variables to set for the program. The caller removes the others from its environment, so that an outer
    /// `abey run` does not affect an inner one (see [`is_ours`]).
    pub fn to_env(&self) -> Vec<(String, String)> {
        let on = |flag: bool| flag.then(|| "1".to_owned());
        let prefer = |epoll: EpollBusyPoll| format!("{},{},{}", epoll.usecs, epoll.budget, u8::from(epoll.prefer));
        let steer = |steering: Steering| {
            steering.queues.map_or_else(|| "queues".to_owned(), |queues| format!("queues:{queues}"))
        };
        let skip = (!self.skip.is_empty()).then(|| self.skip.join(","));
        [
            (MODE, self.mode.map(|mode| mode.to_string())),
            (EPOLL, self.epoll.map(prefer)),
            (MAX_WAIT, self.max_wait.map(|span| span.to_string())),
            (SOCKET_BUSY_POLL, self.socket_busy_poll.map(|span| span.to_string())),
            (ZERO_TIMEOUT, self.poll_on_zero_timeout.then(|| "poll".to_owned())),
            (STEER, self.steering.map(steer)),
            (DATAPATH, self.datapath.as_ref().map(DatapathConfig::to_text)),
            (CONTROL_DIRECTORY, self.control_directory.as_ref().map(|path| path.to_string_lossy().into_owned())),
            (STRICT, on(self.strict)),
            (IO_URING, on(self.allows_io_uring)),
            (DISABLE, on(self.disabled)),
            (SKIP, skip),
            (PRINTED_VARIABLE, Some(NOTHING_PRINTED.to_owned())),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
    }

    /// Reads the variables and ignores those without the prefix. [`unknown_variables`] lists the unknown ones.
    ///
    /// # Errors
    /// The first malformed value; in strict mode also the first unknown variable.
    pub fn from_env<N: AsRef<OsStr>, V: AsRef<OsStr>>(
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let mut unknown = None;
        for (name, value) in variables {
            match KNOWN.into_iter().find(|known| name.as_ref() == *known) {
                Some(variable) => config.read(variable, value.as_ref())?,
                None => unknown = unknown.or_else(|| unknown_variable(name.as_ref())),
            }
        }
        match unknown {
            Some(unknown) if config.strict => Err(ConfigError::Unknown(unknown)),
            _ => config.validate().map(|()| config),
        }
    }

    /// Checks that the settings are compatible.
    ///
    /// # Errors
    /// [`ConfigError::ZeroTimeoutLasts`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self.epoll {
            Some(EpollBusyPoll { usecs: usecs @ 1.., .. }) if self.poll_on_zero_timeout => {
                Err(ConfigError::ZeroTimeoutLasts { usecs })
            }
            _ => Ok(()),
        }
    }

    fn read(&mut self, variable: &'static str, value: &OsStr) -> Result<(), ConfigError> {
        let malformed = |expected: String| ConfigError::Malformed {
            variable,
            value: value.to_string_lossy().into_owned(),
            expected,
        };
        // These may hold any text.
        if value.is_empty() || [PRINTED_VARIABLE, LIBRARY_VARIABLE].contains(&variable) {
            return Ok(());
        }
        if variable == CONTROL_DIRECTORY {
            self.control_directory = Some(value.into());
            return Ok(());
        }
        let text = value.to_str().ok_or_else(|| malformed("write it in UTF-8".to_owned()))?;
        match variable {
            MODE => self.mode = Some(text.parse::<Mode>().map_err(|error| malformed(error.to_string()))?),
            EPOLL => self.epoll = Some(parse_epoll(text).map_err(malformed)?),
            MAX_WAIT => self.max_wait = Some(parse_span(text).map_err(malformed)?),
            SOCKET_BUSY_POLL => self.socket_busy_poll = Some(parse_span(text).map_err(malformed)?),
            ZERO_TIMEOUT => {
                self.poll_on_zero_timeout = text == "poll";
                if !self.poll_on_zero_timeout {
                    return Err(malformed("write poll, or leave it empty".to_owned()));
                }
            }
            STEER => self.steering = Some(parse_steering(text).map_err(malformed)?),
            DATAPATH => self.datapath = Some(DatapathConfig::parse(text).map_err(malformed)?),
            STRICT => self.strict = parse_switch(text).map_err(malformed)?,
            IO_URING => self.allows_io_uring = parse_switch(text).map_err(malformed)?,
            DISABLE => self.disabled = parse_switch(text).map_err(malformed)?,
            _ => self.skip = text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
        }
        Ok(())
    }
}

/// Returns whether a variable has the prefix of the library's variables, so that `abey run` removes it from the environment
/// of a program.
pub fn is_ours(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

/// Returns the variables with the prefix that the library does not have, in order.
pub fn unknown_variables<N: AsRef<OsStr>>(names: impl IntoIterator<Item = N>) -> Vec<UnknownVariable> {
    names.into_iter().filter_map(|name| unknown_variable(name.as_ref())).collect()
}

fn unknown_variable(name: &OsStr) -> Option<UnknownVariable> {
    if !is_ours(name) || KNOWN.iter().any(|known| name == *known) {
        return None;
    }
    let name = name.to_string_lossy().into_owned();
    let closest = KNOWN
        .into_iter()
        .filter(|known| *known != PRINTED_VARIABLE)
        .min_by_key(|known| strsim::damerau_levenshtein(known, &name))?;
    Some(UnknownVariable { name, closest })
}

fn parse_switch(text: &str) -> Result<bool, String> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("write 1 or 0".to_owned()),
    }
}

fn parse_span(text: &str) -> Result<Nanos, String> {
    let span = text.parse::<Nanos>().map_err(|error| error.to_string())?;
    if span.is_zero() { Err("the time must be above 0; unset the variable instead".to_owned()) } else { Ok(span) }
}

fn parse_epoll(text: &str) -> Result<EpollBusyPoll, String> {
    let expected = || "write microseconds, budget in packets and prefer (0 or 1), such as 0,64,1".to_owned();
    let mut parts = text.split(',');
    let epoll = EpollBusyPoll {
        usecs: parts.next().and_then(|part| part.parse().ok()).ok_or_else(expected)?,
        budget: parts.next().and_then(|part| part.parse().ok()).ok_or_else(expected)?,
        prefer: parts.next().and_then(|part| parse_switch(part).ok()).ok_or_else(expected)?,
    };
    if parts.next().is_some() {
        return Err(expected());
    }
    epoll.validate().map_err(|error| error.to_string())?;
    Ok(epoll)
}

fn parse_steering(text: &str) -> Result<Steering, String> {
    let expected = || "write queues, or queues:N with the number of RX queues".to_owned();
    match text.strip_prefix("queues").ok_or_else(expected)? {
        "" => Ok(Steering::default()),
        number => {
            let number = number.strip_prefix(':').and_then(|number| number.parse().ok()).ok_or_else(expected)?;
            Ok(Steering { queues: Some(number) })
        }
    }
}

#[cfg(test)]
mod tests;
