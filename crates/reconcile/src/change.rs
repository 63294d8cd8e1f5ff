//! From a desired value of a setting to the steps that are missing.

use std::collections::BTreeSet;

use abey_linux::cpu::{CpuList, Scheduling};
use abey_linux::device::DeviceId;
use abey_linux::ethtool::rss::DEFAULT_CONTEXT;
use abey_linux::ethtool::{FlowRule, FlowTarget, PortFlow, RssContext, spread};
use abey_linux::machine::{MachineError, ThreadState};
use abey_linux::process::start_time;
use abey_policy::Change;

use crate::host::Host;
use crate::setting::{
    Assignment, ContextCreated, ContextDeleted, DropIn, Edit, IrqAffinity, NapiThread, Ntuple, ProcessEdit, RssTable,
    RuleDeleted, RuleInserted, Setting, Xps, channels,
};
use crate::step::Step;

/// Returns the steps that bring about `change`, in order; none if nothing has to change.
///
/// # Errors
/// When the present state cannot be read, or makes the change impossible.
pub fn steps_for(change: &Change, host: &mut dyn Host) -> Result<Vec<Step>, MachineError> {
    match change {
        Change::Channels { device, counts } => channels::steps_to(host, device, counts),
        Change::Spread { device, context, queues } => {
            let setting = RssTable { device: device.clone(), context: *context };
            let before = setting.read(host)?;
            let after = table_over(device, before.len(), queues)?;
            let different = distribution(&before) != distribution(&after);
            Ok(different.then(|| Assignment { setting, before, after }.into()).into_iter().collect())
        }
        Change::Context { device, queues } => {
            // Read first, because its error is more precise than that of listing contexts on a device without a table.
            let size = host.rss(device, DEFAULT_CONTEXT)?.table.len();
            let table = table_over(device, size, queues)?;
            let present = host.rss_contexts(device)?;
            if find_context(&present, queues).is_some() {
                return Ok(Vec::new());
            }
            let others = present.iter().map(|context| context.id).collect();
            Ok(vec![ContextCreated { device: device.clone(), table, others, key: Vec::new() }.into()])
        }
        Change::NoContext { device, id } => {
            let present = host.rss_contexts(device)?.into_iter().find(|context| context.id == *id);
            let step = |context| ContextDeleted { device: device.clone(), context }.into();
            Ok(present.map(step).into_iter().collect())
        }
        Change::Rule { device, flow, target } => rule(host, device, *flow, *target),
        Change::NoRule { device, location } => {
            let present = host.rules(device)?.into_iter().find(|rule| rule.location() == *location);
            let step = |rule| RuleDeleted { device: device.clone(), rule }.into();
            Ok(present.map(step).into_iter().collect())
        }
        Change::Xps { device, queue, cpus } => assign(host, Xps { device: device.clone(), queue: *queue }, cpus),
        Change::Irq { device, irq, cpus } => assign(host, IrqAffinity { device: device.name.clone(), irq: *irq }, cpus),
        Change::Thread { device, napi, cpus, scheduling } => {
            thread(host, &device.name, *napi, cpus.as_ref(), scheduling.as_ref())
        }
        Change::Process { pid, cpus } => process(host, *pid, cpus),
        Change::DropIn { unit, path, text } => {
            assign(host, DropIn { unit: unit.clone(), path: path.clone() }, &Some(text.clone()))
        }
    }
}

/// Returns the RSS context that serves a [`Change::Context`]; `None` for other changes.
pub(crate) fn existing_context(change: &Change, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
    match change {
        Change::Context { device, queues } => Ok(find_context(&host.rss_contexts(device)?, queues)),
        _ => Ok(None),
    }
}

fn assign<S: Setting>(host: &mut dyn Host, setting: S, value: &S::Value) -> Result<Vec<Step>, MachineError>
where
    Step: From<Assignment<S>>,
{
    let step = Assignment { before: setting.read(host)?, setting, after: value.clone() };
    Ok(if step.is_nothing() { Vec::new() } else { vec![step.into()] })
}

