//! Subcommands: a module for each, with its arguments and its calls of the libraries.

mod apply;
mod bench;
mod calibrate;
mod dump;
mod exporter;
mod generate;
pub(crate) mod guard;
mod load;
mod plan;
mod run;
mod serve;
mod set;
mod sim;
mod status;
mod top;
mod tune;

use std::process::ExitCode;

use clap::Subcommand;

use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum Command {
    Apply(apply::Args),
    Bench(bench::Args),
    Calibrate(calibrate::Args),
    #[command(hide = true)]
    Generate(generate::Args),
    Exporter(exporter::Args),
    Dump(dump::Args),
    Run(run::Args),
    #[command(hide = true)]
    Guard(guard::Args),
    Load(load::Args),
    Plan(plan::Args),
    Serve(serve::Args),
    Set(set::Args),
    Sim(sim::Args),
    Status(status::Args),
    Top(top::Args),
    Tune(tune::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Apply(args) => apply::run(args),
            Self::Bench(args) => bench::run(args),
            Self::Calibrate(args) => calibrate::run(args),
            Self::Exporter(args) => exporter::run(args),
            Self::Generate(args) => generate::run(args),
            Self::Dump(args) => dump::run(args),
            Self::Run(args) => run::run(args),
            Self::Guard(args) => guard::run(args),
            Self::Load(args) => load::run(args),
            Self::Plan(args) => plan::run(args),
            Self::Serve(args) => serve::run(args),
            Self::Set(args) => set::run(args),
            Self::Sim(args) => sim::run(args),
            Self::Status(args) => status::run(args),
            Self::Top(args) => top::run(args),
            Self::Tune(args) => tune::run(args),
        }
    }
}
