//! One module per subcommand: its arguments and what it does with the library crates.

mod load;
mod serve;
mod set;

use std::process::ExitCode;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum Command {
    Load(load::Args),
    Serve(serve::Args),
    Set(set::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Load(args) => load::run(args),
            Self::Serve(args) => serve::run(args),
            Self::Set(args) => set::run(args),
        }
    }
}
