//! Standard output: a JSON document, `{"rows": [...]}`, or a text.

use std::io::{self, Write};
use std::process::ExitCode;

use abey_text::visible_lines;
use serde::Serialize;

use crate::failure::Failure;

/// Prints rows as a JSON document.
pub(crate) fn print_rows<T: Serialize>(rows: &[T]) -> Result<ExitCode, Failure> {
    #[derive(Serialize)]
    struct Document<'a, T> {
        rows: &'a [T],
    }
    print_document(&Document { rows })
}

/// Prints a JSON document that has other keys beside `rows`.
pub(crate) fn print_document<T: Serialize>(document: &T) -> Result<ExitCode, Failure> {
    print(&document_text(document)?)
}

/// Returns a JSON document as text.
pub(crate) fn document_text<T: Serialize>(document: &T) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::check(format!("cannot write JSON: {error}")))?;
    Ok(format!("{text}\n"))
}

/// Prints a text on standard output. Control characters of other programs' texts are made visible where they are read; here
/// it is done again to what was missed.
pub(crate) fn print_text(text: &str) -> Result<ExitCode, Failure> {
    print(&visible_lines(text))
}

fn print(text: &str) -> Result<ExitCode, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::check(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}