/// Returns how often each queue occurs in a table. Tables with the same distribution are equivalent.
fn distribution(table: &[u32]) -> Vec<(u32, usize)> {
    let queues: BTreeSet<u32> = table.iter().copied().collect();
    queues.into_iter().map(|queue| (queue, table.iter().filter(|entry| **entry == queue).count())).collect()
}

fn table_over(device: &DeviceId, size: usize, queues: &[u32]) -> Result<Vec<u32>, MachineError> {
    let table = spread(size, queues);
    if table.is_empty() || queues.len() > size {
        return Err(MachineError::Refused {
            device: device.name.clone(),
            action: format!("spread flows of {device} over {} queues", queues.len()),
            reason: format!("its RSS table has {size} entries"),
            errno: None,
        });
    }
    Ok(table)
}

fn find_context(present: &[RssContext], queues: &[u32]) -> Option<u32> {
    let serves = |context: &&RssContext| {
        let wanted = spread(context.table.len(), queues);
        !wanted.is_empty() && distribution(&context.table) == distribution(&wanted)
    };
    present.iter().find(serves).map(|context| context.id)
}

fn rule(host: &mut dyn Host, device: &DeviceId, flow: PortFlow, target: FlowTarget) -> Result<Vec<Step>, MachineError> {
    let rules = host.rules(device)?;
    let wanted = FlowRule::to_port(flow, target);
    let mut same_flow: Vec<&FlowRule> = rules.iter().filter(|rule| rule.port() == Some(flow)).collect();
    let existing = same_flow.iter().position(|rule| rule.does_same(&wanted)).map(|index| same_flow.remove(index));
    let mut steps = Vec::new();
    // A driver that has the feature accepts no rules while it is off.
    if existing.is_none() && host.ntuple(device)? == Some(false) {
        steps.push(Assignment { setting: Ntuple { device: device.clone() }, before: false, after: true }.into());
    }
    // Some drivers refuse a second rule of one flow, so the old one is deleted first.
    let delete = |rule: &FlowRule| RuleDeleted { device: device.clone(), rule: rule.clone() }.into();
    steps.extend(same_flow.into_iter().map(delete));
    if existing.is_none() {
        let others = rules.iter().map(FlowRule::location).collect();
        steps.push(RuleInserted { device: device.clone(), rule: wanted, others }.into());
    }
    Ok(steps)
}

fn thread(
    host: &mut dyn Host,
    device: &str,
    napi: u32,
    cpus: Option<&CpuList>,
    scheduling: Option<&Scheduling>,
) -> Result<Vec<Step>, MachineError> {
    let tid = host.napi(device, napi)?.thread.ok_or_else(|| MachineError::Refused {
        device: device.to_owned(),
        action: format!("pin the thread of NAPI {napi} of {device}"),
        reason: "it has no thread, because its polling is not threaded".to_owned(),
        errno: None,
    })?;
    let before = host.thread(device, tid)?;
    let after = ThreadState {
        tid,
        cpus: cpus.unwrap_or(&before.cpus).clone(),
        scheduling: *scheduling.unwrap_or(&before.scheduling),
    };
    if after == before {
        return Ok(Vec::new());
    }
    let setting = NapiThread { device: device.to_owned(), napi };
    Ok(vec![Assignment { setting, before, after }.into()])
}

fn process(host: &mut dyn Host, pid: u32, cpus: &CpuList) -> Result<Vec<Step>, MachineError> {
    let mut before = Vec::new();
    for tid in host.process_threads(pid)? {
        match host.thread("", tid) {
            Ok(thread) => before.push((tid, thread.cpus)),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    if before.iter().all(|(_, now)| now == cpus) {
        return Ok(Vec::new());
    }
    let started = start_time(pid).unwrap_or(0);
    Ok(vec![ProcessEdit { pid, started, before, after: cpus.clone(), but: Vec::new() }.into()])
}
