//! Undoing steps: each thing goes back to what it was, unless it has gone or somebody else has changed it since.

use std::collections::BTreeMap;

use abey_delivery::NapiSettings;

use crate::cpu::CpuList;
use crate::device::DeviceId;
use crate::ethtool::{ChannelCounts, FlowTarget, RssContext};
use crate::machine::{MachineError, ThreadState};
use crate::process::start_time;
use crate::units::is_systemds;

use super::journal::Restored;
use super::kernel::Kernel;
use super::step::{HeldByQueues, Step};
use super::take::pin;

/// Undoes the steps, the last one first, and goes on past one that fails, to put back as much as possible.
pub(super) fn undo_all<K: Kernel>(kernel: &mut K, steps: &[Step]) -> Result<Vec<Restored>, MachineError> {
    let mut failed = None;
    let mut restored = Vec::new();
    let mut undo = Undo { kernel, contexts: BTreeMap::new(), reload: false };
    for (at, step) in steps.iter().enumerate().rev() {
        let since = steps[..at].iter().find_map(|earlier| step.since_before(earlier));
        match undo.step(since.as_ref().unwrap_or(step)) {
            Ok(Outcome::Back) => restored.push(Restored::Back(step.clone())),
            Ok(Outcome::LeftToOthers) => restored.push(Restored::LeftToOthers(step.clone())),
            Err(error) if error.is_gone() => restored.push(Restored::Gone(step.clone())),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    if undo.reload
        && let Err(error) = undo.kernel.reload_units()
    {
        failed = failed.or(Some(error));
    }
    failed.map_or(Ok(restored), Err)
}

struct Undo<'k, K> {
    kernel: &'k mut K,
    /// Contexts that were made again under another number, for the rules that point at them.
    contexts: BTreeMap<(DeviceId, u32), u32>,
    /// Whether systemd has to read its drop-ins again.
    reload: bool,
}

enum Outcome {
    Back,
    LeftToOthers,
}

impl<K: Kernel> Undo<'_, K> {
    fn step(&mut self, step: &Step) -> Result<Outcome, MachineError> {
        let kernel = &mut *self.kernel;
        match step {
            Step::Napi { id, device, before, change } => {
                let now = kernel.napi(device, *id)?.settings();
                let back = change.back(before, &now);
                if !back.is_empty() {
                    kernel.set_napi(device, *id, &back)?;
                }
                let all = back.applied_to(&now) == NapiSettings::from(before);
                Ok(if all { Outcome::Back } else { Outcome::LeftToOthers })
            }
            Step::DeviceFile { device, file, before, after } => {
                let now = kernel.device_file(device, file)?;
                put_back(&now, before, after, || kernel.set_device_file(device, file, before))
            }
            Step::Channels { device, before, after, held } => channels_back(kernel, device, (before, after), held),
            Step::RssTable { device, context, before, after } => {
                let now = kernel.rss(device, *context)?.table;
                put_back(&now, before, after, || kernel.set_rss_table(device, *context, before))
            }
            Step::RssContextMade { device, table, others } => {
                let made = kernel.rss_contexts(device)?;
                for context in made.iter().filter(|one| one.table == *table && !others.contains(&one.id)) {
                    kernel.delete_rss_context(device, context.id)?;
                }
                Ok(Outcome::Back)
            }
            Step::RssContextDeleted { device, context } => self.context_back(device, context),
            Step::Ntuple { device, on } => {
                let now = kernel.ntuple(device)?.unwrap_or(!on);
                put_back(&now, &!on, on, || kernel.set_ntuple(device, !on))
            }
            Step::RuleInserted { device, rule, others } => {
                let rules = kernel.rules(device)?;
                for found in rules.iter().filter(|one| one.does_same(rule) && !others.contains(&one.location())) {
                    kernel.delete_rule(device, found.location())?;
                }
                Ok(Outcome::Back)
            }
            Step::RuleDeleted { device, rule } => {
                let mut rule = rule.clone();
                if let FlowTarget::Context(id) = rule.target()
                    && let Some(again) = self.contexts.get(&(device.clone(), id))
                {
                    rule = rule.with_context(*again);
                }
                let taken = self.kernel.rules(device)?.into_iter().find(|one| one.location() == rule.location());
                match taken {
                    None => self.kernel.insert_rule(device, &rule).map(|_| Outcome::Back),
                    Some(found) if found.does_same(&rule) => Ok(Outcome::Back),
                    Some(_) => Ok(Outcome::LeftToOthers),
                }
            }
            Step::Xps { device, queue, before, after } => {
                let now = kernel.xps(device, *queue)?;
                put_back(&now, before, after, || kernel.set_xps(device, *queue, before))
            }
            Step::Irq { device, irq, before, after } => {
                let now = kernel.irq(device, *irq)?;
                put_back(&now, before, after, || kernel.set_irq(device, *irq, before))
            }
            Step::Thread { device, napi, before, after } => thread_back(kernel, device, *napi, before, after),
            Step::Process { pid, started, before, after, but } => {
                check_process(*pid, *started)?;
                let mut outcome = Outcome::Back;
                for tid in kernel.process_threads(*pid)? {
                    let wanted = but.iter().find(|(known, _)| *known == tid).map_or(after, |(_, cpus)| cpus);
                    match (before_of(before, tid), kernel.thread("", tid)) {
                        (Some(cpus), Ok(now)) if now.cpus == *wanted => pin(kernel, tid, cpus)?,
                        (Some(cpus), Ok(now)) if now.cpus != *cpus => outcome = Outcome::LeftToOthers,
                        _ => {}
                    }
                }
                Ok(outcome)
            }
            Step::DropIn { path, before, after, .. } => {
                let now = kernel.drop_in(path)?;
                self.reload |= now == *after && is_systemds(path);
                put_back(&now, before, after, || self.kernel.set_drop_in(path, before.as_deref()))
            }
        }
    }

    fn context_back(&mut self, device: &DeviceId, context: &RssContext) -> Result<Outcome, MachineError> {
        let there = self.kernel.rss_contexts(device)?;
        if there.iter().any(|one| one.id == context.id && one.table == context.table) {
            return Ok(Outcome::Back);
        }
        let id = self.kernel.create_rss_context(device, &context.table, &context.key)?;
        self.contexts.insert((device.clone(), context.id), id);
        Ok(Outcome::Back)
    }
}

