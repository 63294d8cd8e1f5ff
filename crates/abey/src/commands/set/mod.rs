//! `abey set`: changes settings of the kernel for good or of a running datapath until it ends, or restores the settings that
//! a killed process left changed.

mod datapath;

use std::path::PathBuf;
use std::process::ExitCode;

use abey_delivery::{Mode, ModeSettings, Nanos, NapiChange, PollContext};
use abey_linux::device::{Device, device_named, devices};
use abey_linux::kernel::NetnsHandle;
use abey_linux::napi::napi;
use abey_linux::probe::napi_capabilities;
use abey_reconcile::{
    JOURNAL_DIRECTORY, Plan, RUNTIME_UNITS, Restored, SettingChange, Step, Target, restore_abandoned,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Serialize;

use crate::datapath_world::is_nic;
use crate::failure::Failure;
use crate::linux_world::{Namespace, Wanted};
use crate::output::{print_rows, print_text};

/// Change the delivery settings of NAPI instances, of a device for good or of a running datapath until it ends
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The network device, or the NIC of a running datapath (such as memory:kv)
    #[arg(value_name = "DEV", required_unless_present_any = ["napi", "pid", "restore"], conflicts_with = "restore")]
    device: Option<String>,
    /// Only the NAPI instance with this ID (see `abey status`): the kernel's, or that of the datapath of DEV or --pid
    #[arg(long, value_name = "ID")]
    napi: Option<u32>,
    /// The datapath of this process
    #[arg(long, value_name = "P")]
    pid: Option<u32>,
    /// Only the NAPI instances that serve these receive queues of DEV
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "device", conflicts_with = "napi")]
    queues: Vec<u32>,
    #[command(flatten)]
    settings: Settings,
    /// List the changes without making them
    #[arg(long)]
    dry_run: bool,
    /// Restore the settings that an abey process changed and could not restore because it was killed
    #[arg(long, conflicts_with_all = ["napi", "pid", "queues", "dry_run", "Settings"])]
    restore: bool,
    #[command(flatten)]
    namespace: Namespace,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// The directory of journals
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
    /// The directory of drop-ins of units
    #[arg(long, hide = true, default_value = RUNTIME_UNITS)]
    units: PathBuf,
}

/// The settings, of which at least one is required.
#[derive(clap::Args)]
#[group(multiple = true)]
struct Settings {
    /// All the NAPI settings of a mode (base, deferX, napibusy, fullbusy, suspendX, threaded, threaded-busy; in a datapath
    /// also workqueue, holdX, holdX-timer, sockbusyX)
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
    /// All the NAPI settings of a settings file, as `abey plan --output` writes it
    #[arg(long = "settings", value_name = "FILE", conflicts_with = "mode")]
    file: Option<PathBuf>,
    /// Number of empty polls that re-arm the timer instead of unmasking the interrupt
    #[arg(long, value_name = "N")]
    defer_hard_irqs: Option<u32>,
    /// Time after such a poll until the timer polls again (such as 20us)
    #[arg(long, value_name = "TIME")]
    gro_flush_timeout: Option<Nanos>,
    /// Time that interrupts stay suspended while the application finds events (such as 20ms)
    #[arg(long, value_name = "TIME")]
    irq_suspend_timeout: Option<Nanos>,
    /// Poll in softirq (no), in a thread per NAPI (yes), in a thread that never sleeps (busy) or, in a datapath, in a pool of
    /// workers (workqueue)
    #[arg(long, value_name = "CONTEXT", value_parser = threaded())]
    threaded: Option<PollContext>,
}

/// Parses a value of `--threaded`.
fn threaded() -> impl TypedValueParser<Value = PollContext> {
    PossibleValuesParser::new(PollContext::ALL.map(PollContext::name)).try_map(|name| name.parse::<PollContext>())
}

