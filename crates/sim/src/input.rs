//! Errors in profiles and scenarios, with the file, line, key, value and what is allowed.

use abey_config::{FileError, find_key};

use crate::profile::Profile;

/// Reason why a profile or a scenario is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file cannot be read, is not TOML, or has keys or values that are not allowed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A value is not allowed.
    #[error("{key} = {value} is invalid: {allowed}")]
    Value {
        /// Key with its section.
        key: &'static str,
        /// Value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The load exceeds the capacity of the wire.
    #[error("load = {load} is invalid: the wire carries at most {most:.0} {what} of this size per second")]
    WireOverload {
        /// Requests per second.
        load: f64,
        /// Messages that exceed it: requests or answers.
        what: &'static str,
        /// Largest possible load.
        most: f64,
    },
    /// A figure is too large.
    #[error("{key} = {value} is invalid: it must be at most {most}")]
    TooLarge {
        /// Key with its section.
        key: String,
        /// Value.
        value: i64,
        /// Largest allowed value.
        most: i64,
    },
    /// The error is in a file.
    #[error("{name}{line}: {source}", line = .line.map_or(String::new(), |line| format!(", line {line}")))]
    At {
        /// File name.
        name: String,
        /// Line, counted from 1; unknown if the file does not have the key.
        line: Option<usize>,
        /// Error.
        source: Box<InputError>,
    },
    /// The busy-poll settings are invalid.
    #[error(transparent)]
    Settings(#[from] abey_delivery::SettingsError),
    /// There is no profile with this name.
    #[error("there is no profile `{0}`: the shipped ones are {shipped}; or give the path of a TOML file", shipped = Profile::SHIPPED.map(|(name, _)| name).join(", "))]
    Unknown(String),
}

impl InputError {
    /// Adds the file name, and the line if the text has the key.
    pub(crate) fn at(self, name: &str, text: &str) -> Self {
        let line = self.key().and_then(|key| find_key(text, key));
        Self::At { name: name.to_owned(), line, source: Box::new(self) }
    }

    /// Returns the key of the scenario or profile that caused the error.
    fn key(&self) -> Option<&str> {
        match self {
            Self::Value { key, .. } => Some(key),
            Self::TooLarge { key, .. } => Some(key),
            Self::WireOverload { .. } => Some("load"),
            Self::Settings(_) => Some("modes"),
            Self::Unknown(_) | Self::File(FileError::Read { .. }) => Some("profile"),
            Self::File(_) | Self::At { .. } => None,
        }
    }
}

/// Largest figures of a profile by the suffix of their keys. A larger one is a mistake in the unit, and would
/// overflow the simulator's arithmetic.
const LIMITS: [(&str, i64); 12] = [
    ("instructions", 10_000_000),
    ("_cycles", 10_000_000),
    ("_mhz", 100_000),
    ("_per_1000_instructions", 1_000_000),
    ("_ns", 100_000_000_000),
    ("_usecs", 10_000_000),
    ("_percent", 100),
    ("_frames", 1_000_000),
    ("_packets", 1_000_000),
    ("_bytes", 1 << 20),
    ("_mbits_per_s", 100_000_000),
    ("", 1_000_000_000),
];

/// Checks that no figure of a profile exceeds its limit.
pub(crate) fn check_limits(text: &str) -> Result<(), InputError> {
    let Ok(table) = text.parse::<toml::Table>() else { return Ok(()) };
    check_table("", &table)
}

fn check_table(path: &str, table: &toml::Table) -> Result<(), InputError> {
    for (name, value) in table {
        let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        match value {
            toml::Value::Table(inner) => check_table(&key, inner)?,
            toml::Value::Integer(value) => {
                let limit = LIMITS.iter().find(|(end, _)| name.ends_with(end)).map_or(i64::MAX, |(_, most)| *most);
                if *value > limit {
                    return Err(InputError::TooLarge { key, value: *value, most: limit });
                }
            }
            _ => {}
        }
    }
    Ok(())
}
