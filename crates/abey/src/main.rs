//! The `abey` command: runs, sets, shows and measures delivery modes.

#![forbid(unsafe_code)]

mod commands;
mod datapath_world;
mod exchange;
mod failure;
mod linux_world;
mod nic_args;
mod output;
mod program;
mod service;
mod signals;
mod supervise;
mod table;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::Command;
use crate::failure::Failure;

/// Run a network server with its interrupts in abeyance: polled while it is busy, asleep when it is idle.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        // Not an error: --help and --version.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return end(&usage(&error)),
    };
    match command.run() {
        Ok(code) => code,
        Err(failure) => end(&failure),
    }
}

fn end(failure: &Failure) -> ExitCode {
    eprintln!("abey: {failure}");
    failure.exit_code()
}

/// What clap says on several lines, as one sentence: an error of Abey is one line, whoever found it.
fn usage(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines.join(" ")
    });
    let wanted = |paragraph: &String| !paragraph.is_empty() && !paragraph.starts_with("Usage:");
    let said: Vec<String> = paragraphs.filter(wanted).collect();
    let said = said.join("; ");
    Failure::usage(
        said.strip_prefix("error: ").unwrap_or(&said).trim_end_matches('.').replace("; For more", "; for more"),
    )
}
