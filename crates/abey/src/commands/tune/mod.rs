//! `abey tune`: finds settings while a server runs, and follows its load.

mod goal;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use abey_delivery::{Family, Nanos};
use abey_linux::cpu::CpuList;
use abey_reconcile::{JOURNAL_DIRECTORY, PolicyFiles, RUNTIME_UNITS, Target, restore_abandoned};
use abey_tune::Goal;
use abey_tuner::TuneError;
use abey_tuner::datapath::DatapathTarget;
use abey_tuner::device::{GroupOptions, GroupRequest};
use abey_tuner::group::{Group, TuneTarget};
use abey_tuner::host::{Host, SharedHost};
use abey_tuner::kernel::KernelTarget;
use abey_tuner::latency::LatencySource;
use abey_tuner::policy::PolicyRequest;
use abey_tuner::report::TuneRow;
use abey_tuner::server::Server;
use abey_tuner::session::{Session, SessionOptions, SessionOutput};

pub(crate) use self::goal::{GoalArgs, ProbeArgs};
use crate::commands::guard;
use crate::datapath_world::{Datapaths, is_nic};
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::{print_rows, print_text};
use crate::signals;

/// The largest number of rows in a JSON document: more than a day of the shortest intervals.
const MAX_ROWS: usize = 1 << 20;

/// Find the settings that meet a goal while the server runs, and follow its load
///
/// Measures in intervals, changes gro-flush-timeout, irq-suspend-timeout and the mode within the bounds, and prints the reason
/// of each change in one line. All settings are restored at the end, unless --keep is given.
///
/// NAPI instances are tuned separately where polls and CPU time are measured per instance: on a device, without a source of
/// latencies and without a named server. Instances that one CPU polls are tuned together. A probe, a latency file and a server
/// (--probe, --latencies, --pid, --cpus) give one figure for all queues, so all are tuned together; --group requests that. A
/// datapath is tuned as a whole, because CPU time and busy-poll parameters belong to its process.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Network device, or NIC of a running datapath such as memory:kv
    #[arg(value_name = "DEV", required_unless_present_any = ["pid", "policy"])]
    device: Option<String>,
    /// Tune the queues of a policy's `tune` tables, each rule for its own goal within its own bounds; with DEV only that
    /// device [default: /etc/abey/policy.toml and /etc/abey/policy.d]
    #[arg(long, value_name = "FILE|DIR", num_args = 0..=1, conflicts_with_all = ["goal", "gro_flush_timeout",
        "irq_suspend_timeout", "families", "queues", "pid", "cpus"])]
    policy: Option<Vec<PathBuf>>,
    #[command(flatten)]
    goal: GoalArgs,
    /// Tune only the NAPI instances of these receive queues of DEV
    #[arg(long, value_name = "N,..", value_delimiter = ',', requires = "device")]
    queues: Vec<u32>,
    /// Process of the server. With a device, its epoll instances and those of its children get the mode's busy-poll
    /// parameters; without one, tune the datapath of this process
    #[arg(long, value_name = "P")]
    pid: Option<u32>,
    /// Count the time of these CPUs [default: those that the process of --pid may run on; without it those that poll the
    /// instance, or all with --group, --probe and --latencies; for a datapath the time of its process]
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuList>,
    /// Tune all instances together, even where each could be tuned separately
    #[arg(long)]
    group: bool,
    /// Estimate latencies from the timeout, polls and CPU time, for a goal p99=TIME without measurements. Half of the goal
    /// is reserved for the network, which the estimate does not include
    #[arg(long, conflicts_with_all = ["probe", "latencies"])]
    estimate: bool,
    #[command(flatten)]
    probe: ProbeArgs,
    /// Read latencies from a FIFO, a file or standard input (-), in lines such as
    /// {"count":5000,"p50_us":40.5,"p99_us":180.2,"interval_ms":250}
    #[arg(long, value_name = "FILE", conflicts_with = "probe")]
    latencies: Option<PathBuf>,
    /// Length of one interval
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    interval: Nanos,
    /// End after this time [default: at SIGINT or SIGTERM]
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Nanos>,
    /// Print what would be changed under the present settings, and change nothing
    #[arg(long, conflicts_with = "keep")]
    dry_run: bool,
    /// Leave the last settings in force at the end
    #[arg(long)]
    keep: bool,
    /// Print the decision of every interval, also without a change
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    namespace: Namespace,
    /// Print one JSON document at the end, with a row for each interval
    #[arg(long)]
    json: bool,
    /// Directory of the journals
    #[arg(long, hide = true, default_value = JOURNAL_DIRECTORY)]
    journals: PathBuf,
}

