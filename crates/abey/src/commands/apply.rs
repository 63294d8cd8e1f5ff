//! `abey apply`: makes a machine as its policy says, all or nothing, and keeps it so with `--watch`.

mod files;
mod pass;
mod permission;
mod programs;
mod show;
mod view;
mod watch;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use abey_delivery::Nanos;
use abey_linux::apply::JOURNAL_DIRECTORY;
use abey_linux::units::RUNTIME_UNITS;
use abey_policy::Policy;

pub(crate) use self::files::Files;
use self::pass::Machine;
pub(crate) use self::programs::processes_of;
use self::watch::Manner;
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::{print_document, print_text};
use crate::signals::Signals;

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
    /// How often --watch looks at everything without a reason (from 100ms to 1 day); at the settings of NAPI instances it
    /// looks every second
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "watch")]
    every: Nanos,
    /// Put back everything that applies have changed and keep, as it was before the first of them; what somebody else has
    /// changed since stays
    #[arg(long, conflicts_with_all = ["paths", "watch"])]
    undo: bool,
    #[command(flatten)]
    namespace: Namespace,
    /// One JSON document on standard output; with --watch one per line
    #[arg(long)]
    json: bool,
    /// Where journals are kept
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
    /// Where units get their drop-ins
    #[arg(long, hide = true, default_value = RUNTIME_UNITS)]
    units: PathBuf,
}

const PERIODS: std::ops::RangeInclusive<Nanos> = Nanos::from_millis(100)..=Nanos::from_millis(86_400_000);

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if !PERIODS.contains(&args.every) {
        return Err(Failure::usage(format!("--every {} is out of range: it goes from 100ms to 1 day", args.every)));
    }
    let files = Files::new(&args.paths);
    // What no policy names goes back: all of it, where there is none.
    let policy = if args.undo { Policy::default() } else { files.read()? };
    let netns = args.namespace.open()?;
    let mut machine = Machine::new(netns, args.journals, args.units)?;
    if args.dry_run {
        let mut outcome = machine.preview(&policy)?;
        outcome.dry_run = true;
        remark(&outcome);
        return if args.json { print_document(&outcome.document()) } else { print_text(&outcome.text()) };
    }
    if let Some(pid) = machine.watcher()? {
        let watch = format!("`abey apply --watch` (process {pid}) keeps its policy here");
        if args.undo {
            let advice = "end it first (`systemctl stop abey-apply`)";
            return Err(Failure::check(format!("{watch} and would make it hold again: {advice}")));
        }
        eprintln!("abey: {watch}: what is applied against that does not stay");
    }
    let signals = Signals::catch().map_err(|error| Failure::check(format!("cannot catch signals: {error}")))?;
    if args.watch {
        let manner = Manner { every: args.every.into(), json: args.json };
        return watch::watch(machine, &files, policy, &signals, manner);
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
