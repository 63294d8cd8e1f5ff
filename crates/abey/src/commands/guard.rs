//! `abey guard` (hidden): the process that cleans up after an Abey that was killed.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use abey_supervise::guard::{self, Guard, ProcessId};

use crate::failure::Failure;

/// Wait for another `abey` to end, and clean up after it if it was killed
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory of the journals
    #[arg(long)]
    journals: PathBuf,
    /// The process to wait for: its number and start time
    #[arg(long, value_name = "PID:START")]
    of: ProcessId,
}

/// Starts the guard of this process.
pub(crate) fn start(journals: &Path) -> Result<Guard, Failure> {
    let start = || {
        let own = ProcessId::of(std::process::id()).ok_or(std::io::ErrorKind::NotFound)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("guard").arg("--journals").arg(journals).arg("--of").arg(own.to_string());
        Guard::start(&mut command)
    };
    start().map_err(|error: std::io::Error| Failure::lacks(format!("cannot start the guard process: {error}")))
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    guard::run(args.of, &args.journals)?;
    Ok(ExitCode::SUCCESS)
}
