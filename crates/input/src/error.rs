//! What is wrong with a TOML file: one sentence with the file, the line, what is there and what is allowed.

use std::path::{Path, PathBuf};

use toml_edit::{Document, Item, Value};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {path}: {source}", path = .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The text is no TOML, or has keys or values that are not allowed.
    #[error("{name}, line {line}: {text}: {message}")]
    Line {
        /// Which file.
        name: String,
        /// Which line, counted from 1.
        line: usize,
        /// What is there.
        text: String,
        /// What is wrong with it, and what is allowed.
        message: String,
    },
}

/// The most of a broken line that a message quotes, in characters.
const QUOTED: usize = 60;

/// What the reader of TOML says in Rust's words, and in plain ones.
const JARGON: [(&str, &str); 8] = [
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
    /// What the reader of a TOML text said; `name` is that of its file.
    pub fn toml(name: &str, text: &str, error: &toml::de::Error) -> Self {
        Self::in_line(name, text, error.span().map_or(0, |span| span.start), error.message())
    }

    /// What is wrong with what is at this byte of a file's text.
    pub fn in_line(name: &str, text: &str, at: usize, message: &str) -> Self {
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
        Self::Line { name: name.to_owned(), line, text, message }
    }
}

/// The line, counted from 1, of this byte of a text.
pub fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// The line of a dotted key, or of the section that would have it.
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

/// The dotted key whose name or value is at this byte of a TOML text; `None` if the text is no TOML, or nothing is there.
///
/// ```
/// let text = "[[device]]\nthread = { cpus = \"6\", priority = 500 }\n";
/// assert_eq!(abey_input::key_at(text, text.find("500").expect("there")).as_deref(), Some("device.thread.priority"));
/// ```
pub fn key_at(text: &str, at: usize) -> Option<String> {
    let document = Document::parse(text).ok()?;
    let mut path = Vec::new();
    descend(document.as_item(), at, &mut path);
    (!path.is_empty()).then(|| path.join("."))
}

/// Follows what is at this byte downwards; whether anything below `item` is there.
fn descend(item: &Item, at: usize, path: &mut Vec<String>) -> bool {
    match item {
        Item::ArrayOfTables(tables) => {
            let holds = |table: &toml_edit::Table| table.span().is_some_and(|span| span.contains(&at));
            // A table's span is that of its header; what is below it is in its own items.
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
