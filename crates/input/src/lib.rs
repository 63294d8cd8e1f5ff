//! What a person writes for Abey in a TOML file: read with errors that name file, line and key, and settings files.

#![forbid(unsafe_code)]

mod error;
mod settings_file;
mod time;

pub use error::{FileError, find_key, key_at, line_of, read_text};
pub use settings_file::{EpollTable, NapiTable, SettingsFile, napi_lines};
pub use time::Time;
