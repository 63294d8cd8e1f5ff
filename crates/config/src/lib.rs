//! TOML files for Abey: settings files, and errors that name the file, the line and the key.

#![forbid(unsafe_code)]

mod error;
mod settings_file;
mod time;

pub use error::{FileError, find_key, key_at, line_of, read_text};
pub use settings_file::{EpollTable, NapiTable, SettingsFile, napi_lines};
pub use time::Time;