impl Settings {
    /// Returns the settings of --mode or --settings.
    fn bundle(&self) -> Result<Option<Wanted>, Failure> {
        match (self.mode, &self.file) {
            (Some(mode), _) => Wanted::mode(mode).map(Some),
            (None, Some(file)) => Wanted::file(file).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Returns the change to the individual settings.
    fn single(&self) -> NapiChange {
        let Self { mode: _, file: _, defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, threaded } = *self;
        NapiChange { defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, context: threaded }
    }

    /// Returns the change to these settings. Individual settings take precedence over those of the bundle.
    fn change(&self, bundle: Option<&Wanted>) -> Result<NapiChange, Failure> {
        if self.threaded == Some(PollContext::Workqueue) {
            return Err(Failure::usage(
                "the Linux kernel has no --threaded workqueue: it exists in the datapath and sim worlds only",
            ));
        }
        let change = self.single().or(bundle.map(|bundle| NapiChange::to(&bundle.settings.napi)).unwrap_or_default());
        if change.is_empty() { Err(nothing_to_set()) } else { Ok(change) }
    }
}

fn nothing_to_set() -> Failure {
    Failure::usage(
        "nothing to set: give --mode, --settings, or one of --defer-hard-irqs, --gro-flush-timeout, \
         --irq-suspend-timeout and --threaded",
    )
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.restore {
        return restore(&args);
    }
    if args.pid.is_some() || args.device.as_deref().is_some_and(is_nic) {
        return datapath::run(&args);
    }
    if let (Some(device), Some(_)) = (&args.device, args.napi) {
        return Err(Failure::usage(format!("--napi already names an instance of the kernel: leave {device} out")));
    }
    let bundle = args.settings.bundle()?;
    let wanted = args.settings.change(bundle.as_ref())?;
    let netns = args.namespace.open()?;
    let mut netns_handle = NetnsHandle::open(&netns)?;
    let (device, target) = find(&mut netns_handle, &args, netns.description())?;
    let capabilities = napi_capabilities(netns_handle.netlink())?;
    let plan = Plan::new(&mut netns_handle, &device, &target, &wanted, capabilities)?;
    for warning in plan.warnings() {
        eprintln!("abey: {warning}");
    }
    let changes: Vec<SettingChange> = plan.steps().iter().flat_map(Step::changes).collect();
    if !args.dry_run {
        plan.apply(netns_handle, Some(&args.journals))?.keep();
    }
    if args.json {
        return print_rows(&changes);
    }
    let mut text = String::new();
    if changes.is_empty() {
        text += &format!("{}: nothing to change\n", device.name);
    }
    for change in changes {
        text += &format!("{change}{}\n", if args.dry_run { " (not changed: dry run)" } else { "" });
    }
    if let Some(note) = bundle.and_then(|bundle| left_to_the_server(&bundle, args.settings.file.is_some())) {
        eprintln!("abey: {note}");
    }
    print_text(&text)
}

/// Returns a sentence on the settings of a bundle that are not NAPI settings, if there are any.
fn left_to_the_server(bundle: &Wanted, from_file: bool) -> Option<String> {
    let ModeSettings { epoll, max_wait, socket_busy_poll, .. } = bundle.settings;
    let name = &bundle.name;
    match (epoll, from_file) {
        (None, _) if max_wait.is_none() && socket_busy_poll.is_none() => None,
        (Some(_), false) => Some(format!(
            "{name} also needs epoll parameters in the server: start it with `abey run`, or set them in the server"
        )),
        (None, false) => {
            Some(format!("{name} consists of settings of the server only: start it with `abey run --mode {name}`"))
        }
        (_, true) => Some(format!(
            "the settings of epoll, waits and sockets in {name} belong to the server: start it with `abey run --settings {name}`"
        )),
    }
}

fn find(netns_handle: &mut NetnsHandle, args: &Args, namespace: &str) -> Result<(Device, Target), Failure> {
    if let Some(id) = args.napi {
        let netlink = netns_handle.netlink();
        let found = napi(netlink, id).map_err(|error| {
            let unknown = error.is_not_found();
            let missing = || format!("there is no NAPI {id} in {namespace}: `abey status` lists the existing ones");
            if unknown { Failure::usage(missing()) } else { error.into() }
        })?;
        let device = devices(netlink)?.into_iter().find(|device| device.ifindex == found.ifindex);
        let device =
            device.ok_or_else(|| Failure::check(format!("the device of NAPI {id} was just removed: try again")))?;
        return Ok((device, Target::Napi(id)));
    }
    let name = args.device.as_deref().expect("clap asks for DEV or --napi");
    let device = device_named(netns_handle.netlink(), name, namespace)?;
    let target = if args.queues.is_empty() { Target::Device } else { Target::Queues(args.queues.clone()) };
    Ok((device, target))
}

#[derive(Serialize)]
struct RestoredRow {
    outcome: &'static str,
    #[serde(flatten)]
    change: SettingChange,
}

fn restore(args: &Args) -> Result<ExitCode, Failure> {
    let restored = restore_abandoned(&args.journals, &args.units)?;
    let rows: Vec<RestoredRow> = restored
        .iter()
        .flat_map(|restored| {
            let outcome = match restored {
                Restored::Back(_) => "put back",
                Restored::Missing(_) => "removed with its device",
                Restored::ChangedSince(_) => "left: another program has changed it since",
                _ => "unknown",
            };
            restored.step().changes().into_iter().map(move |change| RestoredRow { outcome, change })
        })
        .collect();
    if args.json {
        return print_rows(&rows);
    }
    if rows.is_empty() {
        return print_text("nothing to put back: no abey process was killed while it held settings\n");
    }
    let mut text = String::new();
    for RestoredRow { outcome, change } in rows {
        let SettingChange { setting, before, after, .. } = &change;
        text += &format!("{}: {setting} {after} -> {before} ({outcome})\n", change.subject());
    }
    print_text(&text)
}
