//! Changes the settings of a running datapath over its control socket. They end with its process, so that there is no
//! journal.

use std::process::ExitCode;

use abey_datapath::control::{self, Change, Status};
use abey_delivery::ModeSettings;
use abey_sim::SettingsFile;
use serde::Serialize;

use super::{Args, Settings, nothing_to_set};
use crate::datapath_world::{Datapath, Datapaths};
use crate::failure::Failure;
use crate::output::{print_rows, print_text};

/// One setting that changed, with the process of the datapath.
#[derive(Serialize)]
struct ChangeRow {
    pid: u32,
    device: String,
    #[serde(flatten)]
    change: control::SettingChange,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let bundle = bundle(&args.settings)?;
    let mut change = args.settings.of_datapath(bundle.as_ref().map(|(_, settings)| settings))?;
    change.dry_run = args.dry_run;
    if args.namespace.is_given() {
        return Err(Failure::usage("a datapath does not belong to a network namespace: leave --netns out"));
    }
    let Datapath { client, status } = Datapaths::matching(args.device.as_deref(), args.pid)?.only()?;
    change.napis = napis(args, &status)?;
    let changes = client.set(change.clone())?;
    let row = |change| ChangeRow { pid: client.pid(), device: status.nic.clone(), change };
    let rows: Vec<ChangeRow> = changes.into_iter().map(row).collect();
    if let Some(note) = left_alone(&change, bundle) {
        eprintln!("abey: {note}");
    }
    if args.json {
        return print_rows(&rows);
    }
    let mut text = String::new();
    if rows.is_empty() {
        text += &format!("{}: nothing to change\n", status.nic);
    }
    for ChangeRow { device, change: control::SettingChange { napi, setting, before, after }, .. } in rows {
        let subject = napi.map_or_else(|| ", the whole datapath".to_owned(), |id| format!(" NAPI {id}"));
        let suffix = if args.dry_run { " (not changed: dry run)" } else { "" };
        text += &format!("{device}{subject}: {setting} {before} -> {after}{suffix}\n");
    }
    print_text(&text)
}

/// Returns the settings of --mode or --settings, with their name. A datapath supports every mode.
fn bundle(settings: &Settings) -> Result<Option<(String, ModeSettings)>, Failure> {
    Ok(match (settings.mode, &settings.file) {
        (Some(mode), _) => Some((mode.to_string(), mode.settings())),
        (None, Some(file)) => {
            let SettingsFile { name, settings, .. } = SettingsFile::load(file).map_err(Failure::usage)?;
            Some((name, settings))
        }
        (None, None) => None,
    })
}

impl Settings {
    fn of_datapath(&self, bundle: Option<&ModeSettings>) -> Result<Change, Failure> {
        let change = Change { all: bundle.copied(), ..Change::from(self.single()) };
        if change.is_empty() { Err(nothing_to_set()) } else { Ok(change) }
    }
}

/// Returns the IDs of the selected instances; `None` for all.
fn napis(args: &Args, status: &Status) -> Result<Option<Vec<u32>>, Failure> {
    let nic = &status.nic;
    if let Some(id) = args.napi {
        if status.shards.iter().any(|shard| shard.napi == id) {
            return Ok(Some(vec![id]));
        }
        let known: Vec<String> = status.shards.iter().map(|shard| shard.napi.to_string()).collect();
        return Err(Failure::usage(format!("there is no NAPI {id} in {nic}: it has {}", known.join(", "))));
    }
    if args.queues.is_empty() {
        return Ok(None);
    }
    let napi_of = |queue: &u32| {
        let shard = status.shards.iter().find(|shard| shard.queue == *queue);
        let count = status.shards.len();
        shard
            .map(|shard| shard.napi)
            .ok_or_else(|| Failure::usage(format!("{nic} has no queue {queue}: it has {count}, numbered from 0")))
    };
    args.queues.iter().map(napi_of).collect::<Result<Vec<_>, _>>().map(Some)
}

/// Returns a sentence on the settings of a bundle that apply to the whole datapath and were not set, if there are any.
fn left_alone(change: &Change, bundle: Option<(String, ModeSettings)>) -> Option<String> {
    let (name, settings) = bundle?;
    let ModeSettings { epoll, max_wait, socket_busy_poll, .. } = settings;
    let has_more = epoll.is_some() || max_wait.is_some() || socket_busy_poll.is_some();
    (change.napis.is_some() && has_more).then(|| {
        format!(
            "the settings of epoll, waits and sockets in {name} apply to the whole datapath and were not changed: leave out --napi and --queues to set them"
        )
    })
}
