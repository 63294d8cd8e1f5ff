//! `abey status`: the settings and polls of devices and datapaths, and whether a mode is active for a process.

mod datapath;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use abey_delivery::Nanos;
use abey_linux::netns::NetNs;
use abey_linux::overview::{DeviceOverview, Measurement, Overview, all_netns_devices, own_device};
use abey_linux::process::{ProcessError, inspect_tree};
use abey_linux::verdict::judge;
use abey_metrics::status::{Judged, Report};

use self::datapath::Sampling;
use crate::datapath_world::{Datapaths, is_nic};
use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::{document_text, print_text};

/// Show devices, queues, NAPI instances, their polls, and running datapaths; with --pid, judge whether a mode is active for
/// that process, or show its datapaths
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show this network device, or the datapath on this NIC (such as memory:kv) [default: all devices with NAPI instances,
    /// and all datapaths]
    #[arg(value_name = "DEV")]
    device: Option<String>,
    /// Show the datapath of this process, or those of its descendants; if there is none, judge the process and its descendants
    /// (in the network namespace of the process, unless --netns is given)
    #[arg(long, value_name = "P")]
    pid: Option<u32>,
    #[command(flatten)]
    namespace: Namespace,
    /// Count polls for this time, at most 1 minute
    #[arg(long, value_name = "TIME", default_value = "500ms")]
    interval: Nanos,
    /// Repeat every SECONDS, from 0.1 to 60 (1 without a value), and count polls in between; on a terminal redraw in place
    /// until q or Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", conflicts_with_all = ["json", "interval"])]
    watch: Option<f64>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

const LONGEST_INTERVAL: Nanos = Nanos::from_millis(60_000);

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.interval.is_zero() || args.interval > LONGEST_INTERVAL {
        return Err(Failure::usage(format!(
            "--interval {} is out of range: count for more than 0 and at most 1 minute",
            args.interval
        )));
    }
    if let Some(seconds) = args.watch {
        return watch::run(seconds, &|pause| report(&args, pause).map(|(text, _)| text));
    }
    let interval = Duration::from(args.interval);
    let (text, code) = report(&args, &mut || std::thread::sleep(interval))?;
    print_text(&text)?;
    Ok(code)
}

/// Measures during `pause`, and returns the text to print and the exit status.
fn report(args: &Args, pause: &mut dyn FnMut()) -> Result<(String, ExitCode), Failure> {
    if let Some(datapaths) = requested_datapaths(args)? {
        return Ok((datapath::show(datapaths, pause, args.json)?, ExitCode::SUCCESS));
    }
    // A datapath is in no network namespace, and is neither a device nor a process.
    let lists_all = args.device.is_none() && args.pid.is_none() && !args.namespace.is_given();
    let datapaths = if lists_all { Datapaths::all()? } else { Datapaths::default() };
    let processes = args.pid.map(inspect_tree).transpose().map_err(failure)?;
    let netns = match args.pid {
        Some(pid) if !args.namespace.is_given() => NetNs::of_process(pid)?,
        _ => args.namespace.open()?,
    };
    let overview = match Overview::read(&netns, &all_netns_devices()) {
        // A datapath is shown also on a kernel without the netlink interface for NAPI instances.
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
            Failure::usage(format!("there is no network device in {}: give --netns", overview.netns))
        })?),
    };
    let mut listed: Vec<&DeviceOverview> = match named {
        Some(one) => vec![one],
        None => overview.with_napi().collect(),
    };
    if let Some(target) = target.filter(|target| listed.iter().all(|one| one.device.ifindex != target.device.ifindex)) {
        listed.push(target);
    }

    let measurement = Measurement::start(&listed, target.map(|one| one.device.name.as_str()).zip(processes.as_deref()));
    let sampling = Sampling::start(datapaths);
    pause();
    let (datapaths, notes) = sampling.finish();
    // The processes are inspected again while the counters run, to include new sockets.
    let processes = args.pid.map(inspect_tree).transpose().map_err(failure)?;
    let measured = measurement.finish();
    let judged = target.zip(processes).map(|(device, processes)| {
        let verdict = judge(&measured.facts(&overview, device, processes.clone()));
        Judged { processes, verdict }
    });
    let report = Report { overview: &overview, listed, measured, judged, datapaths, notes };
    let text = if args.json { document_text(&report.document())? } else { report.text() };
    match exit(&report) {
        Ok(code) => Ok((text, code)),
        Err(failure) => {
            // The report is printed nevertheless.
            print_text(&text)?;
            Err(failure)
        }
    }
}

/// Returns the datapaths of the requested NIC or process; `None` if the request is for devices.
fn requested_datapaths(args: &Args) -> Result<Option<Datapaths>, Failure> {
    if let Some(nic) = args.device.as_deref().filter(|name| is_nic(name)) {
        if args.namespace.is_given() {
            return Err(Failure::usage("a datapath is in no network namespace: leave --netns out"));
        }
        let Some(pid) = args.pid else { return Datapaths::matching(Some(nic), None).map(Some) };
        let mut all = Datapaths::all()?;
        all.keep_tree(Some(nic), pid)?;
        return if all.reached.is_empty() { Datapaths::matching(Some(nic), Some(pid)) } else { Ok(all) }.map(Some);
    }
    let (None, Some(pid), false) = (&args.device, args.pid, args.namespace.is_given()) else { return Ok(None) };
    let mut all = Datapaths::all()?;
    all.keep_tree(None, pid)?;
    match (all.reached.is_empty(), all.unreachable.pop()) {
        (true, Some(one)) => Err(one.error.into()),
        (is_empty, _) => Ok((!is_empty).then_some(all)),
    }
}

fn exit(report: &Report<'_>) -> Result<ExitCode, Failure> {
    let Some(Judged { verdict, .. }) = &report.judged else { return Ok(ExitCode::SUCCESS) };
    if verdict.is_unknown() {
        let reason = verdict.reasons.first().map(ToString::to_string).unwrap_or_default();
        return Err(Failure::lacks(format!("it is unknown whether {} is active: {reason}", verdict.configured)));
    }
    Ok(if verdict.active { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn failure(error: ProcessError) -> Failure {
    match error {
        ProcessError::NoProcess(_) | ProcessError::IsThread { .. } => Failure::usage(error),
        ProcessError::NoPermission { .. } | ProcessError::NoPidfd => Failure::lacks(error),
        _ => Failure::check(error),
    }
}
