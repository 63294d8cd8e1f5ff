//! Errors in TOML files: one sentence with the file, the line, its text and what is allowed.

use std::path::{Path, PathBuf};

use toml_edit::{Document, Item, Value};

/// An error in a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The text is not TOML, or has keys or values that are not allowed.
    #[error("{name}, line {line}: {text}: {message}")]
    Line {
        /// The file.
        name: String,
        /// The number of the line, from 1.
        line: usize,
        /// The text of the line.
        text: String,
        /// The error, and what is allowed.
        message: String,
    },
}

/// The number of characters of a line that a message quotes at most.
const MAX_QUOTED: usize = 60;

/// Phrases of the TOML parser in the terms of Rust, and what replaces them.
const PLAIN_WORDS: [(&str, &str); 8] = [
    ("expected u64", "expected a whole number from 0"),
    ("expected u32", "expected a whole number from 0 to 4294967295"),
    ("expected u8", "expected a whole number from 0 to 255"),
    ("expected i8", "expected a whole number from -128 to 127"),
    ("expected usize", "expected a whole number from 0"),
    ("expected f64", "expected a number"),
    ("expected a sequence", "expected a list in brackets"),
    ("expected struct ", "expected a table: "),
];

impl FileError {
    /// Converts an error of the TOML parser; `name` is the file's name.
    pub fn toml(name: &str, text: &str, error: &toml::de::Error) -> Self {
        Self::in_line(name, text, error.span().map_or(0, |span| span.start), error.message())
    }

    /// Returns the error `message` about the line at byte `at` of a file's text.
    pub fn in_line(name: &str, text: &str, at: usize, message: &str) -> Self {
        let line = line_of(text, at);
        let quoted = text.lines().nth(line - 1).unwrap_or_default().trim();
        let mut shown: String = quoted.chars().take(MAX_QUOTED).collect();
        if shown.len() < quoted.len() {
            shown += "...";
        }
        let text = if shown.is_empty() { "here".to_owned() } else { format!("`{shown}`") };
        let mut message = message.lines().map(str::trim).collect::<Vec<_>>().join(", ");
        for (rust, plain) in PLAIN_WORDS {
            message = message.replace(rust, plain);
        }
        Self::Line { name: name.to_owned(), line, text, message }
    }
}

/// Returns the number, from 1, of the line at byte `at` of a text.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// Returns the line of a dotted key; if the key is missing, that of the innermost section on its path.
pub fn find_key(text: &str, key: &str) -> Option<usize> {
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

/// Returns the dotted key whose name or value is at byte `at` of a TOML text; `None` if the text is not TOML, or has no key
/// there.
///
/// ```
/// let text = "[[device]]\nthread = { cpus = \"6\", priority = 500 }\n";
/// assert_eq!(abey_config::key_at(text, text.find("500").expect("there")).as_deref(), Some("device.thread.priority"));
/// ```
pub fn key_at(text: &str, at: usize) -> Option<String> {
    let document = Document::parse(text).ok()?;
    let mut path = Vec::new();
    descend(document.as_item(), at, &mut path);
    (!path.is_empty()).then(|| path.join("."))
}

/// Appends to `path` the keys below `item` that contain byte `at`. Returns whether there is one.
fn descend(item: &Item, at: usize, path: &mut Vec<String>) -> bool {
    match item {
        Item::ArrayOfTables(tables) => {
            let holds = |table: &toml_edit::Table| table.span().is_some_and(|span| span.contains(&at));
            // A table's span covers its header only; its entries have their own spans.
            tables.iter().any(|table| entries(table, at, path) || holds(table))
        }
        Item::Value(Value::Array(array)) => array.span().is_some_and(|span| span.contains(&at)),
        _ => item.as_table_like().is_some_and(|table| entries(table, at, path)),
    }
}

fn entries(table: &dyn toml_edit::TableLike, at: usize, path: &mut Vec<String>) -> bool {
    for (name, item) in table.iter() {
        let named = table.get_key_value(name).and_then(|(key, _)| key.span());
        path.push(name.to_owned());
        let here = named.is_some_and(|span| span.contains(&at)) || item.span().is_some_and(|span| span.contains(&at));
        if descend(item, at, path) || here {
            return true;
        }
        path.pop();
    }
    false
}

/// Reads a file.
///
/// # Errors
/// [`FileError::Read`].
pub fn read_text(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })
}
