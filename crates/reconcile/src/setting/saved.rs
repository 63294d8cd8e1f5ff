//! The settings of queues, saved before a change that recreates the queues, and set again on the new ones.

use abey_delivery::NapiSettings;
use abey_linux::cpu::CpuList;
use abey_linux::device::DeviceId;
use abey_linux::ethtool::rss::DEFAULT_CONTEXT;
use abey_linux::machine::{MachineError, ThreadState};
use abey_linux::napi::{Napi, NapiChange};
use serde::{Deserialize, Serialize};

use super::{Assignment, IrqAffinity, NapiEdit, NapiThread, RssTable, Setting, Xps};
use crate::host::Host;
use crate::record::SettingsRecord;
use crate::step::Step;

/// The settings of a device's queues, by queue number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQueues {
    /// The settings of each receive queue.
    pub queues: Vec<SavedQueue>,
    /// The CPUs of each transmit queue that has an XPS map.
    pub xps: Vec<(u32, CpuList)>,
    /// The default RSS table, where the device has one.
    pub table: Option<Vec<u32>>,
}

/// The settings of one receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQueue {
    /// Its number.
    pub queue: u32,
    /// The settings of its NAPI instance.
    pub napi: SettingsRecord,
    /// The CPUs of its interrupt, where it is known.
    pub irq_cpus: Option<CpuList>,
    /// The thread that polls it, where there is one.
    pub thread: Option<ThreadState>,
}

impl SavedQueues {
    /// Reads the settings of the queues of a device. A setting that cannot be read cannot be lost either.
    pub(crate) fn read(host: &mut dyn Host, device: &DeviceId, transmit_queues: u32) -> Self {
        let mut queues = Vec::new();
        for (queue, napi) in host.queue_napis(device).unwrap_or_default() {
            queues.push(SavedQueue {
                queue,
                napi: SettingsRecord::from(&napi.settings()),
                irq_cpus: napi.irq.and_then(|irq| host.irq(&device.name, irq).ok()),
                thread: napi.thread.and_then(|tid| host.thread(&device.name, tid).ok()),
            });
        }
        let maps = (0..transmit_queues).filter_map(|queue| Some((queue, host.xps(device, queue).ok()?)));
        let xps = maps.filter(|(_, cpus)| !cpus.is_empty()).collect();
        let table = host.rss(device, DEFAULT_CONTEXT).ok().map(|context| context.table);
        Self { queues, xps, table }
    }

    /// Returns the steps from the present settings of the queues to the saved ones. Queues that no longer exist are left
    /// out. A thread exists only after its instance is threaded: its steps come with a second call.
    pub(crate) fn steps(&self, host: &mut dyn Host, device: &DeviceId) -> Result<Vec<Step>, MachineError> {
        let mut steps = Vec::new();
        let queues = if self.queues.is_empty() { Vec::new() } else { host.queue_napis(device)? };
        for saved in &self.queues {
            if let Some((_, napi)) = queues.iter().find(|(queue, _)| *queue == saved.queue) {
                steps.extend(saved.steps(host, &device.name, napi)?);
            }
        }
        for (queue, cpus) in &self.xps {
            match assignment(host, Xps { device: device.clone(), queue: *queue }, cpus) {
                Err(error) if !error.is_gone() => return Err(error),
                found => steps.extend(found.ok().flatten()),
            }
        }
        if let Some(table) = &self.table {
            let setting = RssTable { device: device.clone(), context: DEFAULT_CONTEXT };
            steps.extend(assignment(host, setting, table)?);
        }
        Ok(steps)
    }

    /// Sets the saved settings on queues that were recreated since; they would otherwise keep the driver's defaults.
    pub(crate) fn restore(&self, host: &mut dyn Host, device: &DeviceId) -> Result<(), MachineError> {
        // A thread exists only after its instance is threaded.
        for _ in 0..2 {
            for step in self.steps(host, device)? {
                step.take(host)?;
            }
        }
        Ok(())
    }
}

impl SavedQueue {
    fn steps(&self, host: &mut dyn Host, device: &str, napi: &Napi) -> Result<Vec<Step>, MachineError> {
        let mut steps = Vec::new();
        let change = NapiChange::between(&napi.settings(), &NapiSettings::from(&self.napi));
        if !change.is_empty() {
            steps.push(NapiEdit::step(napi.id, device, &napi.settings(), &change));
        }
        if let (Some(cpus), Some(irq)) = (&self.irq_cpus, napi.irq) {
            steps.extend(assignment(host, IrqAffinity { device: device.to_owned(), irq }, cpus)?);
        }
        // The instance may have another thread now, which takes over the settings of the old one.
        if let (Some(thread), Some(tid)) = (&self.thread, napi.thread) {
            let setting = NapiThread { device: device.to_owned(), napi: napi.id };
            steps.extend(assignment(host, setting, &ThreadState { tid, ..thread.clone() })?);
        }
        Ok(steps)
    }
}

/// Returns the step that gives a setting this value; `None` if it has the value already.
pub(crate) fn assignment<S: Setting>(
    host: &mut dyn Host,
    setting: S,
    value: &S::Value,
) -> Result<Option<Step>, MachineError>
where
    Step: From<Assignment<S>>,
{
    let before = setting.read(host)?;
    Ok((before != *value).then(|| Assignment { setting, before, after: value.clone() }.into()))
}
