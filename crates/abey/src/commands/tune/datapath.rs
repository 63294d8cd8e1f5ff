//! A running datapath as something to tune, over its control socket.

use std::time::{Duration, Instant};

use abey_datapath::Counters;
use abey_datapath::control::{Change, Client, ControlError, Latencies, LatencyPage, Napi, Role, Settings, Status};
use abey_delivery::{ModeSettings, Nanos};
use abey_tune::{Latency, Sample};

use super::latency::{UNSEEN, Witness};
use super::name::Name;
use super::tuner::{Plant, Refused};
use crate::datapath_world::Datapath;
use crate::failure::Failure;

/// For how many intervals it goes on measuring latencies that nobody asks for.
const WATCH: u64 = 10;

/// The datapath at work.
pub(crate) struct Served {
    client: Client,
    name: Name,
    /// What leads back, in this order.
    back: Vec<Change>,
    present: ModeSettings,
    changed: bool,
    interval: Duration,
    /// In place of what the datapath sees by itself.
    witness: Option<Box<dyn Witness>>,
    mark: Option<Mark>,
}

/// The counters when an interval began.
struct Mark {
    at: Instant,
    counters: Counters,
    cpu_ns: u64,
    latency: Vec<LatencyPage>,
}

impl Served {
    pub(crate) fn open(
        Datapath { client, status }: Datapath,
        interval: Duration,
        witness: Option<Box<dyn Witness>>,
    ) -> Self {
        let present = present(&status);
        let napis = status.shards.iter().map(|shard| shard.napi).collect();
        let name = Name { device: status.nic.clone(), queues: None, napis };
        Self { client, name, back: back(&status), present, changed: false, interval, witness, mark: None }
    }

    /// What is in force: of several instances, those of the first.
    pub(crate) fn present(&self) -> ModeSettings {
        self.present
    }

    /// Which it is.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.client.pid()
    }

    /// What leads back, for the guard.
    pub(crate) fn back(&self) -> &[Change] {
        &self.back
    }

    /// What would change, one line each.
    pub(crate) fn differences(&self, settings: &ModeSettings) -> Result<Vec<String>, Failure> {
        let changes = self.client.set(Change { dry_run: true, ..to(settings) })?;
        let whose = |napi: Option<u32>| napi.map_or_else(|| "the whole datapath".to_owned(), |id| format!("NAPI {id}"));
        let lines = changes
            .into_iter()
            .map(|change| format!("{}: {} {} -> {}", whose(change.napi), change.setting, change.before, change.after));
        Ok(lines.collect())
    }

    /// Puts the settings back, unless they are to stay.
    pub(crate) fn finish(self, keep: bool) -> Result<(), Failure> {
        if keep || !self.changed {
            return Ok(());
        }
        put_back(&self.client, &self.back)
    }

    fn mark(&self) -> Result<Mark, Failure> {
        let watch = Nanos::from_nanos(self.interval.as_nanos() as u64 * WATCH);
        let latency = if self.witness.is_none() { self.client.latency(watch)? } else { Vec::new() };
        let status = self.client.status()?;
        let one = |name| status.shards.iter().filter_map(|shard| shard.counters.get(name)).sum();
        // Its control thread answers us, and is no cost of the datapath's own.
        let asked = status.contexts.iter().filter(|context| context.role == Some(Role::Control));
        let cpu_ns = status.process_cpu_ns.saturating_sub(asked.map(|context| context.cpu_ns).sum());
        Ok(Mark { at: Instant::now(), counters: Counters::from_named(one), cpu_ns, latency })
    }
}

/// Puts a datapath back to what it was. One that has ended took its settings along.
pub(crate) fn put_back(client: &Client, back: &[Change]) -> Result<(), Failure> {
    for change in back {
        match client.set(change.clone()) {
            Err(ControlError::Gone { .. }) => return Ok(()),
            other => drop(other?),
        }
    }
    Ok(())
}

fn present(status: &Status) -> ModeSettings {
    status.shards.first().map(|shard| settings(status, shard.settings).into()).unwrap_or_default()
}

/// A runtime's settings, with those of one instance.
fn settings(status: &Status, napi: Napi) -> Settings {
    Settings {
        napi,
        busy_poll: status.busy_poll,
        max_wait_ns: status.max_wait_ns,
        socket_busy_poll_ns: status.socket_busy_poll_ns,
    }
}

/// The whole first, which sets what is the runtime's; then each instance that had others.
fn back(status: &Status) -> Vec<Change> {
    let Some(first) = status.shards.first() else { return Vec::new() };
    let all = |napi| Some(settings(status, napi));
    let whole = Change { all: all(first.settings), ..Change::default() };
    let others = status.shards.iter().filter(|shard| shard.settings != first.settings);
    let single =
        others.map(|shard| Change { napis: Some(vec![shard.napi]), all: all(shard.settings), ..Change::default() });
    std::iter::once(whole).chain(single).collect()
}

fn to(settings: &ModeSettings) -> Change {
    Change { all: Some(Settings::from(*settings)), ..Change::default() }
}

impl Plant for Served {
    fn begin(&mut self, changed: bool) -> Result<(), Failure> {
        self.mark = Some(self.mark()?);
        let interval = self.interval;
        self.witness.as_mut().map_or(Ok(()), |witness| witness.begin(interval, changed))
    }

    fn sample(&mut self) -> Result<Sample, Failure> {
        let seen = self.witness.as_mut().map(|witness| witness.take()).transpose()?;
        let seen = seen.map(|seen| seen.unwrap_or(UNSEEN));
        let now = self.mark()?;
        let before = self.mark.take().expect("an interval has begun");
        let counters = now.counters.since(&before.counters);
        let answered = Latencies::between(&before.latency, &now.latency);
        let own = answered.quantile(0.5).zip(answered.quantile(0.99));
        let interval = Nanos::from_nanos((now.at - before.at).as_nanos() as u64);
        Ok(Sample {
            interval,
            packets: counters.packets,
            polls: counters.polls(),
            empty_polls: counters.empty_polls,
            cpu: now.cpu_ns.saturating_sub(before.cpu_ns) as f64 / interval.as_nanos().max(1) as f64,
            latency: seen.or_else(|| own.map(|(p50, p99)| Latency { count: answered.count, p50, p99 })),
        })
    }

    fn apply(&mut self, settings: &ModeSettings) -> Result<(), Refused> {
        match self.client.set(to(settings)) {
            Ok(_) => {
                self.changed = true;
                Ok(())
            }
            Err(ControlError::Refused(refusal)) => Err(Refused::Settings(refusal.to_string())),
            Err(error) => Err(Refused::Lost(error.into())),
        }
    }

    fn is_ready(&mut self) -> Result<bool, Failure> {
        self.witness.as_mut().map_or(Ok(true), |witness| witness.is_ready())
    }
}
