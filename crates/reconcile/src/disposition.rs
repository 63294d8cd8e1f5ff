//! Decides which settings of earlier applies stay and which are restored: those that the policy no longer names.

use abey_linux::ethtool::{FlowRule, FlowTarget, PortFlow};
use abey_linux::machine::{DeviceState, NapiState, Snapshot};
use abey_policy::{DesiredDevice, DesiredQueue, DesiredState};

use crate::applied_state::AppliedStep;
use crate::setting::{Assignment, IrqAffinity, NapiEdit, NapiThread};
use crate::step::Step;

/// What happens to a setting that an earlier apply keeps in force.
#[derive(Clone, Debug, PartialEq)]
pub enum Disposition {
    /// The policy names the setting and decides on its value.
    Keep,
    /// The policy does not name the setting: this step, with the present numbers of its instance, is to be undone.
    Restore(Box<Step>),
    /// The setting would be restored, but its device is down, so that its queues have no NAPI instances.
    Wait,
    /// The device, queue, interrupt or thread no longer exists.
    Forget,
    /// The setting belongs to a program, not to a device: see `programs.rs`.
    Program,
}

impl Disposition {
    fn restore(step: &Step) -> Self {
        Self::Restore(Box::new(step.clone()))
    }

    fn keep_if(named: bool, step: &Step) -> Self {
        if named { Self::Keep } else { Self::restore(step) }
    }
}

/// Returns the disposition of each applied step under a desired state.
pub fn dispositions(desired: &DesiredState, applied: &[AppliedStep], machine: &Snapshot) -> Vec<Disposition> {
    let mut found: Vec<Disposition> = applied.iter().map(|one| disposition(desired, one, machine)).collect();
    // RSS contexts, and the feature that rules need, are restored when no rule needs them any more.
    for at in 0..applied.len() {
        let Some((state, device)) = device_of(desired, &applied[at], machine) else { continue };
        let is_restored = |rule: &FlowRule| {
            applied.iter().zip(&found).any(|(one, disposition)| match (&one.step, disposition) {
                (Step::RuleInserted(inserted), Disposition::Restore(_)) => {
                    one.ifindex == Some(state.device.ifindex) && inserted.matches(rule)
                }
                _ => false,
            })
        };
        let mut staying = state.rules.iter().flatten().filter(|rule| !is_restored(rule));
        let step = &applied[at].step;
        let needed = match step {
            Step::Ntuple(_) => staying.next().is_some() || device.is_some_and(|device| !device.flows.is_empty()),
            Step::RssContextMade(created) => {
                let contexts: Vec<_> = state.contexts.iter().flatten().filter(|one| created.matches(one)).collect();
                let is_created = |id: u32| contexts.iter().any(|context| context.id == id);
                let queues = created.table.iter().copied().collect();
                staying.any(|rule| matches!(rule.target(), FlowTarget::Context(id) if is_created(id)))
                    || device.is_some_and(|device| device.flows.iter().any(|flows| flows.value.queues == queues))
            }
            _ => continue,
        };
        found[at] = Disposition::keep_if(needed, step);
    }
    found
}

/// Returns the device of an applied step, and what the policy desires of it; `None` if the device no longer exists.
fn device_of<'a>(
    desired: &'a DesiredState,
    applied: &AppliedStep,
    machine: &'a Snapshot,
) -> Option<(&'a DeviceState, Option<&'a DesiredDevice>)> {
    let state = machine.device(applied.step.device()?)?;
    let device = desired.devices.iter().find(|device| device.name == state.device.name);
    (applied.ifindex == Some(state.device.ifindex)).then_some((state, device))
}

fn disposition(desired: &DesiredState, applied: &AppliedStep, machine: &Snapshot) -> Disposition {
    let step = &applied.step;
    if step.device().is_none() {
        return Disposition::Program;
    }
    let Some((state, device)) = device_of(desired, applied, machine) else { return Disposition::Forget };
    // An error in the policy of a device has to be corrected first.
    if desired.wrong.iter().any(|(name, _)| *name == state.device.name) {
        return Disposition::Keep;
    }
    if step.edit().instance().is_some() {
        return of_instance(applied, state, device);
    }
    let named = match step {
        Step::Channels(_) => device.is_some_and(|device| device.channels.is_some()),
        Step::RssTable(_) => device.is_some_and(|device| device.rss.is_some()),
        Step::DeviceFile(_) => {
            device.is_some_and(|device| device.queues.values().any(|queue| queue.settings.is_some()))
        }
        Step::RuleInserted(inserted) => steers(device, inserted.rule.port()),
        Step::RuleDeleted(deleted) => steers(device, deleted.rule.port()),
        Step::Xps(xps) => {
            let queue = &xps.setting.queue;
            if !state.xps.as_ref().is_ok_and(|maps| maps.contains_key(queue)) {
                return Disposition::Forget;
            }
            device.and_then(|device| device.queues.get(queue)).is_some_and(|queue| queue.xps.is_some())
        }
        _ => false,
    };
    Disposition::keep_if(named, step)
}

fn steers(device: Option<&DesiredDevice>, flow: Option<PortFlow>) -> bool {
    let (Some(device), Some(flow)) = (device, flow) else { return false };
    device.flows.iter().any(|flows| flows.value.ports.iter().any(|port| port.flows().contains(&flow)))
}

/// Returns the disposition of a setting of a NAPI instance, of its interrupt or of its thread.
fn of_instance(applied: &AppliedStep, state: &DeviceState, device: Option<&DesiredDevice>) -> Disposition {
    let Some(napi) = applied.queue.and_then(|queue| state.napi_of_queue(queue)) else {
        return if state.device.up { Disposition::Forget } else { Disposition::Wait };
    };
    let Some(step) = renumbered(&applied.step, napi) else { return Disposition::Forget };
    let names = |queue: &DesiredQueue| match &step {
        Step::Napi(_) => queue.settings.is_some(),
        Step::Irq(_) => queue.irq.is_some(),
        Step::Thread(thread) => queue.thread.as_ref().is_some_and(|desired| {
            let changes_cpus = thread.before.cpus != thread.after.cpus;
            if changes_cpus { desired.value.cpus.is_some() } else { desired.value.scheduling.is_some() }
        }),
        _ => false,
    };
    let mut queues = device.into_iter().flat_map(|device| napi.rx_queues.iter().filter_map(|id| device.queues.get(id)));
    Disposition::keep_if(queues.any(names), &step)
}

/// Returns the step with the numbers of the instance that serves its queue now; `None` if the interrupt or thread that it
/// changed no longer belongs to the queue.
fn renumbered(step: &Step, napi: &NapiState) -> Option<Step> {
    let id = napi.napi.id;
    match step {
        Step::Napi(edit) => Some(NapiEdit { id, ..edit.clone() }.into()),
        Step::Irq(Assignment { setting: IrqAffinity { irq, .. }, .. }) => {
            napi.irq.as_ref().is_ok_and(|now| now.irq == *irq).then(|| step.clone())
        }
        Step::Thread(thread) if napi.napi.thread == Some(thread.after.tid) => {
            let setting = NapiThread { napi: id, ..thread.setting.clone() };
            Some(Assignment { setting, ..thread.clone() }.into())
        }
        _ => None,
    }
}
