//! `abey generate`: manual pages and completions for packages, from the definition of the command line.

mod manual;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgGroup, Command, CommandFactory, Id, Subcommand};
use clap_complete::Shell;

use crate::Cli;
use crate::failure::Failure;
use crate::output::print_text;

/// Write manual pages or shell completions, for packages
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    output: Output,
}

#[derive(Subcommand)]
enum Output {
    /// Write manual pages: abey.1, and one for each command, dated by $SOURCE_DATE_EPOCH
    Man {
        /// Directory to write to, created if it does not exist
        directory: PathBuf,
    },
    /// Write completions for bash (abey.bash), zsh (_abey) and fish (abey.fish)
    Completions {
        /// Directory to write to, created if it does not exist
        directory: PathBuf,
    },
}

/// Writes the files and prints their paths.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let written = match &args.output {
        Output::Man { directory } => write_into(directory, |path| manual::write(Cli::command(), path))?,
        Output::Completions { directory } => write_into(directory, completions)?,
    };
    print_text(&written.iter().map(|path| format!("{}\n", path.display())).collect::<String>())
}

fn write_into(
    directory: &Path,
    write: impl Fn(&Path) -> Result<Vec<PathBuf>, io::Error>,
) -> Result<Vec<PathBuf>, Failure> {
    let written = fs::create_dir_all(directory).and_then(|()| write(directory));
    written.map_err(|error| Failure::usage(format!("cannot write to {}: {error}", directory.display())))
}

fn completions(directory: &Path) -> Result<Vec<PathBuf>, io::Error> {
    let mut command = without_hidden(&Cli::command());
    let shells = [Shell::Bash, Shell::Zsh, Shell::Fish];
    shells.into_iter().map(|shell| clap_complete::generate_to(shell, &mut command, "abey", directory)).collect()
}

/// Returns the command without hidden arguments and subcommands, which the generators would complete too.
fn without_hidden(command: &Command) -> Command {
    let arguments: Vec<_> = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned().collect();
    let groups: Vec<_> = command.get_groups().map(|group| restrict(group, &arguments)).collect();
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).map(without_hidden);
    Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .args(&arguments)
        .groups(groups)
        .subcommands(subcommands)
}

/// Returns the group with only those members that are in `arguments`.
fn restrict(group: &ArgGroup, arguments: &[Arg]) -> ArgGroup {
    let is_there = |id: &&Id| arguments.iter().any(|argument| argument.get_id() == *id);
    ArgGroup::new(group.get_id().clone())
        .args(group.get_args().filter(is_there).cloned())
        .required(group.is_required_set())
        .multiple(group.clone().is_multiple())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hidden_commands_are_not_completed() {
        let (all, shown) = (Cli::command(), without_hidden(&Cli::command()));
        let hidden = all.get_subcommands().filter(|command| command.is_hide_set()).count();
        assert!(hidden > 0 && all.find_subcommand("guard").is_some() && shown.find_subcommand("guard").is_none());
        assert_eq!(shown.get_subcommands().count(), all.get_subcommands().count() - hidden);
        // clap checks that all references between arguments and groups are valid.
        shown.debug_assert();
    }
}
