//! A running datapath as a target, through its control socket.

use std::time::{Duration, Instant};

use abey_datapath::Counters;
use abey_datapath::control::{Change, Client, ControlError, Latencies, LatencyPage, Role, Status};
use abey_delivery::{ModeSettings, Nanos, NapiSettings};
use abey_supervise::guard::make_changes;
use abey_tune::{Latency, Sample};

use crate::TuneError;
use crate::latency::{LatencySource, NO_REQUESTS};
use crate::name::TargetName;
use crate::tuner::{ApplyFailure, Tunable};

/// The number of intervals after which the datapath stops measuring latencies that have not been read.
const LATENCY_LEASE: u64 = 10;

/// A datapath.
pub struct DatapathTarget {
    client: Client,
    name: TargetName,
    /// The changes that restore it, in this order.
    undo: Vec<Change>,
    present: ModeSettings,
    has_changed: bool,
    interval: Duration,
    /// Replaces the datapath's own measurements.
    latency_source: Option<Box<dyn LatencySource>>,
    start: Option<Reading>,
}

/// Counters at one moment.
struct Reading {
    at: Instant,
    counters: Counters,
    cpu_ns: u64,
    latency: Vec<LatencyPage>,
}

impl DatapathTarget {
    /// Creates the target of a datapath with this status. Changes nothing.
    pub fn open(
        client: Client,
        status: &Status,
        interval: Duration,
        latency_source: Option<Box<dyn LatencySource>>,
    ) -> Self {
        let napis = status.shards.iter().map(|shard| shard.napi).collect();
        let name = TargetName { device: status.nic.clone(), queues: None, napis };
        let (undo, present) = (undo(status), present(status));
        Self { client, name, undo, present, has_changed: false, interval, latency_source, start: None }
    }

    /// Returns the settings from before; of several instances, those of the first.
    pub fn present(&self) -> ModeSettings {
        self.present
    }

    /// Returns the target's name.
    pub fn name(&self) -> &TargetName {
        &self.name
    }

    /// Returns its process.
    pub fn pid(&self) -> u32 {
        self.client.pid()
    }

    /// Returns the changes that restore it.
    pub fn undo(&self) -> &[Change] {
        &self.undo
    }

    /// Describes what a change would do, one line for each setting.
    ///
    /// # Errors
    /// When the datapath does not answer or refuses the change.
    pub fn differences(&self, settings: &ModeSettings) -> Result<Vec<String>, TuneError> {
        let changes = self.client.set(Change { dry_run: true, ..change_to(settings) })?;
        let scope = |napi: Option<u32>| napi.map_or_else(|| "the whole datapath".to_owned(), |id| format!("NAPI {id}"));
        let lines = changes
            .into_iter()
            .map(|change| format!("{}: {} {} -> {}", scope(change.napi), change.setting, change.before, change.after));
        Ok(lines.collect())
    }

    /// Restores the settings, or leaves them with `keep`. A datapath that has ended needs no restoring.
    ///
    /// # Errors
    /// When the datapath refuses.
    pub fn finish(self, keep: bool) -> Result<(), TuneError> {
        if keep || !self.has_changed {
            return Ok(());
        }
        Ok(make_changes(&self.client, &self.undo)?)
    }

    fn read(&self) -> Result<Reading, TuneError> {
        let lease = Nanos::from_nanos(self.interval.as_nanos() as u64 * LATENCY_LEASE);
        let latency = if self.latency_source.is_none() { self.client.latency(lease)? } else { Vec::new() };
        let status = self.client.status()?;
        let sum = |name| status.shards.iter().filter_map(|shard| shard.counters.get(name)).sum();
        // The time of the control thread is the cost of asking.
        let control = status.contexts.iter().filter(|context| context.role == Some(Role::Control));
        let cpu_ns = status.process_cpu_ns.saturating_sub(control.map(|context| context.cpu_ns).sum());
        Ok(Reading { at: Instant::now(), counters: Counters::from_named(sum), cpu_ns, latency })
    }
}

fn present(status: &Status) -> ModeSettings {
    status.shards.first().map(|shard| settings(status, shard.settings)).unwrap_or_default()
}

/// Returns a runtime's settings, with those of one instance.
fn settings(status: &Status, napi: NapiSettings) -> ModeSettings {
    ModeSettings {
        napi,
        epoll: status.busy_poll,
        max_wait: status.max_wait_ns.map(Nanos::from_nanos),
        socket_busy_poll: status.socket_busy_poll_ns.map(Nanos::from_nanos),
    }
}

/// Returns the changes that restore a datapath: first the whole of it, which includes the runtime's settings, then each instance
/// that had other settings.
fn undo(status: &Status) -> Vec<Change> {
    let Some(first) = status.shards.first() else { return Vec::new() };
    let all = |napi| Some(settings(status, napi));
    let whole = Change { all: all(first.settings), ..Change::default() };
    let others = status.shards.iter().filter(|shard| shard.settings != first.settings);
    let single =
        others.map(|shard| Change { napis: Some(vec![shard.napi]), all: all(shard.settings), ..Change::default() });
    std::iter::once(whole).chain(single).collect()
}

fn change_to(settings: &ModeSettings) -> Change {
    Change { all: Some(*settings), ..Change::default() }
}

impl Tunable for DatapathTarget {
    fn begin(&mut self, changed: bool) -> Result<(), TuneError> {
        self.start = Some(self.read()?);
        let interval = self.interval;
        self.latency_source.as_mut().map_or(Ok(()), |source| source.begin(interval, changed))
    }

    fn sample(&mut self) -> Result<Sample, TuneError> {
        let measured = self.latency_source.as_mut().map(|source| source.take()).transpose()?;
        let measured = measured.map(|latency| latency.unwrap_or(NO_REQUESTS));
        let now = self.read()?;
        let before = self.start.take().expect("an interval has begun");
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
            latency: measured.or_else(|| own.map(|(p50, p99)| Latency { count: answered.count, p50, p99 })),
        })
    }

    fn apply(&mut self, settings: &ModeSettings) -> Result<(), ApplyFailure> {
        match self.client.set(change_to(settings)) {
            Ok(_) => {
                self.has_changed = true;
                Ok(())
            }
            Err(ControlError::Refused(refusal)) => Err(ApplyFailure::Settings(refusal.to_string())),
            Err(error) => Err(ApplyFailure::Target(error.into())),
        }
    }

    fn is_ready(&mut self) -> Result<bool, TuneError> {
        self.latency_source.as_mut().map_or(Ok(true), |source| source.is_ready())
    }
}
