//! What is set on queues, kept beside a change that makes them anew, and set again on those that come after.

use crate::device::DeviceId;
use crate::ethtool::rss::DEFAULT_CONTEXT;
use crate::machine::{MachineError, ThreadState};
use crate::napi::{Napi, NapiChange};
use abey_delivery::NapiSettings;

use super::kernel::Kernel;
use super::step::{HeldByQueue, HeldByQueues, Step};
use super::wire::{ChangeRecord, SettingsRecord};

impl HeldByQueues {
    /// What is set on the queues of a device; what cannot be read is not there to be lost.
    pub(super) fn read<K: Kernel>(kernel: &mut K, device: &DeviceId, transmit_queues: u32) -> Self {
        let mut queues = Vec::new();
        for (queue, napi) in kernel.queue_napis(device).unwrap_or_default() {
            queues.push(HeldByQueue {
                queue,
                napi: SettingsRecord::from(&napi.settings()),
                irq_cpus: napi.irq.and_then(|irq| kernel.irq(&device.name, irq).ok()),
                thread: napi.thread.and_then(|tid| kernel.thread(&device.name, tid).ok()),
            });
        }
        let maps = (0..transmit_queues).filter_map(|queue| Some((queue, kernel.xps(device, queue).ok()?)));
        let xps = maps.filter(|(_, cpus)| !cpus.is_empty()).collect();
        let table = kernel.rss(device, DEFAULT_CONTEXT).ok().map(|context| context.table);
        Self { queues, xps, table }
    }

    /// What the queues that there are now have otherwise.
    pub(super) fn steps<K: Kernel>(&self, kernel: &mut K, device: &DeviceId) -> Result<Vec<Step>, MachineError> {
        let mut steps = Vec::new();
        let queues = if self.queues.is_empty() { Vec::new() } else { kernel.queue_napis(device)? };
        for held in &self.queues {
            if let Some((_, napi)) = queues.iter().find(|(queue, _)| *queue == held.queue) {
                steps.extend(held.steps(kernel, &device.name, napi)?);
            }
        }
        for (queue, after) in &self.xps {
            match kernel.xps(device, *queue) {
                Ok(before) if before != *after => {
                    steps.push(Step::Xps { device: device.clone(), queue: *queue, before, after: after.clone() });
                }
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
        }
        if let Some(after) = &self.table {
            let before = kernel.rss(device, DEFAULT_CONTEXT)?.table;
            if before != *after {
                let after = after.clone();
                steps.push(Step::RssTable { device: device.clone(), context: DEFAULT_CONTEXT, before, after });
            }
        }
        Ok(steps)
    }

    /// Sets it again on queues that were made anew since: everything else would stay at the defaults of new queues.
    pub(super) fn put_back<K: Kernel>(&self, kernel: &mut K, device: &DeviceId) -> Result<(), MachineError> {
        // A thread is there only once its instance is threaded.
        for _ in 0..2 {
            for step in self.steps(kernel, device)? {
                step.take(kernel)?;
            }
        }
        Ok(())
    }
}

impl HeldByQueue {
    fn steps<K: Kernel>(&self, kernel: &mut K, device: &str, napi: &Napi) -> Result<Vec<Step>, MachineError> {
        let mut steps = Vec::new();
        let change = NapiChange::between(&napi.settings(), &NapiSettings::from(&self.napi));
        if !change.is_empty() {
            steps.push(Step::Napi {
                id: napi.id,
                device: device.to_owned(),
                before: SettingsRecord::from(&napi.settings()),
                change: ChangeRecord::from(&change),
            });
        }
        if let (Some(after), Some(irq)) = (&self.irq_cpus, napi.irq) {
            let (device, before) = (device.to_owned(), kernel.irq(device, irq)?);
            if before != *after {
                steps.push(Step::Irq { device, irq, before, after: after.clone() });
            }
        }
        // The thread is another one by now, with the same duties.
        if let (Some(thread), Some(tid)) = (&self.thread, napi.thread) {
            let (before, after) = (kernel.thread(device, tid)?, ThreadState { tid, ..thread.clone() });
            if before != after {
                steps.push(Step::Thread { device: device.to_owned(), napi: napi.id, before, after });
            }
        }
        Ok(steps)
    }
}
