//! `abey generate`: what a package ships beside the command, made from the definition of the command line.

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

/// Write the manual pages or the shells' completions, for packages
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Manual pages: abey.1, and one for each command; dated by $SOURCE_DATE_EPOCH
    Man {
        /// Where to; it is made if it is not there
        directory: PathBuf,
    },
    /// Completions for bash (abey.bash), zsh (_abey) and fish (abey.fish)
    Completions {
        /// Where to; it is made if it is not there
        directory: PathBuf,
    },
}

/// Runs the command; its output is the paths of the files that were written.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let written = match &args.what {
        What::Man { directory } => write_into(directory, |path| manual::write(Cli::command(), path))?,
        What::Completions { directory } => write_into(directory, completions)?,
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
    let mut command = shown(&Cli::command());
    let shells = [Shell::Bash, Shell::Zsh, Shell::Fish];
    shells.into_iter().map(|shell| clap_complete::generate_to(shell, &mut command, "abey", directory)).collect()
}

/// What of the command is completed: all that its help shows. The generators would offer what is hidden as well.
fn shown(command: &Command) -> Command {
    let arguments: Vec<_> = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned().collect();
    let groups: Vec<_> = command.get_groups().map(|group| among(group, &arguments)).collect();
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).map(shown);
    Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .args(&arguments)
        .groups(groups)
        .subcommands(subcommands)
}

/// The group with only those of its members that are among these arguments.
fn among(group: &ArgGroup, arguments: &[Arg]) -> ArgGroup {
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
    fn what_is_hidden_is_not_offered_and_the_rest_is() {
        let (all, shown) = (Cli::command(), shown(&Cli::command()));
        let hidden = all.get_subcommands().filter(|command| command.is_hide_set()).count();
        assert!(hidden > 0 && all.find_subcommand("guard").is_some() && shown.find_subcommand("guard").is_none());
        assert_eq!(shown.get_subcommands().count(), all.get_subcommands().count() - hidden);
        // Every reference between arguments and groups still has what it refers to; clap checks that.
        shown.debug_assert();
    }
}
