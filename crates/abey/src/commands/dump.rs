//! `abey dump`: writes the present state of devices as a policy for `abey apply`.

use std::process::ExitCode;

use abey_linux::cpu::CpuList;
use abey_linux::machine::Snapshot;
use abey_policy::dump;
use serde::Serialize;

use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::{print_document, print_text};

/// Write the present state of devices as a policy; applying it there changes nothing
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Network devices [default: all with NAPI instances]
    #[arg(value_name = "DEV")]
    devices: Vec<String>,
    #[command(flatten)]
    namespace: Namespace,
    /// Print one JSON document, with the policy in `policy` and the unsupported features of each device in `rows`
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    policy: String,
    rows: Vec<UnsupportedRow>,
}

/// A feature that a device does not support.
#[derive(Serialize)]
struct UnsupportedRow {
    device: String,
    lacks: String,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let netns = args.namespace.open()?;
    let snapshot = Snapshot::read(&netns)?;
    for name in &args.devices {
        let Some(state) = snapshot.device(name) else {
            let known: Vec<&str> = snapshot.devices.iter().map(|state| state.device.name.as_str()).collect();
            let (namespace, known) = (netns.description(), known.join(", "));
            return Err(Failure::usage(format!(
                "there is no network device `{name}` in {namespace}: the devices are {known}"
            )));
        };
        if state.napis.is_empty() {
            let why = if state.device.up { "its driver has none" } else { "bring the device up first" };
            return Err(Failure::lacks(format!("{name} has no NAPI instance: {why}")));
        }
    }
    let online = CpuList::online().map_err(Failure::lacks)?;
    let wanted = |name: &String| args.devices.is_empty() || args.devices.contains(name);
    let policy = dump(&snapshot, &online, |state| wanted(&state.device.name));
    if !args.json {
        return print_text(&policy);
    }
    let mut rows = Vec::new();
    for state in snapshot.devices.iter().filter(|state| !state.napis.is_empty() && wanted(&state.device.name)) {
        let row = |feature: &abey_linux::machine::Unavailable| UnsupportedRow {
            device: state.device.name.clone(),
            lacks: feature.to_string(),
        };
        rows.extend(state.unavailable().into_iter().map(row));
    }
    print_document(&Document { policy, rows })
}
