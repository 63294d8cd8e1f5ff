//! The CPUs of an interrupt and of a transmit queue.

use abey_linux::cpu::CpuList;
use abey_linux::device::DeviceId;
use abey_linux::machine::{Capability, MachineError};
use serde::{Deserialize, Serialize};

use super::{Assignment, Claim, Instance, SavedQueue, Setting, SettingChange};
use crate::host::Host;

/// The CPUs that an interrupt may be delivered to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqAffinity {
    /// The device it belongs to.
    pub device: String,
    /// The interrupt.
    pub irq: u32,
}

impl Setting for IrqAffinity {
    type Value = CpuList;

    fn device(&self) -> Option<&str> {
        Some(&self.device)
    }

    fn read(&self, host: &mut dyn Host) -> Result<CpuList, MachineError> {
        host.irq(&self.device, self.irq)
    }

    fn write(&self, host: &mut dyn Host, cpus: &CpuList) -> Result<(), MachineError> {
        host.set_irq(&self.device, self.irq, cpus)
    }

    fn describe(&self, before: &CpuList, after: &CpuList) -> Vec<SettingChange> {
        let part = format!("IRQ {}", self.irq);
        vec![SettingChange::of_part(&self.device, &part, "irq-cpus", before.to_string(), after.to_string())]
    }

    fn claim(&self) -> Claim<'_> {
        Claim::Irq(self.irq)
    }

    fn subject(&self) -> String {
        format!("IRQ {} of {}", self.irq, self.device)
    }

    fn verified_action(&self, cpus: &CpuList) -> Option<String> {
        Some(format!("move IRQ {} of {} to CPUs {cpus}", self.irq, self.device))
    }

    fn format(&self, cpus: &CpuList) -> String {
        format!("CPUs {cpus}")
    }

    /// The applied state finds the interrupt by its queue, which may have another number by now.
    fn continues(_: &Assignment<Self>, _: &Assignment<Self>) -> bool {
        true
    }

    fn saved_value(&self, saved: &SavedQueue) -> Option<CpuList> {
        saved.irq_cpus.clone()
    }

    fn instance(&self) -> Option<Instance> {
        Some(Instance::Irq(self.irq))
    }

    fn capability(_: &Assignment<Self>, root: bool) -> Option<Capability> {
        (!root).then_some(Capability::DacOverride)
    }
}

/// The CPUs that use a transmit queue (XPS); empty where there is no map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xps {
    /// The device.
    pub device: DeviceId,
    /// The transmit queue.
    pub queue: u32,
}

impl Setting for Xps {
    type Value = CpuList;

    fn device(&self) -> Option<&str> {
        Some(&self.device.name)
    }

    fn read(&self, host: &mut dyn Host) -> Result<CpuList, MachineError> {
        host.xps(&self.device, self.queue)
    }

    fn write(&self, host: &mut dyn Host, cpus: &CpuList) -> Result<(), MachineError> {
        host.set_xps(&self.device, self.queue, cpus)
    }

    fn describe(&self, before: &CpuList, after: &CpuList) -> Vec<SettingChange> {
        let words = |cpus: &CpuList| if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() };
        let part = format!("transmit queue {}", self.queue);
        vec![SettingChange::of_part(&self.device.name, &part, "xps-cpus", words(before), words(after))]
    }

    fn claim(&self) -> Claim<'_> {
        Claim::TransmitQueue(self.queue)
    }

    fn verified_action(&self, cpus: &CpuList) -> Option<String> {
        Some(format!("give transmit queue {} of {} the CPUs {cpus}", self.queue, self.device))
    }

    fn format(&self, cpus: &CpuList) -> String {
        format!("CPUs {cpus}")
    }
}
