//! What is wrong with a profile or a scenario: one sentence with the file, the line, the key, the value and what is allowed.

use abey_input::{FileError, find_key};

use crate::profile::Profile;

/// Why a profile or a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file cannot be read, its text is no TOML, or has keys or values that are not allowed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A value that cannot be.
    #[error("{key} = {value} cannot be: {allowed}")]
    Value {
        /// The key, with its section.
        key: &'static str,
        /// What it was.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// More load than the wire carries.
    #[error("load = {load} cannot be: the wire carries at most {most:.0} {what} of this size per second")]
    WireOverload {
        /// Requests per second.
        load: f64,
        /// Of these, requests or answers, there are too many.
        what: &'static str,
        /// How many there may be.
        most: f64,
    },
    /// A figure that is too large to make sense.
    #[error("{key} = {value} cannot be: it is at most {most}")]
    TooLarge {
        /// The key, with its section.
        key: String,
        /// What it was.
        value: i64,
        /// What is allowed.
        most: i64,
    },
    /// What is wrong is in a file.
    #[error("{name}{line}: {source}", line = .line.map_or(String::new(), |line| format!(", line {line}")))]
    At {
        /// Which file.
        name: String,
        /// Which line, counted from 1; not known if the file does not have the key.
        line: Option<usize>,
        /// What is wrong.
        source: Box<InputError>,
    },
    /// Busy polling is set to what cannot be.
    #[error(transparent)]
    Settings(#[from] abey_delivery::SettingsError),
    /// There is no profile of this name.
    #[error("there is no profile `{0}`: the shipped ones are {shipped}; or give the path of a TOML file", shipped = Profile::SHIPPED.map(|(name, _)| name).join(", "))]
    Unknown(String),
}

impl InputError {
    /// Says in which file this is, and in which line if the text has the key.
    pub(crate) fn at(self, name: &str, text: &str) -> Self {
        let line = self.key().and_then(|key| find_key(text, key));
        Self::At { name: name.to_owned(), line, source: Box::new(self) }
    }

    /// The key of a scenario or a profile that this is about.
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

/// The largest figures that a profile may have, by the end of their keys: more is a mistake in the unit, and would overflow
/// the simulator's arithmetic.
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

/// Checks that no figure of a profile's text is absurdly large.
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
