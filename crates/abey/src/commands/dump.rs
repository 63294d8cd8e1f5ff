//! `abey dump`: the present state of devices as a policy for `abey apply`.

use std::process::ExitCode;

use abey_linux::cpu::CpuList;
use abey_linux::machine::Snapshot;
use abey_policy::dump;
use serde::Serialize;

use crate::failure::Failure;
use crate::linux_world::Namespace;
use crate::output::{print_document, print_text};

/// Write the present state of devices as a policy, which changes nothing where it is applied
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Network devices; without any, all that have queues to be set
    #[arg(value_name = "DEV")]
    devices: Vec<String>,
    #[command(flatten)]
    namespace: Namespace,
    /// One JSON document on standard output, with the policy in `policy`, and what each device cannot do in `rows`
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Document {
    policy: String,
    rows: Vec<Row>,
}

/// What a device cannot do.
#[derive(Serialize)]
struct Row {
    device: String,
    lacks: String,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let netns = args.namespace.open()?;
    let snapshot = Snapshot::read(&netns)?;
    for name in &args.devices {
        let Some(state) = snapshot.device(name) else {
            let known: Vec<&str> = snapshot.devices.iter().map(|state| state.device.name.as_str()).collect();
            let (place, known) = (netns.description(), known.join(", "));
            return Err(Failure::usage(format!(
                "there is no network device `{name}` in {place}: the devices are {known}"
            )));
        };
        if state.napis.is_empty() {
            let why = if state.device.up { "no queue of it can be set" } else { "it is down; bring it up first" };
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
        let row = |lack: &abey_linux::machine::Lack| Row { device: state.device.name.clone(), lacks: lack.to_string() };
        rows.extend(state.lacks().into_iter().map(row));
    }
    print_document(&Document { policy, rows })
}
