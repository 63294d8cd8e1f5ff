//! What is wrong with a profile or a scenario: one sentence with the file, the line, the key, the value and what is allowed.

use std::path::{Path, PathBuf};

use toml_edit::{Document, Item};

use crate::profile::Profile;

/// Why a profile or a scenario cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The text is no TOML, or has keys or values that are not allowed.
    #[error("{name}, line {line}: {text}: {message}")]
    Parse {
        /// Which file.
        name: String,
        /// Which line, counted from 1.
        line: usize,
        /// What is there.
        text: String,
        /// What is wrong with it, and what is allowed.
        message: String,
    },
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

/// The most of a broken line that a message quotes, in characters.
const QUOTED: usize = 60;

/// What the reader of TOML says in Rust's words, and in plain ones.
const JARGON: [(&str, &str); 6] = [
    ("expected u64", "expected a whole number from 0"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected usize", "expected a whole number from 0"),
    ("expected f64", "expected a number"),
    ("expected a sequence", "expected a list in brackets"),
    ("expected struct ", "expected a table: "),
];

impl InputError {
    /// What the reader of a TOML text said; `name` is that of its file.
    pub(crate) fn parse(name: &str, text: &str, error: &toml::de::Error) -> Self {
        Self::in_line(name, text, error.span().map_or(0, |span| span.start), error.message())
    }

    /// What is wrong with what is at this byte of a file's text.
    pub(crate) fn in_line(name: &str, text: &str, at: usize, message: &str) -> Self {
        let line = line_of(text, at);
        let quoted = text.lines().nth(line - 1).unwrap_or_default().trim();
        let mut shown: String = quoted.chars().take(QUOTED).collect();
        if shown.len() < quoted.len() {
            shown += "...";
        }
        let text = if shown.is_empty() { "here".to_owned() } else { format!("`{shown}`") };
        let mut message = message.lines().map(str::trim).collect::<Vec<_>>().join(", ");
        for (jargon, plain) in JARGON {
            message = message.replace(jargon, plain);
        }
        Self::Parse { name: name.to_owned(), line, text, message }
    }

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
            Self::Unknown(_) | Self::Read { .. } => Some("profile"),
            Self::Parse { .. } | Self::At { .. } => None,
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// The line of a dotted key, or of the section that would have it.
fn find_key(text: &str, key: &str) -> Option<usize> {
    let document = Document::parse(text).ok()?;
    let mut item: &Item = document.as_item();
    let mut at = None;
    for part in key.split('.') {
        let Some((key, next)) = item.as_table_like().and_then(|table| table.get_key_value(part)) else { break };
        at = key.span().or_else(|| next.span()).or(at);
        item = next;
    }
    at.map(|span| line_of(text, span.start))
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<String, InputError> {
    std::fs::read_to_string(path).map_err(|source| InputError::Read { path: path.to_owned(), source })
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
