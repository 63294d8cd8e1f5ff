//! `abey tune`: finds good settings while a server runs, and follows its load.

mod datapath;
mod device;
mod goal;
mod group;
mod kernel;
mod latency;
mod machine;
mod meter;
mod name;
mod part;
mod policy;
mod probe;
mod report;
mod server;
mod session;
mod split;
mod tuner;

use std::path::PathBuf;
use std::process::ExitCode;

use abey_delivery::{Family, Nanos};
use abey_linux::apply::{JOURNAL_DIRECTORY, restore_abandoned};
use abey_linux::cpu::CpuList;
use abey_tune::Goal;

pub(crate) use datapath::{Served, put_back};
pub(crate) use goal::GoalArgs;
pub(crate) use group::{Tuned, controller};
pub(crate) use kernel::Kernel;
pub(crate) use latency::{Feed, Witness};
pub(crate) use part::Subject;
pub(crate) use probe::{Probe, ProbeArgs};
pub(crate) use report::Row;
pub(crate) use tuner::Tuner;

use self::group::Group;
use self::machine::Machine;
use self::session::Session;
use crate::datapath_world::{Datapaths, is_nic};
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::signals::Signals;

/// Find the settings that meet a goal, while the server runs, and follow its load
///
/// Measures in intervals, changes gro-flush-timeout, irq-suspend-timeout and the mode within the bounds, and says why in one
/// line. What it changed is put back when it ends, however it ends, unless it is told to keep it.
///
/// Each NAPI instance is steered by itself, by its own polls and the time of the CPUs that poll it, where those are seen for
/// each: on a device, if nobody sees latencies and no server is named. Those that one CPU polls are steered together. A probe,
/// a client and a server (--probe, --latencies, --pid, --cpus) give one figure for all queues, so all are steered together;
/// --group asks for that. A datapath is steered as a whole: its CPU time and its busy-poll parameters are the process's.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The network device, or the NIC of a running datapath (such as memory:kv)
    #[arg(value_name = "DEV", required_unless_present_any = ["pid", "policy"])]
    device: Option<String>,
    /// Tune what the `tune` tables of a policy name, each rule's queues for its own goal within its own bounds; with DEV only
    /// that device. Files and directories of them; without any, /etc/abey/policy.toml and /etc/abey/policy.d
    #[arg(long, value_name = "FILE|DIR", num_args = 0..=1, conflicts_with_all = ["goal", "gro_flush_timeout",
        "irq_suspend_timeout", "families", "queues", "pid", "cpus"])]
    policy: Option<Vec<PathBuf>>,
    #[command(flatten)]
    goal: GoalArgs,
    /// Only the NAPI instances that serve these receive queues of DEV
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "device")]
    queues: Vec<u32>,
    /// The server's process: with a device, its epoll instances and those of its children get the busy-poll parameters of
    /// the mode while it runs; without one, the process whose datapath is meant
    #[arg(long, value_name = "P")]
    pid: Option<u32>,
    /// The CPUs whose time counts [default: those that the process of --pid may run on; without it those that poll the
    /// instance, or all for --group, --probe and --latencies; of a datapath always its process's]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Steer all instances together also where each could be steered by itself
    #[arg(long)]
    group: bool,
    /// For a goal p99=TIME that nobody sees: estimate how long packets wait, from the timeout, polls and CPU time. It knows
    /// nothing of the network, so half of the goal is left to that
    #[arg(long, conflicts_with_all = ["probe", "latencies"])]
    estimate: bool,
    #[command(flatten)]
    probe: ProbeArgs,
    /// Read latencies from a FIFO, a file or standard input (-), lines such as
    /// {"count":5000,"p50_us":40.5,"p99_us":180.2,"interval_ms":250}
    #[arg(long, value_name = "FILE", conflicts_with = "probe")]
    latencies: Option<PathBuf>,
    /// How long one measurement takes
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    interval: Nanos,
    /// End after this long [default: at SIGINT or SIGTERM]
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Nanos>,
    /// Say what would be changed, from what is seen under the settings that are in force, and change nothing
    #[arg(long, conflicts_with = "keep")]
    dry_run: bool,
    /// Leave the last settings in force at the end
    #[arg(long)]
    keep: bool,
    /// Say what every interval led to, whether or not it is a change
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    namespace: Namespace,
    /// One JSON document on standard output at the end, with a row for each interval
    #[arg(long)]
    json: bool,
    /// Where journals are kept
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let allowed = Nanos::from_millis(100)..=Nanos::from_millis(60_000);
    if !allowed.contains(&args.interval) {
        return Err(Failure::usage(format!("--interval {} is out of range: it goes from 100ms to 60s", args.interval)));
    }
    if args.duration.is_some_and(|duration| duration < args.interval) {
        return Err(Failure::usage("--for is shorter than one --interval: nothing would be measured"));
    }
    if let Some(paths) = &args.policy {
        let policy = policy::read(paths)?;
        return tune_kernel(&args, |machine| policy::groups(&args, &policy, machine));
    }
    let goal = args.goal.wanted()?;
    // Refused before anybody is asked anything.
    args.goal.bounds(&[Family::Base])?;
    if args.device.as_deref().is_none_or(is_nic) {
        return tune_datapath(&args, goal);
    }
    if args.probe.probe.is_none() && args.latencies.is_none() && !args.estimate && matches!(goal, Goal::P99(_)) {
        return Err(nobody_sees(goal));
    }
    tune_kernel(&args, |machine| device::groups(&args, goal, machine))
}

