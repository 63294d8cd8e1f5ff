//! Taking a step: the change is made, and read back where the kernel lets a driver keep something else.

use std::fmt::Display;

use abey_delivery::NapiSettings;

use crate::cpu::CpuList;
use crate::machine::{MachineError, ThreadState};
use crate::napi::NapiChange;

use super::kernel::Kernel;
use super::step::Step;

impl Step {
    /// Makes the change. A new RSS context's number is the answer.
    pub(super) fn take<K: Kernel>(&self, kernel: &mut K) -> Result<Option<u32>, MachineError> {
        match self {
            Self::Napi { id, device, before, change } => {
                let change = NapiChange::from(change);
                kernel.set_napi(device, *id, &change)?;
                let wanted = change.applied_to(&NapiSettings::from(before));
                let got = kernel.napi(device, *id)?.settings();
                if got != wanted {
                    let action = format!("change the settings of NAPI {id} of {device}");
                    let reason = "they did not stick".to_owned();
                    return Err(MachineError::Refused { device: device.clone(), action, reason, errno: None });
                }
            }
            Self::DeviceFile { device, file, after, .. } => kernel.set_device_file(device, file, after)?,
            Self::Channels { device, after, .. } => {
                kernel.set_channels(device, after)?;
                let left = after.beyond(&kernel.channels(device)?);
                if !left.is_empty() {
                    return Err(kept(
                        &device.name,
                        &format!("set the channels of {device} to {after}"),
                        "other numbers",
                    ));
                }
            }
            Self::RssTable { device, context, after, .. } => {
                kernel.set_rss_table(device, *context, after)?;
                let got = kernel.rss(device, *context)?;
                if got.table != *after {
                    let queues = crate::ethtool::rss::queue_list(&got.table);
                    return Err(kept(
                        &device.name,
                        &format!("change the RSS table of {device}"),
                        format!("queues {queues}"),
                    ));
                }
            }
            Self::RssContextMade { device, table, .. } => {
                return kernel.create_rss_context(device, table, &[]).map(Some);
            }
            Self::RssContextDeleted { device, context } => kernel.delete_rss_context(device, context.id)?,
            Self::Ntuple { device, on } => kernel.set_ntuple(device, *on)?,
            Self::RuleInserted { device, rule, .. } => {
                kernel.insert_rule(device, rule)?;
            }
            Self::RuleDeleted { device, rule } => kernel.delete_rule(device, rule.location())?,
            Self::Xps { device, queue, after, .. } => {
                kernel.set_xps(device, *queue, after)?;
                let got = kernel.xps(device, *queue)?;
                if got != *after {
                    return Err(kept(
                        &device.name,
                        &format!("give transmit queue {queue} of {device} the CPUs {after}"),
                        got,
                    ));
                }
            }
            Self::Irq { device, irq, after, .. } => {
                kernel.set_irq(device, *irq, after)?;
                let got = kernel.irq(device, *irq)?;
                if got != *after {
                    return Err(kept(
                        device,
                        &format!("move IRQ {irq} of {device} to CPUs {after}"),
                        format!("CPUs {got}"),
                    ));
                }
            }
            Self::Thread { device, after, .. } => {
                kernel.set_thread(device, after)?;
                let ThreadState { tid, cpus, scheduling } = kernel.thread(device, after.tid)?;
                if (&cpus, &scheduling) != (&after.cpus, &after.scheduling) {
                    let action = format!("make thread {tid} of {device} {} on CPUs {}", after.scheduling, after.cpus);
                    return Err(kept(device, &action, format!("{scheduling} on CPUs {cpus}")));
                }
            }
            Self::Process { pid, after, but, .. } => {
                pin_process(kernel, *pid, after)?;
                but.iter().try_for_each(|(tid, cpus)| pin(kernel, *tid, cpus))?;
            }
            Self::DropIn { path, after, .. } => kernel.set_drop_in(path, after.as_deref())?,
        }
        Ok(None)
    }
}

/// Lets every thread of a process run on these CPUs only, those too that are started meanwhile.
fn pin_process<K: Kernel>(kernel: &mut K, pid: u32, cpus: &CpuList) -> Result<(), MachineError> {
    // A thread that is started during a pass inherits the CPUs of its creator, which may not have been pinned yet.
    let mut pinned = std::collections::BTreeSet::new();
    loop {
        let threads = kernel.process_threads(pid)?;
        let new: Vec<u32> = threads.into_iter().filter(|tid| !pinned.contains(tid)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for tid in new {
            pin(kernel, tid, cpus)?;
            pinned.insert(tid);
        }
    }
}

/// Pins one thread of a process; one that has ended needs nothing.
pub(super) fn pin<K: Kernel>(kernel: &mut K, tid: u32, cpus: &CpuList) -> Result<(), MachineError> {
    let pinned =
        kernel.thread("", tid).and_then(|now| kernel.set_thread("", &ThreadState { cpus: cpus.clone(), ..now }));
    match pinned {
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}

/// The driver took the change and has something else.
fn kept(device: &str, action: &str, what: impl Display) -> MachineError {
    let (device, action) = (device.to_owned(), action.to_owned());
    MachineError::Refused { device, action, reason: format!("it was taken, and there is {what} now"), errno: None }
}
