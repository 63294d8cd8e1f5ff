//! `abey set`: changes settings for good, those of a running datapath until it ends, or puts back what a killed Abey left.

mod datapath;

use std::path::PathBuf;
use std::process::ExitCode;

use abey_delivery::{Mode, ModeSettings, Nanos, PollContext};
use abey_linux::apply::{JOURNAL_DIRECTORY, Place, Plan, Restored, SettingChange, Step, Target, restore_abandoned};
use abey_linux::device::{Device, device_named, devices};
use abey_linux::napi::{NapiChange, napi};
use abey_linux::probe::napi_capabilities;
use serde::Serialize;

use crate::datapath_world::is_nic;
use crate::failure::Failure;
use crate::linux_world::{Namespace, Wanted};
use crate::output::{print_rows, print_text};

/// Change the delivery settings of NAPI instances: of a device, where they stay changed, or of a running datapath
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The network device, or the NIC of a running datapath (such as memory:kv)
    #[arg(value_name = "DEV", required_unless_present_any = ["napi", "pid", "restore"], conflicts_with = "restore")]
    device: Option<String>,
    /// One NAPI instance, by its ID (`abey status` lists them): the kernel's, or of the datapath that DEV or --pid names
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
    /// List the changes and make none
    #[arg(long)]
    dry_run: bool,
    /// Put back the settings that an `abey run` changed and could not put back because it was killed
    #[arg(long, conflicts_with_all = ["napi", "pid", "queues", "dry_run", "Settings"])]
    restore: bool,
    #[command(flatten)]
    namespace: Namespace,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
    /// Where journals are kept
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
}

/// The settings; at least one has to be given.
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
    /// How many empty polls may re-arm the timer instead of unmasking the interrupt
    #[arg(long, value_name = "N")]
    defer_hard_irqs: Option<u32>,
    /// How long after such a poll the timer polls again (such as 20us)
    #[arg(long, value_name = "TIME")]
    gro_flush_timeout: Option<Nanos>,
    /// How long interrupts stay suspended while the application finds events (such as 20ms)
    #[arg(long, value_name = "TIME")]
    irq_suspend_timeout: Option<Nanos>,
    /// Who polls: the softirq (no), a thread per NAPI (yes), a thread that never sleeps (busy), or, in a datapath, a pool of
    /// workers (workqueue)
    #[arg(long, value_name = "WHO")]
    threaded: Option<Threaded>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Threaded {
    No,
    Yes,
    Busy,
    Workqueue,
}

impl Settings {
    /// The bundle of settings that was asked for.
    fn bundle(&self) -> Result<Option<Wanted>, Failure> {
        match (self.mode, &self.file) {
            (Some(mode), _) => Wanted::mode(mode).map(Some),
            (None, Some(file)) => Wanted::file(file).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Single settings win over those of the bundle.
    fn change(&self, bundle: Option<&Wanted>) -> Result<NapiChange, Failure> {
        let mut change = bundle.map(|bundle| NapiChange::to(&bundle.settings.napi)).unwrap_or_default();
        change.defer_hard_irqs = self.defer_hard_irqs.or(change.defer_hard_irqs);
        change.gro_flush_timeout = self.gro_flush_timeout.or(change.gro_flush_timeout);
        change.irq_suspend_timeout = self.irq_suspend_timeout.or(change.irq_suspend_timeout);
        let context = match self.threaded {
            None => None,
            Some(Threaded::No) => Some(PollContext::Softirq),
            Some(Threaded::Yes) => Some(PollContext::Thread),
            Some(Threaded::Busy) => Some(PollContext::BusyThread),
            Some(Threaded::Workqueue) => {
                return Err(Failure::usage(
                    "the Linux kernel has no --threaded workqueue: it exists in the datapath and sim worlds only",
                ));
            }
        };
        change.context = context.or(change.context);
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
        return Err(Failure::usage(format!(
            "--napi names one of the kernel's instances by itself: leave {device} out"
        )));
    }
    let bundle = args.settings.bundle()?;
    let wanted = args.settings.change(bundle.as_ref())?;
    let netns = args.namespace.open()?;
    let mut place = Place::open(&netns)?;
    let (device, target) = find(&mut place, &args, netns.description())?;
    let able = napi_capabilities(place.netlink())?;
    let plan = Plan::new(&mut place, &device, &target, &wanted, able)?;
    for warning in plan.warnings() {
        eprintln!("abey: {warning}");
    }
    let changes: Vec<SettingChange> = plan.steps().iter().flat_map(Step::changes).collect();
    if !args.dry_run {
        plan.apply(place, Some(&args.journals))?.keep();
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
    if let Some(said) = bundle.and_then(|bundle| left_to_the_server(&bundle, args.settings.file.is_some())) {
        eprintln!("abey: {said}");
    }
    print_text(&text)
}

/// What of a bundle is no setting of a NAPI instance, in words.
fn left_to_the_server(bundle: &Wanted, from_file: bool) -> Option<String> {
    let ModeSettings { epoll, max_wait, socket_busy_poll, .. } = bundle.settings;
    let name = &bundle.name;
    match (epoll, from_file) {
        (None, _) if max_wait.is_none() && socket_busy_poll.is_none() => None,
        (Some(_), false) => Some(format!(
            "{name} also needs epoll parameters in the server: start it with `abey run`, or set them in the server"
        )),
        (None, false) => {
            Some(format!("{name} is a matter of the server alone: start it with `abey run --mode {name}`"))
        }
        (_, true) => Some(format!(
            "what {name} says of epoll, waits and sockets belongs to the server: start it with `abey run --settings {name}`"
        )),
    }
}

fn find(place: &mut Place, args: &Args, namespace: &str) -> Result<(Device, Target), Failure> {
    if let Some(id) = args.napi {
        let netlink = place.netlink();
        let found = napi(netlink, id).map_err(|error| {
            let unknown = error.is_not_found();
            let missing = || format!("there is no NAPI {id} in {namespace}: `abey status` lists those there are");
            if unknown { Failure::usage(missing()) } else { error.into() }
        })?;
        let device = devices(netlink)?.into_iter().find(|device| device.ifindex == found.ifindex);
        let device =
            device.ok_or_else(|| Failure::check(format!("the device of NAPI {id} has just gone: try again")))?;
        return Ok((device, Target::Napi(id)));
    }
    let name = args.device.as_deref().expect("clap asks for DEV or --napi");
    let device = device_named(place.netlink(), name, namespace)?;
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
    let restored = restore_abandoned(&args.journals)?;
    let rows: Vec<RestoredRow> = restored
        .iter()
        .flat_map(|restored| {
            let outcome = match restored {
                Restored::Back(_) => "put back",
                Restored::Gone(_) => "gone with its device",
                Restored::LeftToOthers(_) => "left: changed by somebody else since",
                _ => "unknown",
            };
            restored.step().changes().into_iter().map(move |change| RestoredRow { outcome, change })
        })
        .collect();
    if args.json {
        return print_rows(&rows);
    }
    if rows.is_empty() {
        return print_text("nothing to put back: no Abey was killed in the middle of a run\n");
    }
    let mut text = String::new();
    for RestoredRow { outcome, change } in rows {
        let SettingChange { setting, before, after, .. } = &change;
        text += &format!("{}: {setting} {after} -> {before} ({outcome})\n", change.subject());
    }
    print_text(&text)
}