/// Before there is any other thread, to which a signal could go. From here on none ends this process by itself.
fn signals() -> Result<Signals, Failure> {
    Signals::catch().map_err(|error| Failure::lacks(format!("cannot catch signals: {error}")))
}

/// Tunes the groups that there are on the kernel of the namespace.
fn tune_kernel(
    args: &Args,
    groups: impl FnOnce(&machine::Shared) -> Result<Vec<Group>, Failure>,
) -> Result<ExitCode, Failure> {
    let ends = signals()?;
    if !args.dry_run && !restore_abandoned(&args.journals)?.is_empty() {
        eprintln!("abey: put back the settings that an abey that was killed had left");
    }
    // The groups hold the machine: the last one that ends puts back what was changed on it.
    let groups = groups(&Machine::open(args.namespace.open()?, args.journals.clone())?)?;
    for group in &groups {
        if let Tuned::Kernel(kernel) = &group.tuned {
            eprintln!("abey: {} on {}; CPU time is that of {}", group.goal(), kernel.name(), kernel.cpus());
        }
    }
    Session::begin(args, groups, ends)?.run()
}

fn tune_datapath(args: &Args, goal: Goal) -> Result<ExitCode, Failure> {
    if !args.queues.is_empty() {
        return Err(Failure::usage(
            "the CPU time and the busy-poll parameters of a datapath are its process's: leave --queues out",
        ));
    }
    if args.cpus.is_some() {
        return Err(Failure::usage("the CPU time of a datapath is that of its process: leave --cpus out"));
    }
    if args.estimate {
        return Err(Failure::usage("a datapath sees latencies by itself: leave --estimate out"));
    }
    let ends = signals()?;
    let found = Datapaths::matching(args.device.as_deref(), args.pid)?.only()?;
    let name = format!("{} of {} (pid {})", found.status.nic, found.status.program, found.client.pid());
    let served = Served::open(found, args.interval.into(), witness(args)?);
    let bounds = args.goal.bounds(&[Family::Base, Family::Defer, Family::Suspend])?;
    let present = served.present();
    eprintln!("abey: {goal} on {name}");
    let group = Group::new((0, goal, bounds), Tuned::Datapath(Box::new(served)), present, args.dry_run)?;
    Session::begin(args, vec![group], ends)?.run()
}

/// Whoever sees latencies, if somebody was named.
fn witness(args: &Args) -> Result<Option<Box<dyn Witness>>, Failure> {
    Ok(match (&args.probe.probe, &args.latencies) {
        (Some(target), _) => Some(Box::new(Probe::start(&args.probe, target, &args.namespace)?)),
        (None, Some(path)) => Some(Box::new(Feed::open(path)?)),
        (None, None) => None,
    })
}

pub(crate) fn nobody_sees(goal: Goal) -> Failure {
    Failure::usage(format!(
        "--goal {goal} needs somebody who sees latencies, which the kernel does not: give --probe HOST:PORT, or let a client \
         write what it sees (--latencies FILE); `abey tune --estimate` makes do with polls and CPU time; a datapath sees them \
         by itself, and --goal cpu=N% needs none"
    ))
}