/// Fails as gone if the process has ended: its number may be another one's by now.
pub(super) fn check_process(pid: u32, started: u64) -> Result<(), MachineError> {
    if start_time(pid) == Some(started) {
        return Ok(());
    }
    let (device, action) = (String::new(), format!("give process {pid} its CPUs back"));
    Err(MachineError::Gone { device, action, what: format!("process {pid}") })
}

/// The CPUs that a thread had. One that was started since has those of the one that started it: of the first, as a rule.
pub(super) fn before_of(before: &[(u32, CpuList)], tid: u32) -> Option<&CpuList> {
    before.iter().find(|(known, _)| *known == tid).or(before.first()).map(|(_, cpus)| cpus)
}

/// Writes what was there before, if what is there is what the step made of it.
fn put_back<T: PartialEq + ?Sized>(
    now: &T,
    before: &T,
    after: &T,
    write: impl FnOnce() -> Result<(), MachineError>,
) -> Result<Outcome, MachineError> {
    if now == before {
        return Ok(Outcome::Back);
    }
    if now != after {
        return Ok(Outcome::LeftToOthers);
    }
    write().map(|()| Outcome::Back)
}

fn channels_back<K: Kernel>(
    kernel: &mut K,
    device: &DeviceId,
    (before, after): (&ChannelCounts, &ChannelCounts),
    held: &HeldByQueues,
) -> Result<Outcome, MachineError> {
    let now = kernel.channels(device)?;
    let back = before.beyond(&now);
    if !back.is_empty() {
        if !after.beyond(&now).is_empty() {
            return Ok(Outcome::LeftToOthers);
        }
        kernel.set_channels(device, &back)?;
    }
    held.put_back(kernel, device)?;
    Ok(Outcome::Back)
}

fn thread_back<K: Kernel>(
    kernel: &mut K,
    device: &str,
    napi: u32,
    before: &ThreadState,
    after: &ThreadState,
) -> Result<Outcome, MachineError> {
    let (now, back) = thread_before(kernel, device, napi, before, after)?;
    if back != now {
        kernel.set_thread(device, &back)?;
    }
    Ok(if back == *before { Outcome::Back } else { Outcome::LeftToOthers })
}

/// How a thread runs, and how it did before the change, but for what somebody else has changed since.
pub(super) fn thread_before<K: Kernel>(
    kernel: &mut K,
    device: &str,
    napi: u32,
    before: &ThreadState,
    after: &ThreadState,
) -> Result<(ThreadState, ThreadState), MachineError> {
    let tid = after.tid;
    if kernel.napi(device, napi)?.thread != Some(tid) {
        let (device, action) = (device.to_owned(), format!("put thread {tid} of NAPI {napi} of {device} back"));
        return Err(MachineError::Gone { device, action, what: format!("thread {tid}") });
    }
    let now = kernel.thread(device, tid)?;
    let mut back = now.clone();
    if now.cpus == after.cpus {
        back.cpus = before.cpus.clone();
    }
    if now.scheduling == after.scheduling {
        back.scheduling = before.scheduling;
    }
    Ok((now, back))
}