impl Args {
    fn group_options(&self) -> GroupOptions {
        GroupOptions { interval: self.interval.into(), together: self.group, dry_run: self.dry_run }
    }

    fn latency_source(&self) -> Result<Option<Box<dyn LatencySource>>, Failure> {
        self.probe.open(self.latencies.as_deref(), &self.namespace)
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let allowed = Nanos::from_millis(100)..=Nanos::from_millis(60_000);
    if !allowed.contains(&args.interval) {
        return Err(Failure::usage(format!(
            "--interval {} is out of range: give a time from 100ms to 60s",
            args.interval
        )));
    }
    if args.duration.is_some_and(|duration| duration < args.interval) {
        return Err(Failure::usage("--for is shorter than one --interval: nothing would be measured"));
    }
    if let Some(paths) = &args.policy {
        let policy = PolicyFiles::new(paths).read()?;
        if !policy.tunes() {
            return Err(Failure::usage(
                "the policy does not say how to tune anything: give a [[device.queues]] table a line such as \
                 tune = { goal = \"p99=250us\" }",
            ));
        }
        return tune_kernel(&args, |host| {
            let (device, latency_source) = (args.device.as_deref(), args.latency_source()?);
            let request = PolicyRequest { policy: &policy, device, latency_source, estimate: args.estimate };
            Ok(request.groups(args.group_options(), host)?)
        });
    }
    let goal = args.goal.wanted()?;
    // Checked before any device is read.
    args.goal.bounds(&[Family::Base])?;
    if args.device.as_deref().is_none_or(is_nic) {
        return tune_datapath(&args, goal);
    }
    if args.probe.probe.is_none() && args.latencies.is_none() && !args.estimate && matches!(goal, Goal::P99(_)) {
        return Err(without_latencies(goal));
    }
    tune_kernel(&args, |host| device_groups(&args, goal, host))
}

/// Tunes groups of the kernel's instances in the network namespace.
fn tune_kernel(
    args: &Args,
    groups: impl FnOnce(&SharedHost) -> Result<Vec<Group>, Failure>,
) -> Result<ExitCode, Failure> {
    let signals = signals::catch_with_hangup()?;
    if !args.dry_run && !restore_abandoned(&args.journals, Path::new(RUNTIME_UNITS))?.is_empty() {
        eprintln!("abey: restored the settings that a killed abey had left");
    }
    // The groups share the host: the last one that ends restores its settings.
    let groups = groups(&Host::open(args.namespace.open()?, args.journals.clone())?)?;
    for group in &groups {
        if let TuneTarget::Kernel(kernel) = group.target() {
            eprintln!("abey: {} on {}; CPU time is that of {}", group.goal(), kernel.name(), kernel.cpus());
        }
    }
    run_session(args, groups, signals)
}

/// Creates the groups of the device on the command line.
fn device_groups(args: &Args, goal: Goal, host: &SharedHost) -> Result<Vec<Group>, Failure> {
    let name = args.device.as_deref().expect("clap requires DEV, --pid or --policy");
    let device = host.borrow_mut().device(name)?;
    let target = if args.queues.is_empty() { Target::Device } else { Target::Queues(args.queues.clone()) };
    let server = Server::of_processes(args.pid.into_iter().collect())?;
    let (latency_source, cpus, is_of_policy) = (args.latency_source()?, args.cpus.clone(), false);
    let request = GroupRequest { device, target, goal, latency_source, server, cpus, is_of_policy };
    let bounds = |kernel: &KernelTarget| {
        let available = kernel.families(&args.goal.families)?;
        args.goal.bounds(&available).map_err(|failure| TuneError::Usage(failure.to_string()))
    };
    Ok(request.groups(args.group_options(), 0, host, &bounds)?)
}

fn tune_datapath(args: &Args, goal: Goal) -> Result<ExitCode, Failure> {
    if !args.queues.is_empty() {
        return Err(Failure::usage(
            "the CPU time and the busy-poll parameters of a datapath belong to its process: leave --queues out",
        ));
    }
    if args.cpus.is_some() {
        return Err(Failure::usage("the CPU time of a datapath is that of its process: leave --cpus out"));
    }
    if args.estimate {
        return Err(Failure::usage("a datapath measures latencies itself: leave --estimate out"));
    }
    let signals = signals::catch_with_hangup()?;
    let found = Datapaths::matching(args.device.as_deref(), args.pid)?.only()?;
    let name = format!("{} of {} (pid {})", found.status.nic, found.status.program, found.client.pid());
    let target = DatapathTarget::open(found.client, &found.status, args.interval.into(), args.latency_source()?);
    let bounds = args.goal.bounds(&[Family::Base, Family::Defer, Family::Suspend])?;
    let present = target.present();
    eprintln!("abey: {goal} on {name}");
    let group = Group::new((0, goal, bounds), TuneTarget::Datapath(Box::new(target)), present, args.dry_run)?;
    run_session(args, vec![group], signals)
}

fn run_session(
    args: &Args,
    groups: Vec<Group>,
    signals: abey_supervise::signals::Signals,
) -> Result<ExitCode, Failure> {
    let guard = (!args.dry_run && !args.keep).then(|| guard::start(&args.journals)).transpose()?;
    let (interval, duration) = (args.interval.into(), args.duration.map(Into::into));
    let options = SessionOptions { interval, duration, dry_run: args.dry_run, keep: args.keep };
    let mut output = Output { args, rows: Vec::new() };
    let summaries = Session::new(options, groups, signals, guard, &mut output).run()?;
    let stay = if args.keep { ", which stay" } else { "" };
    summaries.iter().for_each(|summary| eprintln!("abey: {summary}{stay}"));
    if args.json { print_rows(&output.rows) } else { Ok(ExitCode::SUCCESS) }
}

/// Prints lines as they come, or collects rows for the JSON document.
struct Output<'a> {
    args: &'a Args,
    rows: Vec<TuneRow>,
}

impl SessionOutput for Output<'_> {
    fn line(&mut self, text: &str) -> Result<(), TuneError> {
        if self.args.json {
            return Ok(());
        }
        print_text(&format!("{text}\n")).map(drop).map_err(|failure| TuneError::Failed(failure.to_string()))
    }

    fn decision(&mut self, row: TuneRow, is_reported: bool) -> Result<(), TuneError> {
        if is_reported || self.args.all {
            self.line(&row.line(self.args.dry_run))?;
        }
        if self.args.json && self.rows.len() < MAX_ROWS {
            self.rows.push(row);
        }
        Ok(())
    }
}

/// Returns the failure of a goal that needs latencies where there is no source of them.
pub(crate) fn without_latencies(goal: Goal) -> Failure {
    Failure::usage(format!(
        "--goal {goal} needs latencies, which the kernel does not measure: give --probe HOST:PORT, or let a client write them \
         (--latencies FILE); `abey tune --estimate` estimates them from polls and CPU time; a datapath measures them itself, \
         and --goal cpu=N% needs none"
    ))
}
