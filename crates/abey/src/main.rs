//! The `abey` command: runs, sets, shows and measures delivery modes.

#![forbid(unsafe_code)]

mod commands;
mod failure;
mod linux_world;
mod output;
mod supervise;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::Command;

/// Run a network server with its interrupts in abeyance: polled while it is busy, asleep when it is idle.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("abey: {failure}");
            failure.exit_code()
        }
    }
}
