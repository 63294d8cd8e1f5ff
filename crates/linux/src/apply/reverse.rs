//! The way back as steps of its own: what was there before a change of long ago, made like any other change, with its place
//! in the journal.

use crate::cpu::CpuList;
use crate::machine::MachineError;
use crate::napi::NapiChange;

use super::change::channels;
use super::kernel::Kernel;
use super::step::Step;
use super::undo::{before_of, check_process, thread_before};
use super::wire::{ChangeRecord, SettingsRecord};

/// What leads back from a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reversal {
    /// What has to be done; nothing where it is as before already.
    pub steps: Vec<Step>,
    /// Whether something stays because somebody else has changed it since.
    pub left: bool,
}

impl Reversal {
    fn of(steps: Vec<Step>) -> Self {
        Self { steps, left: false }
    }

    /// `step` if what is there is what was made of it, and nothing if it is as before.
    fn from_to<T: PartialEq>(now: &T, before: &T, after: &T, step: Step) -> Self {
        let left = now != before && now != after;
        Self { steps: (now == after && before != after).then_some(step).into_iter().collect(), left }
    }
}

impl Step {
    /// What leads back to what was there before it: as [`Applied::restore`](super::Applied::restore), nothing is done to
    /// what somebody else has changed since.
    ///
    /// # Errors
    /// When what there is cannot be read; as [gone](MachineError::is_gone) where there is nothing to be put back any more.
    pub fn reversal<K: Kernel>(&self, kernel: &mut K) -> Result<Reversal, MachineError> {
        match self {
            Self::Napi { id, device, before, change } => {
                let now = kernel.napi(device, *id)?.settings();
                let back = change.back(before, &now);
                let all = change.back(before, &NapiChange::from(change).applied_to(&now));
                let left = all.applied_to(&now) != back.applied_to(&now);
                let step = Self::Napi {
                    id: *id,
                    device: device.clone(),
                    before: SettingsRecord::from(&now),
                    change: ChangeRecord::from(&back),
                };
                Ok(Reversal { steps: (!back.is_empty()).then_some(step).into_iter().collect(), left })
            }
            Self::DeviceFile { device, file, before, after } => {
                let now = kernel.device_file(device, file)?;
                let (device, file) = (device.clone(), file.clone());
                let step = Self::DeviceFile { device, file, before: after.clone(), after: before.clone() };
                Ok(Reversal::from_to(&now, before, after, step))
            }
            Self::Channels { device, before, after, .. } => {
                let now = kernel.channels(device)?;
                let left = !before.beyond(&now).is_empty() && !after.beyond(&now).is_empty();
                Ok(Reversal { steps: if left { Vec::new() } else { channels(kernel, device, before)? }, left })
            }
            Self::RssTable { device, context, before, after } => {
                let now = kernel.rss(device, *context)?.table;
                let (device, context) = (device.clone(), *context);
                let step = Self::RssTable { device, context, before: after.clone(), after: before.clone() };
                Ok(Reversal::from_to(&now, before, after, step))
            }
            Self::RssContextMade { device, table, others } => {
                let made = kernel.rss_contexts(device)?.into_iter();
                let made = made.filter(|one| one.table == *table && !others.contains(&one.id));
                let step = |context| Self::RssContextDeleted { device: device.clone(), context };
                Ok(Reversal::of(made.map(step).collect()))
            }
            Self::RssContextDeleted { device, context } => {
                let there = kernel.rss_contexts(device)?;
                let again = !there.iter().any(|one| one.id == context.id && one.table == context.table);
                let others = there.iter().map(|one| one.id).collect();
                let step = Self::RssContextMade { device: device.clone(), table: context.table.clone(), others };
                Ok(Reversal::of(again.then_some(step).into_iter().collect()))
            }
            Self::Ntuple { device, on } => {
                let now = kernel.ntuple(device)?.unwrap_or(!on);
                Ok(Reversal::from_to(&now, &!on, on, Self::Ntuple { device: device.clone(), on: !on }))
            }
            Self::RuleInserted { device, rule, others } => {
                let there = kernel.rules(device)?.into_iter();
                let ours = there.filter(|one| one.does_same(rule) && !others.contains(&one.location()));
                Ok(Reversal::of(ours.map(|rule| Self::RuleDeleted { device: device.clone(), rule }).collect()))
            }
            Self::RuleDeleted { device, rule } => {
                let there = kernel.rules(device)?;
                let taken = there.iter().find(|one| one.location() == rule.location());
                let others = there.iter().map(crate::ethtool::FlowRule::location).collect();
                let step = Self::RuleInserted { device: device.clone(), rule: rule.clone(), others };
                let left = taken.is_some_and(|found| !found.does_same(rule));
                Ok(Reversal { steps: taken.is_none().then_some(step).into_iter().collect(), left })
            }
            Self::Xps { device, queue, before, after } => {
                let now = kernel.xps(device, *queue)?;
                let (device, queue) = (device.clone(), *queue);
                let step = Self::Xps { device, queue, before: after.clone(), after: before.clone() };
                Ok(Reversal::from_to(&now, before, after, step))
            }
            Self::Irq { device, irq, before, after } => {
                let now = kernel.irq(device, *irq)?;
                let step =
                    Self::Irq { device: device.clone(), irq: *irq, before: after.clone(), after: before.clone() };
                Ok(Reversal::from_to(&now, before, after, step))
            }
            Self::Thread { device, napi, before, after } => {
                let (now, back) = thread_before(kernel, device, *napi, before, after)?;
                let left = back != *before;
                let step =
                    Self::Thread { device: device.clone(), napi: *napi, before: now.clone(), after: back.clone() };
                Ok(Reversal { steps: (back != now).then_some(step).into_iter().collect(), left })
            }
            Self::Process { .. } => self.process_reversal(kernel),
            Self::DropIn { unit, path, before, after } => {
                let now = kernel.drop_in(path)?;
                let (unit, path) = (unit.clone(), path.clone());
                let step = Self::DropIn { unit, path, before: after.clone(), after: before.clone() };
                Ok(Reversal::from_to(&now, before, after, step))
            }
        }
    }

    fn process_reversal<K: Kernel>(&self, kernel: &mut K) -> Result<Reversal, MachineError> {
        let Self::Process { pid, started, before, after, but } = self else { return Ok(Reversal::default()) };
        check_process(*pid, *started)?;
        let (mut now, mut left) = (Vec::new(), false);
        let mut then: Vec<(u32, CpuList)> = Vec::new();
        for tid in kernel.process_threads(*pid)? {
            let wanted = but.iter().find(|(known, _)| *known == tid).map_or(after, |(_, cpus)| cpus);
            let (Some(back), Ok(state)) = (before_of(before, tid), kernel.thread("", tid)) else { continue };
            let ours = state.cpus == *wanted;
            left |= !ours && state.cpus != *back;
            then.push((tid, if ours { back.clone() } else { state.cpus.clone() }));
            now.push((tid, state.cpus));
        }
        if then == now {
            return Ok(Reversal { steps: Vec::new(), left });
        }
        // Most threads of a process have the same CPUs: what the first one had, but for some.
        let after = then[0].1.clone();
        let but = then.into_iter().filter(|(_, cpus)| *cpus != after).collect();
        Ok(Reversal { steps: vec![Self::Process { pid: *pid, started: *started, before: now, after, but }], left })
    }
}
