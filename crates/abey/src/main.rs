//! The `abey` command: runs, sets, shows and measures delivery modes.

#![forbid(unsafe_code)]

mod commands;
mod datapath_world;
mod exchange;
mod failure;
mod linux_world;
mod nic_args;
mod output;
mod service;
mod signals;

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
        // --help and --version are no errors.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => return end(&usage(&error)),
    };
    match command.run() {
        Ok(code) => code,
        Err(failure) => end(&failure),
    }
}

fn end(failure: &Failure) -> ExitCode {
    eprintln!("abey: {}", abey_text::visible_lines(&failure.to_string()));
    failure.exit_code()
}

/// Joins clap's message of several lines: an error of Abey is one line.
fn usage(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let lines: Vec<&str> = paragraph.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines.join(" ")
    });
    let is_message = |paragraph: &String| !paragraph.is_empty() && !paragraph.starts_with("Usage:");
    let message: Vec<String> = paragraphs.filter(is_message).collect();
    let message = message.join("; ");
    Failure::usage(
        message.strip_prefix("error: ").unwrap_or(&message).trim_end_matches('.').replace("; For more", "; for more"),
    )
}
