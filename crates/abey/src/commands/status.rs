//! `abey status`: how devices and datapaths deliver, who polls them, and whether a mode is active for a process.

mod datapath;
mod json;
mod tables;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use abey_delivery::{Nanos, PollContext};
use abey_linux::netns::NetNs;
use abey_linux::overview::{DeviceOverview, Overview, Watch, Watched, neighbours, own_device};
use abey_linux::process::{ProcessError, ProcessView, inspect_tree};
use abey_linux::verdict::{Verdict, describe_device, judge};

use self::datapath::{Sampled, Sampling};
use crate::datapath_world::{Datapaths, is_nic};
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::print_text;

/// Show devices, queues, NAPI instances and who polls them, and running datapaths; with --pid, whether a mode is active for
/// that process, or what its datapath does
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The network device, or the NIC of a running datapath (such as memory:kv); without it, every device that has NAPI
    /// instances, and every datapath
    #[arg(value_name = "DEV")]
    device: Option<String>,
    /// Show this process's datapath; if it has none, judge the process and its descendants (in its own network namespace,
    /// unless --netns is given)
    #[arg(long, value_name = "P")]
    pid: Option<u32>,
    #[command(flatten)]
    namespace: Namespace,
    /// How long to count polls (up to 1 minute)
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    interval: Nanos,
    /// Show it again every so many seconds (from 0.1 to 60, 1 if not said), each time counted over them: on a terminal in
    /// place, until q or Ctrl-C; elsewhere one after the other
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", conflicts_with_all = ["json", "interval"])]
    watch: Option<f64>,
    /// One JSON document on standard output
    #[arg(long)]
    json: bool,
}

const LONGEST_INTERVAL: Nanos = Nanos::from_millis(60_000);

/// Everything that is shown.
struct Status<'a> {
    overview: &'a Overview,
    listed: Vec<&'a DeviceOverview>,
    watched: Watched,
    judged: Option<Judged>,
    datapaths: Vec<Sampled>,
    /// What else is to be said.
    notes: Vec<String>,
}

struct Judged {
    processes: Vec<ProcessView>,
    verdict: Verdict,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.interval.is_zero() || args.interval > LONGEST_INTERVAL {
        return Err(Failure::usage(format!(
            "--interval {} is out of range: count for more than 0 and at most 1 minute",
            args.interval
        )));
    }
    if let Some(seconds) = args.watch {
        return watch::run(seconds, &|pause| look(&args, pause).map(|(text, _)| text));
    }
    let interval = Duration::from(args.interval);
    let (text, code) = look(&args, &mut || std::thread::sleep(interval))?;
    print_text(&text)?;
    Ok(code)
}

/// One look at what was asked for, for as long as `pause` takes: what is to be printed, and the exit status.
fn look(args: &Args, pause: &mut dyn FnMut()) -> Result<(String, ExitCode), Failure> {
    if let Some(datapaths) = asked_for(args)? {
        return Ok((datapath::show(datapaths, pause, args.json)?, ExitCode::SUCCESS));
    }
    // A datapath is in no namespace, and no answer to a question about a device or a process.
    let lists_all = args.device.is_none() && args.pid.is_none() && !args.namespace.is_given();
    let datapaths = if lists_all { Datapaths::all()? } else { Datapaths::default() };
    let processes = args.pid.map(inspect_tree).transpose().map_err(failure)?;
    let netns = match args.pid {
        Some(pid) if !args.namespace.is_given() => NetNs::of_process(pid)?,
        _ => args.namespace.open()?,
    };
    let overview = match Overview::read(&netns, &neighbours()) {
        // The kernels that have nothing to show are those that datapaths are for.
        Err(error) if !datapaths.reached.is_empty() => {
            eprintln!("abey: the kernel's devices are not shown: {error}");
            return Ok((datapath::show(datapaths, pause, args.json)?, ExitCode::SUCCESS));
        }
        other => other?,
    };
    let named = args.device.as_deref().map(|name| overview.device(name)).transpose()?;
    let target = match &processes {
        None => None,
        Some(views) => Some(named.or_else(|| own_device(&overview, views)).ok_or_else(|| {
            Failure::usage(format!("there is no network device in {}: give --netns", overview.place))
        })?),
    };
    let mut listed: Vec<&DeviceOverview> = match named {
        Some(one) => vec![one],
        None => overview.with_napi().collect(),
    };
    if let Some(target) = target.filter(|target| listed.iter().all(|one| one.device.ifindex != target.device.ifindex)) {
        listed.push(target);
    }

    let watch = Watch::start(&listed, target.map(|one| one.device.name.as_str()).zip(processes.as_deref()));
    let sampling = Sampling::start(datapaths);
    pause();
    let (datapaths, notes) = sampling.finish();
    // The processes are looked at once more while counting goes on: sockets that came meanwhile are in.
    let processes = args.pid.map(inspect_tree).transpose().map_err(failure)?;
    let watched = watch.finish();
    let judged = target.zip(processes).map(|(device, processes)| {
        let verdict = judge(&watched.facts(&overview, device, processes.clone()));
        Judged { processes, verdict }
    });
    let status = Status { overview: &overview, listed, watched, judged, datapaths, notes };
    let text = if args.json { json::text(&status)? } else { tables::text(&status) };
    match exit(&status) {
        Ok(code) => Ok((text, code)),
        Err(failure) => {
            // What was seen is shown all the same.
            print_text(&text)?;
            Err(failure)
        }
    }
}

