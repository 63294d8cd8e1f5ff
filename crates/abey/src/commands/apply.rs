//! `abey apply`: makes a machine as its policy says, all or nothing, and keeps it so with `--watch`.

mod files;
mod pass;
mod permission;
mod programs;
mod show;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use abey_linux::apply::JOURNAL_DIRECTORY;

pub(crate) use self::files::Files;
use self::pass::Machine;
pub(crate) use self::programs::processes_of;
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::{print_document, print_text};
use crate::signals::Signals;

/// Where systemd looks for drop-ins that a restart of the machine forgets.
const UNITS: &str = "/run/systemd/system";

/// Make the machine as a policy says: queues, delivery modes, steering, interrupts, threads and programs; all or nothing
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Policy files, and directories of them; without any, /etc/abey/policy.toml and /etc/abey/policy.d
    #[arg(value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// List the changes and make none
    #[arg(long)]
    dry_run: bool,
    /// Stay, and put back what drivers and other programs change, one line per repair, until SIGTERM; SIGHUP reads the
    /// policy again
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
    #[command(flatten)]
    namespace: Namespace,
    /// One JSON document on standard output; with --watch one per line
    #[arg(long)]
    json: bool,
    /// Where journals are kept
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
    /// Where units get their drop-ins
    #[arg(long, hide = true, default_value = UNITS)]
    units: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let files = Files::new(&args.paths);
    let policy = files.read()?;
    let netns = args.namespace.open()?;
    let mut machine = Machine::new(netns, args.journals, args.units)?;
    if args.dry_run {
        let mut outcome = machine.preview(&policy)?;
        outcome.dry_run = true;
        remark(&outcome);
        return if args.json { print_document(&outcome.document()) } else { print_text(&outcome.text()) };
    }
    let signals = Signals::catch().map_err(|error| Failure::check(format!("cannot catch signals: {error}")))?;
    if args.watch {
        return watch::watch(machine, &files, policy, &signals, args.json);
    }
    let outcome = machine.apply(&policy, &signals, |preview| match args.json {
        true => Ok(()),
        false => print_text(&preview.text()).map(drop),
    })?;
    remark(&outcome);
    if args.json { print_document(&outcome.document()) } else { print_text(&outcome.more()) }
}

fn remark(outcome: &show::Outcome) {
    for line in outcome.remarks() {
        eprintln!("abey: {line}");
    }
}
