//! Machine-readable output: one JSON document, `{"rows": [...]}`.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use crate::failure::Failure;

/// Prints the rows as the one document on standard output.
pub(crate) fn print_rows<T: Serialize>(rows: &[T]) -> Result<ExitCode, Failure> {
    #[derive(Serialize)]
    struct Document<'a, T> {
        rows: &'a [T],
    }
    print_document(&Document { rows })
}

/// Prints a document that has more beside its `rows`.
pub(crate) fn print_document<T: Serialize>(document: &T) -> Result<ExitCode, Failure> {
    let write = || -> io::Result<()> {
        let mut out = io::stdout().lock();
        serde_json::to_writer_pretty(&mut out, document)?;
        out.write_all(b"\n")?;
        out.flush()
    };
    match write() {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::check(format!("cannot write to standard output: {error}"))),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}
