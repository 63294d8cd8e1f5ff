//! Changes of a running datapath's settings, over its control socket. They end with its process: no journal is kept.

use std::process::ExitCode;

use abey_datapath::control::{self, Change, Status};
use abey_delivery::{ModeSettings, Nanos};
use abey_sim::SettingsFile;
use serde::Serialize;

use super::{Args, Settings, Threaded, nothing_to_set};
use crate::datapath_world::{Datapath, Datapaths};
use crate::failure::Failure;
use crate::output::{print_rows, print_text};

/// One setting that changed: as in the kernel, and whose it is.
#[derive(Serialize)]
struct Row {
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
        return Err(Failure::usage("a datapath is in no network namespace of the kernel's: leave --netns out"));
    }
    let Datapath { client, status } = Datapaths::matching(args.device.as_deref(), args.pid)?.only()?;
    change.napis = napis(args, &status)?;
    let changes = client.set(change.clone())?;
    let row = |change| Row { pid: client.pid(), device: status.nic.clone(), change };
    let rows: Vec<Row> = changes.into_iter().map(row).collect();
    if let Some(said) = left_alone(&change, bundle) {
        eprintln!("abey: {said}");
    }
    if args.json {
        return print_rows(&rows);
    }
    let mut text = String::new();
    if rows.is_empty() {
        text += &format!("{}: nothing to change\n", status.nic);
    }
    for Row { device, change: control::SettingChange { napi, setting, before, after }, .. } in rows {
        let whose = napi.map_or_else(|| ", the whole datapath".to_owned(), |id| format!(" NAPI {id}"));
        let behind = if args.dry_run { " (not changed: dry run)" } else { "" };
        text += &format!("{device}{whose}: {setting} {before} -> {after}{behind}\n");
    }
    print_text(&text)
}

/// The bundle that was asked for, with its name: here every mode will do.
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
        let change = Change {
            all: bundle.copied().map(control::Settings::from),
            defer_hard_irqs: self.defer_hard_irqs,
            gro_flush_timeout_ns: self.gro_flush_timeout.map(Nanos::as_nanos),
            irq_suspend_timeout_ns: self.irq_suspend_timeout.map(Nanos::as_nanos),
            threaded: self.threaded.map(|threaded| match threaded {
                Threaded::No => control::Threaded::No,
                Threaded::Yes => control::Threaded::Yes,
                Threaded::Busy => control::Threaded::Busy,
                Threaded::Workqueue => control::Threaded::Workqueue,
            }),
            ..Change::default()
        };
        if change.is_empty() { Err(nothing_to_set()) } else { Ok(change) }
    }
}

/// The instances that are meant; `None` for all.
fn napis(args: &Args, status: &Status) -> Result<Option<Vec<u32>>, Failure> {
    let nic = &status.nic;
    if let Some(id) = args.napi {
        if status.shards.iter().any(|shard| shard.napi == id) {
            return Ok(Some(vec![id]));
        }
        let there: Vec<String> = status.shards.iter().map(|shard| shard.napi.to_string()).collect();
        return Err(Failure::usage(format!("there is no NAPI {id} in {nic}: it has {}", there.join(", "))));
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

/// What of a bundle was not set because it is the whole datapath's, in words.
fn left_alone(change: &Change, bundle: Option<(String, ModeSettings)>) -> Option<String> {
    let (name, settings) = bundle?;
    let ModeSettings { epoll, max_wait, socket_busy_poll, .. } = settings;
    let has_more = epoll.is_some() || max_wait.is_some() || socket_busy_poll.is_some();
    (change.napis.is_some() && has_more).then(|| {
        format!(
            "what {name} says of epolls, waits and sockets is the whole datapath's and stays as it was: leave out --napi and --queues to set it"
        )
    })
}
