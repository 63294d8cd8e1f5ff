//! `abey load`.

use std::process::ExitCode;

use crate::failure::Failure;

/// (being built)
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: Args) -> Result<ExitCode, Failure> {
    Err(Failure::usage("not built yet"))
}
