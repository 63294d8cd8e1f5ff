//! The settings of a NAPI instance, of which a step changes some.

use abey_delivery::NapiSettings;
use abey_linux::machine::MachineError;
use abey_linux::napi::NapiChange;
use serde::{Deserialize, Serialize};

use super::{Claim, Edit, Instance, Reversal, SavedQueue, SettingChange, edit_of};
use crate::host::Host;
use crate::record::{ChangeRecord, SettingsRecord};
use crate::step::Step;

/// A change of some settings of one NAPI instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NapiEdit {
    /// The instance's ID.
    pub id: u32,
    /// The device it belongs to.
    pub device: String,
    /// All its settings before.
    pub before: SettingsRecord,
    /// The settings that change.
    pub change: ChangeRecord,
}

impl NapiEdit {
    /// The step that makes a change of an instance.
    pub(crate) fn step(id: u32, device: &str, before: &NapiSettings, change: &NapiChange) -> Step {
        let (before, change) = (SettingsRecord::from(before), ChangeRecord::from(change));
        Self { id, device: device.to_owned(), before, change }.into()
    }
}

impl Edit for NapiEdit {
    fn device(&self) -> Option<&str> {
        Some(&self.device)
    }

    fn claim(&self) -> Claim<'_> {
        Claim::Napi(self.id)
    }

    fn subject(&self) -> String {
        format!("NAPI {} of {}", self.id, self.device)
    }

    fn describe(&self) -> Vec<SettingChange> {
        let changes = self.change.against(&self.before).into_iter();
        changes
            .map(|(setting, before, after)| SettingChange::of_napi(&self.device, self.id, setting, before, after))
            .collect()
    }

    fn write(&self, host: &mut dyn Host) -> Result<Option<u32>, MachineError> {
        host.set_napi(&self.device, self.id, &NapiChange::from(&self.change)).map(|()| None)
    }

    fn verify(&self, host: &mut dyn Host) -> Result<(), MachineError> {
        let wanted = NapiChange::from(&self.change).applied_to(&NapiSettings::from(&self.before));
        if host.napi(&self.device, self.id)?.settings() == wanted {
            return Ok(());
        }
        let action = format!("change the settings of NAPI {} of {}", self.id, self.device);
        let reason = "the kernel accepted them, but reports others now".to_owned();
        Err(MachineError::Refused { device: self.device.clone(), action, reason, errno: None })
    }

    fn reversal(&self, host: &mut dyn Host) -> Result<Reversal, MachineError> {
        let now = host.napi(&self.device, self.id)?.settings();
        let back = self.change.back(&self.before, &now);
        // What the change back would be if every setting still had the value that the step gave it.
        let all = self.change.back(&self.before, &NapiChange::from(&self.change).applied_to(&now));
        let changed_since = all.applied_to(&now) != back.applied_to(&now);
        let steps = if back.is_empty() { Vec::new() } else { vec![Self::step(self.id, &self.device, &now, &back)] };
        Ok(Reversal { steps, changed_since, saved: None })
    }

    fn to_step(&self) -> Step {
        self.clone().into()
    }

    fn joined_to(&self, first: &Step) -> Option<Step> {
        let first = edit_of::<Self>(first)?;
        let change = NapiChange::from(&self.change).or(NapiChange::from(&first.change));
        // The ID is the later one: a recreated queue has another instance.
        Some(Self { before: first.before.clone(), change: ChangeRecord::from(&change), ..self.clone() }.into())
    }

    fn is_nothing(&self) -> bool {
        self.change.against(&self.before).iter().all(|(_, before, after)| before == after)
    }

    fn since(&self, saved: &SavedQueue) -> Step {
        Self { before: saved.napi.clone(), ..self.clone() }.into()
    }

    fn instance(&self) -> Option<Instance> {
        Some(Instance::Napi(self.id))
    }
}
