//! `abey apply`: brings the machine to the state that a policy describes, and keeps it there with `--watch`.

mod show;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;

use abey_delivery::Nanos;
use abey_policy::{Policy, PolicyError};
use abey_reconcile::{
    JOURNAL_DIRECTORY, Outcome, PolicyFiles, RUNTIME_UNITS, ReconcileError, Reconciler, Request, WatchContext, watch,
};
use abey_supervise::signals::{Signal, Signals};
use sd_notify::NotifyState;

use self::show::{Repair, additional_text, document, text};
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::{print_document, print_text};
use crate::service::notify;
use crate::signals;

/// Apply a policy to the machine: queues, delivery modes, steering, interrupts, threads and programs; all of it or nothing
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Policy files, and directories of them [default: /etc/abey/policy.toml and /etc/abey/policy.d]
    #[arg(value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,
    /// List the changes without making them
    #[arg(long)]
    dry_run: bool,
    /// Keep running, and repair what drivers and other programs change, one line per repair, until SIGTERM; SIGHUP reloads
    /// the policy
    #[arg(long, conflicts_with = "dry_run")]
    watch: bool,
    /// Compare everything at least this often with --watch, from 100ms to 1 day; NAPI settings are compared every second
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "watch")]
    every: Nanos,
    /// Restore everything that applies have changed, to its value before the first of them; what another program has
    /// changed since stays
    #[arg(long, conflicts_with_all = ["paths", "watch"])]
    undo: bool,
    #[command(flatten)]
    namespace: Namespace,
    /// Print one JSON document; with --watch one per line
    #[arg(long)]
    json: bool,
    /// The directory of journals
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
    /// The directory of drop-ins of units
    #[arg(long, hide = true, default_value = RUNTIME_UNITS)]
    units: PathBuf,
}

const PERIODS: std::ops::RangeInclusive<Nanos> = Nanos::from_millis(100)..=Nanos::from_millis(86_400_000);

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if !PERIODS.contains(&args.every) {
        return Err(Failure::usage(format!("--every {} is out of range: it goes from 100ms to 1 day", args.every)));
    }
    let files = PolicyFiles::new(&args.paths);
    // An empty policy names nothing, so that everything is restored.
    let policy = if args.undo { Policy::default() } else { files.read()? };
    let netns = args.namespace.open()?;
    let mut reconciler = Reconciler::new(netns, args.journals, args.units)?;
    if args.dry_run {
        let outcome = reconciler.preview(&policy)?;
        print_remarks(&outcome);
        return if args.json { print_document(&document(&outcome)) } else { print_text(&text(&outcome, true)) };
    }
    if let Some(pid) = reconciler.watcher()? {
        let running = format!("`abey apply --watch` (process {pid}) is running");
        if args.undo {
            let advice = "end it first (`systemctl stop abey-apply`)";
            return Err(Failure::check(format!("{running} and would apply its policy again: {advice}")));
        }
        eprintln!("abey: {running}: it reverts changes that contradict its policy");
    }
    let signals = signals::catch_with_hangup()?;
    if args.watch {
        let mut context = Context { signals, json: args.json };
        watch(reconciler, &files, policy, args.every.into(), &mut context)?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = || signals.next().filter(|signal| *signal != Signal::SIGHUP).map(|signal| signal.to_string());
    let outcome = reconciler.apply(&policy, &stop, |announced| match args.json {
        true => Ok::<_, Failure>(()),
        false => print_text(&text(announced, false)).map(drop),
    })?;
    print_remarks(&outcome);
    if args.json { print_document(&document(&outcome)) } else { print_text(&additional_text(&outcome)) }
}

fn print_remarks(outcome: &Outcome) {
    for line in outcome.remarks() {
        eprintln!("abey: {line}");
    }
}

/// Requests by signals; reports on standard output and to the service manager.
struct Context {
    signals: Signals,
    json: bool,
}

impl WatchContext for Context {
    fn request_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    fn next_request(&self) -> Option<Request> {
        let signal = self.signals.next()?;
        Some(if signal == Signal::SIGHUP { Request::Reload } else { Request::Stop })
    }

    fn repaired(&mut self, device: Option<&str>, outcome: &Outcome) -> Result<(), ReconcileError> {
        for repair in Repair::all(device, outcome) {
            let line = if self.json { repair.json() } else { Ok(repair.text()) };
            let printed = line.and_then(|line| print_text(&line));
            printed.map_err(|failure| ReconcileError::Failed(failure.to_string()))?;
        }
        Ok(())
    }

    fn note(&mut self, text: &str) {
        eprintln!("abey: {text}");
    }

    fn ready(&mut self) {
        notify(&[NotifyState::Ready]);
    }

    fn stopping(&mut self) {
        notify(&[NotifyState::Stopping]);
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        Self::usage(error)
    }
}

impl From<ReconcileError> for Failure {
    fn from(error: ReconcileError) -> Self {
        match error {
            ReconcileError::Policy(error) => error.into(),
            ReconcileError::Apply(error) => error.into(),
            ReconcileError::Journal(error) => error.into(),
            ReconcileError::Netlink(error) => error.into(),
            ReconcileError::Files(_) => Self::usage(error),
            ReconcileError::Impossible(_) => Self::lacks(error),
            _ => Self::check(error),
        }
    }
}