/// The datapaths that are meant, if it is they: by the name of a NIC, or by a process that has some.
fn asked_for(args: &Args) -> Result<Option<Datapaths>, Failure> {
    if let Some(nic) = args.device.as_deref().filter(|name| is_nic(name)) {
        if args.namespace.is_given() {
            return Err(Failure::usage("a datapath is in no network namespace of the kernel's: leave --netns out"));
        }
        return Datapaths::matching(Some(nic), args.pid).map(Some);
    }
    let (None, Some(pid), false) = (&args.device, args.pid, args.namespace.is_given()) else { return Ok(None) };
    let mut all = Datapaths::all()?;
    all.keep(None, Some(pid));
    match (all.reached.is_empty(), all.unreachable.pop()) {
        (true, Some(one)) => Err(one.error.into()),
        (is_empty, _) => Ok((!is_empty).then_some(all)),
    }
}

fn exit(status: &Status<'_>) -> Result<ExitCode, Failure> {
    let Some(Judged { verdict, .. }) = &status.judged else { return Ok(ExitCode::SUCCESS) };
    if verdict.is_unknown() {
        let reason = verdict.reasons.first().map(ToString::to_string).unwrap_or_default();
        return Err(Failure::lacks(format!("whether {} is active cannot be told: {reason}", verdict.configured)));
    }
    Ok(if verdict.active { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The verdicts on devices, when no process was given.
fn device_sentences(status: &Status<'_>) -> Vec<String> {
    let namespace = status.overview.network_namespace;
    let describe = |one: &&DeviceOverview| {
        let unwatched = || Err("it was not watched".to_owned());
        let polls = status.watched.polls.get(&one.device.name).cloned().unwrap_or_else(unwatched);
        describe_device(&one.facts(namespace), &polls)
    };
    status.listed.iter().map(describe).collect()
}

/// What could not be read or told, each once.
fn notes(status: &Status<'_>) -> Vec<String> {
    let mut notes = status.notes.clone();
    for one in &status.listed {
        let name = &one.device.name;
        if let Some(Err(why)) = status.watched.polls.get(name) {
            notes.push(format!("polls are not counted: {why}"));
        }
        if let Err(why) = &one.gro {
            notes.push(why.clone());
        }
        if let Some(Err(why)) = &one.peer {
            notes.push(why.clone());
        }
        if let Some(Err(why)) = one.peer.as_ref().and_then(|peer| peer.as_ref().ok()).map(|peer| &peer.tso) {
            notes.push(why.clone());
        }
        for napi in &one.napis {
            let unread = [&napi.irq_cpus, &napi.thread_cpus].into_iter().flatten();
            notes.extend(unread.filter_map(|cpus| cpus.as_ref().err().cloned()));
        }
        if !one.namesakes.is_empty() {
            notes.push(format!(
                "polls of {name} include those of devices of the same name in {}: counters tell devices by name only",
                one.namesakes.join(", ")
            ));
        }
    }
    if let Err(why) = &status.watched.timer_expiries {
        notes.push(format!("deferral timers are not counted: {why}"));
    }
    let mut seen = std::collections::BTreeSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    notes
}

/// The words of `abey set --threaded`.
fn threaded(context: PollContext) -> &'static str {
    match context {
        PollContext::Softirq => "no",
        PollContext::BusyThread => "busy",
        PollContext::Thread | PollContext::Workqueue => "yes",
    }
}

fn failure(error: ProcessError) -> Failure {
    match error {
        ProcessError::NoProcess(_) | ProcessError::IsThread { .. } => Failure::usage(error),
        ProcessError::NoPermission { .. } | ProcessError::NoPidfd => Failure::lacks(error),
        _ => Failure::check(error),
    }
}
